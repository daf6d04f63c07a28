"""What a torch.nn.Module must be to be attached, and what a training block must not change."""

from __future__ import annotations

import hashlib
from typing import Any, Dict, Iterator, List, Set, Tuple

import torch
from torch.nn.parameter import is_lazy

from .border import AttachError


def check_modules(model: torch.nn.Module) -> None:
    """AttachError: a module that does what gradcast does itself, or that writes its parameters."""
    if isinstance(model, (torch.nn.DataParallel, torch.nn.parallel.DistributedDataParallel)):
        raise AttachError(f"a {type(model).__name__} cannot be attached: give the model inside, model.module")
    for name, module in model.named_modules():
        if isinstance(module, (torch.nn.Embedding, torch.nn.EmbeddingBag)) and module.max_norm is not None:
            raise AttachError(
                f"{name or 'the model'}: {type(module).__name__} with max_norm changes its weights in the forward pass, which gradcast alone may do")


def check_parameters(model: torch.nn.Module) -> List[Tuple[str, torch.nn.Parameter]]:
    """The trained parameters, each by its first name.  AttachError: one that gradcast cannot train."""
    found, places = [], {}
    for name, parameter in model.named_parameters():
        if is_lazy(parameter):
            raise AttachError(f"parameter {name} has no shape yet: call the model once before gradcast.attach()")
        if parameter.device.type != "cpu":
            raise AttachError(f"parameter {name} is on {parameter.device}: gradcast.attach() takes models on the CPU: model.cpu() moves it")
        if not parameter.requires_grad:
            continue
        if parameter.dtype != torch.float32:
            raise AttachError(
                f"parameter {name} is {str(parameter.dtype).replace('torch.', '')}; gradcast trains float32: model.float() makes it so, and torch.autocast "
                "computes in half precision with it")
        if parameter.layout != torch.strided or parameter.numel() == 0 or parameter.dim() > 8:
            raise AttachError(f"parameter {name}: {parameter.layout} of shape {list(parameter.shape)}; a dense tensor of at most 8 axes is wanted")
        other = places.setdefault(parameter.data_ptr(), name)
        if other != name:
            raise AttachError(f"parameters {other} and {name} share memory and are two: tie them by one Parameter in both modules")
        found.append((name, parameter))
    if not found:
        raise AttachError("the model has no parameter that is trained (requires_grad)")
    return found


def names_of(model: torch.nn.Module) -> Iterator[Tuple[str, str, torch.nn.Module, torch.Tensor]]:
    """What state_dict() has, in its order: name, path of the module, module, tensor.  A module that has two paths comes twice, as it does there."""
    try:
        modules = list(model.named_modules(remove_duplicate=False))
    except RecursionError:
        raise AttachError("a module of the model holds itself, so the model has no state_dict() and is not attached") from None
    for path, module in modules:
        prefix = path + "." if path else ""
        for name, parameter in module._parameters.items():
            if parameter is not None:
                yield prefix + name, path, module, parameter
        for name, buffer in module._buffers.items():
            if buffer is not None and name not in module._non_persistent_buffers_set:
                yield prefix + name, path, module, buffer


class Constants:
    """Frozen parameters and persistent buffers: training must leave them as they are, as they are the same in every process.

    The first training block is checked by digest.  Later ones are checked by the tensors' version counters, which every operation in place
    increments.
    """

    def __init__(self, model: torch.nn.Module, running: Dict[int, str]) -> None:
        """running: modules whose buffers gradcast keeps itself, by id().  AttachError: a tensor that is not to be had."""
        self._model = model
        self._running = running
        self._first = self._tensors()
        trained = {parameter.data_ptr(): name for name, parameter in model.named_parameters() if parameter.requires_grad and parameter.numel() > 0}
        for name, tensor in self._first.items():
            _check_constant(name, tensor)
            other = trained.get(tensor.data_ptr()) if tensor.numel() > 0 else None
            if other is not None:
                raise AttachError(f"{_kind(tensor)} {name} shares its memory with parameter {other}, which moves: tie them by one Parameter, or clone() it")
        self._versions = {name: (id(tensor), tensor._version) for name, tensor in self._first.items()}
        self._digests = {name: _digest(tensor) for name, tensor in self._first.items()}

    def all(self) -> List[Tuple[str, List[int], str, str]]:
        """Name, shape, dtype as safetensors names it, and SHA-256 of the bytes: of each tensor, by its first name."""
        return [(name, list(tensor.shape), DTYPES[tensor.dtype], self._digests[name][2]) for name, tensor in self._first.items()]

    def bytes(self) -> Iterator[Any]:
        """The bytes of each, in the same order: little-endian, the last index moves fastest."""
        return (_bytes(tensor) for tensor in self._first.values())

    def check(self, first: bool) -> None:
        """After a training block.  AttachError: the block has changed a frozen parameter or a buffer."""
        for name, tensor in self._tensors().items():
            if self._versions.get(name) == (id(tensor), tensor._version) and not first:
                continue
            if self._digests.get(name) != _digest(tensor):
                raise AttachError(
                    f"{_kind(tensor)} {name} is changed by a training block: gradcast keeps no values but trained parameters and the running statistics of "
                    "BatchNorm1d, BatchNorm2d and BatchNorm3d")
            self._versions[name] = (id(tensor), tensor._version)

    def _tensors(self) -> Dict[str, torch.Tensor]:
        """By the first name of each."""
        found: Dict[str, torch.Tensor] = {}
        ids: Set[int] = set()
        for name, _, module, tensor in names_of(self._model):
            kept = tensor.requires_grad if isinstance(tensor, torch.nn.Parameter) else id(module) in self._running
            if not kept and id(tensor) not in ids:
                ids.add(id(tensor))
                found[name] = tensor
        return found


def aliases(model: torch.nn.Module, running: Dict[int, str]) -> List[Tuple[str, str]]:
    """Further names of tensors that have several in state_dict(), each with the first one; of modules with running statistics those of the module.

    running: name of each such module, by id().
    """
    first: Dict[int, str] = {}
    found: Dict[str, str] = {}
    for name, path, module, tensor in names_of(model):
        kept = running.get(id(module))
        if kept is not None and not isinstance(tensor, torch.nn.Parameter):
            name, other = path, kept   # all buffers of it
        else:
            other = first.setdefault(id(tensor), name)
        if name != other:
            found[name] = other
    return list(found.items())


DTYPES = {   # as safetensors names them
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.complex64: "C64", torch.int64: "I64",
    torch.int32: "I32", torch.int16: "I16", torch.int8: "I8", torch.uint8: "U8", torch.bool: "BOOL",
}


def _kind(tensor: torch.Tensor) -> str:
    return "frozen parameter" if isinstance(tensor, torch.nn.Parameter) else "buffer"


def _check_constant(name: str, tensor: torch.Tensor) -> None:
    if tensor.device.type != "cpu":
        raise AttachError(f"{_kind(tensor)} {name} is on {tensor.device}: gradcast.attach() takes models on the CPU: model.cpu() moves it")
    if tensor.dtype not in DTYPES or tensor.layout != torch.strided or tensor.dim() > 8:
        raise AttachError(
            f"{_kind(tensor)} {name} is {str(tensor.dtype).replace('torch.', '')} of shape {list(tensor.shape)}, {tensor.layout}, which a file of tensors does not "
            "hold: register it as a buffer with persistent=False, or keep it outside of the module")


def _digest(tensor: torch.Tensor) -> Tuple[torch.dtype, Tuple[int, ...], str]:
    return tensor.dtype, tuple(tensor.shape), hashlib.sha256(_bytes(tensor)).hexdigest()


def _bytes(tensor: torch.Tensor) -> Any:
    if tensor.numel() == 0:
        return b""
    whole = tensor.detach().resolve_conj().resolve_neg() if tensor.is_complex() else tensor.detach()
    return whole.contiguous().reshape(-1).view(torch.uint8).numpy().data
