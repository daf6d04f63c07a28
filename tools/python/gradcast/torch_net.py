"""A torch.nn.Module as the net of a job: its parameters are the shared memory, and backward() writes gradients there.

Gradients are taken as soon as autograd has accumulated them, by hooks on the AccumulateGrad nodes (torch 1.13 has no hook after that).  A node lives
as long as somebody holds it, so they are held here.  The first training block shows which parameters get several gradients in a backward pass, by
reentrant checkpoints for example: these are taken at the end of the pass, the others at once.
"""

from __future__ import annotations

import functools
import sys
import warnings
from typing import Any, Dict, Iterator, List, Optional, Set, Tuple

import torch

from .border import AttachError, Border, Compute
from .memory import Memory
from .torch_checks import Constants, aliases, check_modules, check_parameters
from .torch_running import RunningStatistics


class TorchNet:
    """model: its trained parameters are those of named_parameters() whose requires_grad is set.  AttachError: the model cannot be attached."""

    def __init__(self, model: torch.nn.Module) -> None:
        self._model = model
        check_modules(model)
        self._named = check_parameters(model)
        self._running = RunningStatistics(model)
        self._constants = Constants(model, self._running.ids())
        self._aliases = aliases(model, self._running.ids())
        _say_what_is_not_exported(model)
        self._taken = False      # the script's gradients come now, from loss.backward() in backward()
        self._learning = True    # until the first training block is done
        self._error: Optional[BaseException] = None   # of a hook, which is to be raised outside of the backward pass
        self._grad_enabled = torch.is_grad_enabled()

    def tensors(self) -> List[Tuple[str, Tuple[int, ...]]]:
        """Name and shape of each trained parameter, in order."""
        return [(name, tuple(parameter.shape)) for name, parameter in self._named]

    def running(self) -> List[Tuple[str, int]]:
        """Name and channels of each module with running statistics."""
        return self._running.names()

    def counts(self) -> Set[str]:
        """Names of those that count their batches."""
        return self._running.counts()

    def constants(self) -> List[Tuple[str, List[int], str, str]]:
        """Name, shape, dtype and SHA-256 of each frozen parameter and persistent buffer."""
        return self._constants.all()

    def constants_bytes(self) -> Iterator[Any]:
        """The bytes of each."""
        return self._constants.bytes()

    def aliases(self) -> List[Tuple[str, str]]:
        """Further names of what has several, with the first one."""
        return self._aliases

    def bind(self, memory: Memory, border: Border) -> None:
        """Writes the initial values where gradients go, and takes parameters from the shared memory from now on."""
        self._memory, self._border = memory, border
        self._gradients, self._pointers, self._nodes = [], [], []
        moved = [name for name, parameter in self._named if not parameter.is_contiguous()]
        if moved:
            others = f" and {len(moved) - 1} others" if len(moved) > 1 else ""
            print(f"gradcast: parameter {moved[0]}{others}: kept in row-major order now (torch.contiguous_format)", file=sys.stderr)
        for i, (name, parameter) in enumerate(self._named):
            self._gradients.append(torch.from_numpy(memory.tensor(memory.gradients, i, parameter.shape)))
            with torch.no_grad():
                self._gradients[i].copy_(parameter)
            parameter.data = _read_only(memory.tensor(memory.parameters, i, parameter.shape))
            parameter.grad = None
            self._pointers.append(parameter.data_ptr())
            with torch.enable_grad():
                node = parameter.expand_as(parameter).grad_fn.next_functions[0][0]
            node.register_hook(functools.partial(self._accumulated, i))
            self._nodes.append(node)
        self._running.bind(memory)
        self._late = [False] * len(self._named)

    @property
    def parameters(self) -> Dict[str, Any]:
        return {name: parameter.detach() for name, parameter in self._named}

    def begin(self, compute: Compute) -> None:
        """A block begins: train() or eval(), gradients or none."""
        self._raise()
        self._model.train(compute.training)
        torch.set_grad_enabled(compute.training)
        self._running.begin(compute)
        for (name, parameter), pointer in zip(self._named, self._pointers):
            if parameter.data_ptr() != pointer:
                raise AttachError(
                    f"parameter {name} is no longer in gradcast's memory: after gradcast.attach() a model is not moved, and no parameter gets new data")

    def samples(self, x: Any, y: Any) -> Tuple[Any, Any]:
        return torch.from_numpy(x), torch.from_numpy(y)

    def own_indices(self, indices: Any) -> Any:
        return torch.from_numpy(indices)

    def loss(self, loss: Any, compute: Compute) -> float:
        """The loss as a number.  AttachError: it is none, or has no gradient where one is wanted."""
        if not isinstance(loss, torch.Tensor) or loss.numel() != 1 or not loss.is_floating_point():
            shape = f" {loss.dtype} of shape {list(loss.shape)}" if isinstance(loss, torch.Tensor) else ""
            raise AttachError(f"the loss is a {type(loss).__name__}{shape}; one float in a tensor is wanted, the sum over the samples")
        if compute.training and not loss.requires_grad:
            raise AttachError("the loss of a training block has no gradient: it is computed from the model's outputs, without detach() or no_grad()")
        return float(loss.detach())

    def outputs(self, out: Any) -> Any:
        """The outputs as a numpy array."""
        if not isinstance(out, torch.Tensor):
            out = torch.as_tensor(out)
        out = out.detach()
        return (out.float() if out.is_floating_point() else out).numpy()

    def check_gradients(self, gradients: Optional[Dict[str, Any]]) -> None:
        if gradients is not None:
            raise AttachError("gradients are for nets without torch: those of a torch.nn.Module come from the loss")
        self._raise()
        self._running.check()

    def backward(self, loss: Any, gradients: Optional[Dict[str, Any]]) -> None:
        """Runs the backward pass.  Hands each bucket in as soon as its gradients are complete."""
        count = len(self._named)
        self._fired, self._complete, self._sent = [0] * count, [False] * count, 0
        self._running.hand_in()
        self._send()
        self._taken = True
        try:
            loss.backward()
        except BaseException:
            self._border.torch_hangs = True
            raise
        finally:
            self._taken = False
        self._raise()
        for i, (_, parameter) in enumerate(self._named):
            if parameter.grad is not None:
                self._take(i)
            elif not self._complete[i]:
                self._gradients[i].zero_()
                self._complete[i] = True
        self._late = [late or fired > 1 for late, fired in zip(self._late, self._fired)]
        self._send()
        self._constants.check(first=self._learning)
        self._learning = False

    def end(self) -> None:
        """The job has ended: the model is one of torch again, with the running statistics of the last step."""
        self._running.end()
        torch.set_grad_enabled(self._grad_enabled)

    # ---- below ----

    def _accumulated(self, i: int, *_: Any) -> None:
        """autograd has added to the gradient of parameter i."""
        if self._error is not None:
            return
        try:
            if not self._taken:
                raise AttachError("the script ran a backward pass to the parameters: block.done(loss, out) runs the one of its block")
            self._fired[i] += 1
            if not self._learning and not self._late[i]:
                self._take(i)
                self._send()
        except BaseException as error:
            self._error = error

    def _raise(self) -> None:
        """Raises what a hook has found.  A hook itself raises nothing: torch 1.13 hangs at exit where a backward pass was left by an exception."""
        if self._error is not None:
            raise self._error

    def _take(self, i: int) -> None:
        """Moves the gradient of parameter i into the shared memory."""
        name, parameter = self._named[i]
        gradient, parameter.grad = parameter.grad, None
        if gradient.is_sparse:
            gradient = gradient.to_dense()
        if not self._complete[i]:
            self._gradients[i].copy_(gradient)
        elif any(i in bucket.tensors for bucket in self._memory.buckets[: self._sent]):
            raise AttachError(
                f"parameter {name} got a second gradient in a backward pass, and one in the first block: a parameter that gets several does so in every block")
        else:
            self._gradients[i].add_(gradient)
        self._complete[i] = True

    def _send(self) -> None:
        """Hands in the buckets that are complete, in ascending order."""
        buckets = self._memory.buckets
        while self._sent < len(buckets) and all(self._complete[i] for i in buckets[self._sent].tensors):
            self._border.bucket(self._sent)
            self._sent += 1


def _say_what_is_not_exported(model: torch.nn.Module) -> None:
    for name, module in model.named_modules():
        if getattr(type(module), "get_extra_state", None) is not getattr(torch.nn.Module, "get_extra_state", None):
            print(f"gradcast: {name or 'the model'} has an extra state (get_extra_state), which an exported model has not", file=sys.stderr)


def _read_only(array: Any) -> torch.Tensor:
    """A tensor over memory that cannot be written.  torch warns of such memory; that is what is wanted here."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given NumPy array is not writ", category=UserWarning)
        return torch.from_numpy(array)
