"""A net that the script computes itself, gradients too, with numpy or anything that makes numpy arrays of its results."""

from __future__ import annotations

from typing import Any, Dict, Iterator, List, Optional, Set, Tuple

import numpy

from .border import AttachError, Border, Compute
from .memory import Memory


class NumpyNet:
    """parameters: {name: float32 array}, whose arrays become read-only views of the shared memory when the job begins."""

    def __init__(self, parameters: Dict[str, Any]) -> None:
        if not parameters:
            raise AttachError("the net has no parameters")
        for name, array in parameters.items():
            if not isinstance(name, str) or not isinstance(array, numpy.ndarray):
                raise AttachError(f"parameter {name}: a {type(array).__name__}, not a numpy array")
            if array.dtype != numpy.float32:
                raise AttachError(f"parameter {name} is {array.dtype}; gradcast trains float32: array.astype(numpy.float32) makes one")
            if array.size == 0:
                raise AttachError(f"parameter {name} has no elements: its shape is {list(array.shape)}")
        self._parameters = parameters
        self._names = list(parameters)
        self._shapes = [parameters[name].shape for name in self._names]

    def tensors(self) -> List[Tuple[str, Tuple[int, ...]]]:
        """Name and shape of each parameter, in order."""
        return list(zip(self._names, self._shapes))

    def running(self) -> List[Tuple[str, int]]:
        """Name and channels of each module with running statistics."""
        return []

    def counts(self) -> Set[str]:
        """Names of those that count their batches."""
        return set()

    def constants(self) -> List[Tuple[str, List[int], str, str]]:
        """Name, shape, dtype and SHA-256 of what is not trained."""
        return []

    def constants_bytes(self) -> Iterator[Any]:
        """The bytes of each."""
        return iter(())

    def aliases(self) -> List[Tuple[str, str]]:
        """Further names of what has several, with the first one."""
        return []

    def bind(self, memory: Memory, border: Border) -> None:
        """Writes the initial values where gradients go, and takes parameters from the shared memory from now on."""
        self._memory, self._border = memory, border
        self._gradients = [memory.tensor(memory.gradients, i, shape) for i, shape in enumerate(self._shapes)]
        for i, name in enumerate(self._names):
            self._gradients[i][...] = self._parameters[name]
            self._parameters[name] = memory.tensor(memory.parameters, i, self._shapes[i])

    @property
    def parameters(self) -> Dict[str, Any]:
        return self._parameters

    def begin(self, compute: Compute) -> None:
        """A block begins."""

    def samples(self, x: Any, y: Any) -> Tuple[Any, Any]:
        return x, y

    def own_indices(self, indices: Any) -> Any:
        return indices

    def loss(self, loss: Any, compute: Compute) -> float:
        """The loss as a number.  AttachError: it is none."""
        value = numpy.asarray(loss)
        if value.size != 1 or value.dtype.kind != "f":
            raise AttachError(f"the loss is a {type(loss).__name__} of shape {list(value.shape)}; one float is wanted, the sum over the samples")
        return float(value.reshape(()))

    def outputs(self, out: Any) -> Any:
        """The outputs as a numpy array."""
        return numpy.asarray(out)

    def check_gradients(self, gradients: Optional[Dict[str, Any]]) -> None:
        """AttachError: not one gradient of each parameter's shape."""
        if gradients is None:
            raise AttachError('a training block of a net without torch is done with its gradients: block.done(loss, gradients={"w": dw, ...})')
        for name in gradients:
            if name not in self._parameters:
                raise AttachError(f"gradients: {name} is no parameter; there are {', '.join(self._names)}")
        for name, shape in self.tensors():
            if name not in gradients:
                raise AttachError(f"gradients: {name} is missing; a gradient that is zero is an array of zeros")
            if numpy.shape(gradients[name]) != shape:
                raise AttachError(f"gradients: {name} has shape {list(numpy.shape(gradients[name]))}; the parameter has {list(shape)}")

    def backward(self, loss: Any, gradients: Optional[Dict[str, Any]]) -> None:
        """Hands the gradients in, bucket by bucket."""
        assert gradients is not None
        for index, bucket in enumerate(self._memory.buckets):
            for i in bucket.tensors:
                numpy.copyto(self._gradients[i], gradients[self._names[i]], casting="same_kind")
            self._border.bucket(index)

    def end(self) -> None:
        """The job has ended."""
