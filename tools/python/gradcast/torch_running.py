"""Running statistics of BatchNorm1d, BatchNorm2d and BatchNorm3d: summed by gradcast over all blocks of a step, as those of its own nets (nn/README.md).

A training block hands in, by channel, the sum over its samples of each sample's mean over positions, and of the mean of the squares.  torch computes a
block's mean and variance anyway and moves its own running ones by `momentum`: with a momentum of 1 they are the block's, at no cost.  They are not running
then.  The running ones are in the parameters' memory and are written into the modules before an evaluation.
"""

from __future__ import annotations

import functools
from typing import Any, Dict, List, Set, Tuple

import numpy
import torch
from torch.nn.modules.batchnorm import _BatchNorm

from .border import AttachError, Compute
from .memory import Memory

MOMENTUM = 0.1   # of gradcast


class RunningStatistics:
    """The modules of a model that have some.  AttachError: a module that cannot be had."""

    def __init__(self, model: torch.nn.Module) -> None:
        self._modules: List[Tuple[str, _BatchNorm]] = []
        for path, module in model.named_modules():
            if not isinstance(module, _BatchNorm):
                continue
            name = path or "(model)"
            if isinstance(module, torch.nn.SyncBatchNorm):
                raise AttachError(f"{name} is a SyncBatchNorm: take BatchNorm2d, as gradcast sums the statistics of all blocks itself")
            if not module.track_running_stats or module.running_mean is None:
                continue
            if module.momentum != MOMENTUM:
                raise AttachError(f"{name}: momentum {module.momentum}; gradcast's running statistics move by {MOMENTUM}")
            if type(module).forward is not _BatchNorm.forward:
                raise AttachError(f"{name} is a {type(module).__name__} with a forward of its own: gradcast knows the statistics of torch's alone")
            self._modules.append((name, module))
        self._calls: List[int] = [0] * len(self._modules)
        self._values: List[int] = [0] * len(self._modules)   # of a channel, in the block
        self._training = False
        self._counting = False

    def names(self) -> List[Tuple[str, int]]:
        """Name and channels of each module."""
        return [(name, module.num_features) for name, module in self._modules]

    def ids(self) -> Dict[int, str]:
        """Name of each module, by its id()."""
        return {id(module): name for name, module in self._modules}

    def counts(self) -> Set[str]:
        """Names of the modules that count their batches."""
        return {name for name, module in self._modules if module.num_batches_tracked is not None}

    def bind(self, memory: Memory) -> None:
        """Writes the initial values: mean and second moment as the modules have them."""
        self._memory = memory
        for i, (_, module) in enumerate(self._modules):
            mean, variance = _numbers(module.running_mean), _numbers(module.running_var)
            memory.statistics(memory.gradients, i)[:] = mean, variance + mean * mean
            module.momentum = 1.0
            module.register_forward_pre_hook(functools.partial(self._called, i))

    def begin(self, compute: Compute) -> None:
        """A block begins."""
        self._training = self._counting = compute.training
        self._samples = compute.samples
        self._calls = [0] * len(self._modules)
        if not compute.training:
            self._write()

    def check(self) -> None:
        """After the forward pass of a training block.  AttachError: a module was not called."""
        self._counting = False   # a checkpoint computes the forward pass again
        for (name, _), calls in zip(self._modules, self._calls):
            if calls == 0:
                raise AttachError(f"{name} was not called in this training block, so the block has no statistics of it")

    def hand_in(self) -> None:
        """Writes the statistics of a training block where gradients go."""
        for i, (_, module) in enumerate(self._modules):
            values = self._values[i]
            mean = _numbers(module.running_mean)
            variance = _numbers(module.running_var) * ((values - 1) / values)   # torch's is divided by values - 1
            self._memory.statistics(self._memory.gradients, i)[:] = self._samples * mean, self._samples * (variance + mean * mean)

    def end(self) -> None:
        for _, module in self._modules:
            module.momentum = MOMENTUM
        self._counting = False
        if self._modules and hasattr(self, "_memory"):
            self._write()

    def _write(self) -> None:
        """Writes the running statistics into the modules."""
        with torch.no_grad():
            for i, (_, module) in enumerate(self._modules):
                mean, second = self._memory.statistics(self._memory.parameters, i).astype(numpy.float64)
                variance = numpy.maximum(second - mean * mean, 0)
                module.running_mean.copy_(torch.from_numpy(mean))
                module.running_var.copy_(torch.from_numpy(variance))

    def _called(self, i: int, module: torch.nn.Module, inputs: Tuple[Any, ...]) -> None:
        if not self._counting:
            return
        name = self._modules[i][0]
        if not module.training:
            raise AttachError(f"{name} is in eval() in a training block: a norm that is not trained has track_running_stats=False, or is an operation of its own")
        if not inputs:
            raise AttachError(f"{name} is called by a keyword: gradcast sees its input as the first argument alone")
        self._calls[i] += 1
        if self._calls[i] > 1:
            raise AttachError(f"{name} is called twice in a block: its running statistics would be those of the last call; take a module for each call")
        self._values[i] = inputs[0].numel() // max(module.num_features, 1)


def _numbers(tensor: torch.Tensor) -> Any:
    return tensor.detach().numpy().astype(numpy.float64)
