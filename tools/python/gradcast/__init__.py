"""Programs in Python that use gradcast.

Client  submits, watches and cancels jobs of a gradcastd, over its control socket.
steps   reads the steps that a job has logged.
load    reads the parameters of a model from a safetensors file.

Needs Python 3.9 or newer.  numpy is imported where arrays are asked for.
"""

from .client import Client, Error, Refused, Unreachable
from .safetensors import load
from .step_log import steps
from .version import __version__

__all__ = ["Client", "Error", "Refused", "Unreachable", "__version__", "load", "steps"]
