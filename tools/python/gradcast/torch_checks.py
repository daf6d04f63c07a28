"""What a torch.nn.Module must be to be attached, and what a training block must not change."""

from __future__ import annotations

import hashlib
from typing import Dict, List, Set, Tuple

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


class Constants:
    """Frozen parameters and persistent buffers: training must leave them as they are, as they are the same in every process.

    The first training block is checked by digest.  Later ones are checked by the tensors' version counters, which every operation in place
    increments.
    """

    def __init__(self, model: torch.nn.Module, kept: Set[str]) -> None:
        """kept: names of the buffers that gradcast keeps itself."""
        self._model = model
        self._kept = kept
        self._versions = {name: (id(tensor), tensor._version) for name, tensor in self._tensors().items()}
        self._digests = {name: _digest(tensor) for name, tensor in self._tensors().items()}

    def check(self, first: bool) -> None:
        """After a training block.  AttachError: the block has changed a frozen parameter or a buffer."""
        for name, tensor in self._tensors().items():
            if self._versions.get(name) == (id(tensor), tensor._version) and not first:
                continue
            if self._digests.get(name) != _digest(tensor):
                kind = "frozen parameter" if isinstance(tensor, torch.nn.Parameter) else "buffer"
                raise AttachError(
                    f"{kind} {name} is changed by a training block: gradcast keeps no values but trained parameters and the running statistics of "
                    "BatchNorm1d, BatchNorm2d and BatchNorm3d")
            self._versions[name] = (id(tensor), tensor._version)

    def _tensors(self) -> Dict[str, torch.Tensor]:
        found: Dict[str, torch.Tensor] = {}
        for prefix, module in self._model.named_modules():
            path = prefix + "." if prefix else ""
            for name, parameter in module._parameters.items():
                if parameter is not None and not parameter.requires_grad:
                    found[path + name] = parameter
            for name, buffer in module._buffers.items():
                if buffer is not None and name not in module._non_persistent_buffers_set and path + name not in self._kept:
                    found[path + name] = buffer
        return found


def _digest(tensor: torch.Tensor) -> str:
    digest = hashlib.sha256(f"{tensor.dtype} {list(tensor.shape)} ".encode())
    whole = tensor.detach().to_dense() if tensor.layout != torch.strided else tensor.detach()
    digest.update(whole.contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
