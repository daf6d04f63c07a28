"""gradcast.attach(): the script's model becomes the net of the job that has started the script.

gradcastd starts the script of a job file's `net.command` in several processes a node, with a socket each.  At `import gradcast` such a process
reads what the job says, and seeds random numbers by it.  This file imports numpy and torch only when a net is attached.
"""

from __future__ import annotations

import atexit
import faulthandler
import os
import sys
from types import TracebackType
from typing import TYPE_CHECKING, Any, Optional, Type

from .border import WIRE, AttachError, Border, JobEnded
from .seeds import seed_all, seed_torch_when_imported
from .start import Settings, settings_of
from .version import __version__

if TYPE_CHECKING:
    from .blocks import Job

VARIABLE = "GRADCAST_ATTACH"
_OUTSIDE = "this script is started by gradcast: net.command of a job file"


class _Process:
    """This process as one of a job."""

    def __init__(self, border: Border) -> None:
        self.border = border
        self.settings: Optional[Settings] = None
        self.attached = False


_process: Optional[_Process] = None


def settings() -> Settings:
    """What the job says of itself: seed, lane, shape of the samples and others.  RuntimeError: the script was not started by gradcast."""
    return _started()[1]


def attach(model: Any, *, data_digest: Optional[str] = None) -> Job:
    """Makes a model the net of the job, and returns the job: a context, and an iterator over its blocks.

    model: a torch.nn.Module whose parameters are float32 on the CPU; or a dict of float32 numpy arrays by name; or an object whose attribute
    `parameters` is such a dict.  The parameters become views of memory that gradcast alone can write.  It is the optimiser.
    data_digest: of the samples of a script that has its own, a SHA-256 in hex for example.  gradcast compares it between nodes, and when the training
    is verified; without one it says that the data was not compared.
    A process attaches one model.

        with gradcast.attach(model) as job:
            for block in job:
                x, y = block.samples
                out = model(x)
                block.done(F.cross_entropy(out, y, reduction="sum"), out)

    RuntimeError: the script was not started by gradcast, or has attached a model.  AttachError: the model cannot be attached; its text names
    the parameter, buffer or module, and what to do.
    """
    process, found = _started()
    if process.attached:
        raise RuntimeError("gradcast.attach() was called before: a process attaches one model")
    process.attached = True
    try:
        return _attach(process.border, found, model, data_digest)
    except BaseException as error:
        from .blocks import line_of

        process.border.fail(line_of(error))
        raise


def _attach(border: Border, found: Settings, model: Any, data_digest: Optional[str]) -> Job:
    from .blocks import Job
    from .loaded import libraries, modules
    from .memory import Memory

    if sys.__stderr__ is not None:
        faulthandler.enable(sys.__stderr__)   # names the line that writes to a parameter
    if data_digest is not None and not (isinstance(data_digest, str) and data_digest):
        raise AttachError(f"data_digest is {data_digest!r}, not a text")
    net = _net(model)
    tensors, running, counts = net.tensors(), net.running(), net.counts()
    try:
        own = {} if data_digest is None else {"data_digest": data_digest}
        border.hello({
            **own,
            "wire": WIRE,
            "version": __version__,
            "tensors": [{"name": name, "shape": list(shape)} for name, shape in tensors],
            "running": [{"name": name, "channels": channels, **({"batches": True} if name in counts else {})} for name, channels in running],
            "constants": [{"name": name, "shape": shape, "dtype": dtype, "sha256": sha256} for name, shape, dtype, sha256 in net.constants()],
            "aliases": [{"name": name, "of": of} for name, of in net.aliases()],
            "libraries": libraries(),
            "modules": modules(),
        })
        text, parameters, block = border.memory()
        sizes = [(name, _product(shape)) for name, shape in tensors]
        memory = Memory(text, parameters, block, sizes, running, found.block, (found.C, found.H, found.W),
                        found.element, found.targets, found.target_element)
        if text.get("constants") is True:
            border.constants(net.constants_bytes())
        net.bind(memory, border)
        border.ready()
    except JobEnded:   # another node has refused the job, say
        return Job(border, found, net, None)
    return Job(border, found, net, memory)


def _net(model: Any) -> Any:
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(model, torch.nn.Module):
        from .torch_net import TorchNet

        return TorchNet(model)
    parameters = model if isinstance(model, dict) else getattr(model, "parameters", None)
    if not isinstance(parameters, dict):
        raise AttachError(
            f"a {type(model).__name__} cannot be attached: a torch.nn.Module, a dict of numpy arrays, or an object with a dict `parameters`")
    from .numpy_net import NumpyNet

    return NumpyNet(parameters)


def _product(shape: Any) -> int:
    product = 1
    for extent in shape:
        product *= extent
    return product


def _started() -> Any:
    if _process is None or _process.settings is None:
        raise RuntimeError(_OUTSIDE)
    return _process, _process.settings


# ---- at import ----


def begin() -> None:
    """Called by `import gradcast`: takes the socket over, where gradcast has started the process, and seeds random numbers by the job's seed.

    Programs that the process starts do not see the variable.  AttachError: the variable names no socket of a daemon, or the daemon's version differs.
    """
    global _process
    text = os.environ.pop(VARIABLE, None)
    if text is None:
        return
    if not text.isdecimal():
        raise AttachError(f"{VARIABLE}={text}: not the number of a descriptor")
    border = Border(int(text))
    _process = _Process(border)
    _say_how_the_process_ends(border)
    try:
        _process.settings = settings_of(border.start())
    except JobEnded:
        raise AttachError("gradcastd has ended before the job began") from None
    except AttachError as error:
        border.fail(f"AttachError: {error}")
        raise
    try:
        import numpy  # noqa: F401  to be seeded
    except ImportError:
        pass
    seed_all(_process.settings.seed)
    seed_torch_when_imported(_process.settings.seed)


def _say_how_the_process_ends(border: Border) -> None:
    """FAIL for an exception outside of the job's context, and for a script that ends early."""
    before = sys.excepthook
    mine = os.getpid()

    def hook(kind: Type[BaseException], error: BaseException, trace: Optional[TracebackType]) -> Any:
        if os.getpid() == mine:
            border.fail(f"{kind.__name__}: {error}")
        return before(kind, error, trace)

    def at_exit() -> None:
        if os.getpid() == mine:
            attached = _process is not None and _process.attached
            border.fail("the script has ended before the job" + ("" if attached else ": it has not called gradcast.attach()"))
            if border.torch_hangs:
                # A thread-local queue of torch 1.13 holds the rest of the pass, and frees Python's objects when Python is gone.
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(1)

    sys.excepthook = hook
    atexit.register(at_exit)
