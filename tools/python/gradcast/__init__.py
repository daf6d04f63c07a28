"""Programs in Python that use gradcast.

attach    makes the script's model the net of the job that has started the script.
settings  what that job says of itself.
Client    submits, watches and cancels jobs of a gradcastd, over its control socket.
steps     reads the steps that a job has logged.
load      reads the parameters of a model from a safetensors file.

Needs Python 3.9 or newer.  numpy is imported where arrays are asked for, torch where the model is one of torch.
"""

from . import attach as _attach
from .attach import attach, settings
from .border import AttachError
from .client import Client, Error, Refused, Unreachable
from .safetensors import load
from .step_log import steps
from .version import __version__

__all__ = ["AttachError", "Client", "Error", "Refused", "Unreachable", "__version__", "attach", "load", "settings", "steps"]

_attach.begin()
