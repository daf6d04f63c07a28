"""The memory that gradcastd and a process share: parameters, which the process can only read, and the memory of one block, as numpy arrays.

No array is copied.  Mappings live as long as an array of theirs.
"""

from __future__ import annotations

import mmap
import os
from typing import Any, Dict, List, NamedTuple, Sequence, Tuple

import numpy

from .border import AttachError, number

ALIGNMENT = 16   # floats: a tensor begins at a multiple of it


class Part(NamedTuple):
    """A tensor or a module's running statistics in the flat vector."""

    name: str
    first: int
    elements: int


class Bucket(NamedTuple):
    """Elements of the gradient that are handed in together, and the parts in it."""

    first: int
    elements: int
    tensors: List[int]
    running: List[int]


class Memory:
    """What MEMORY describes.

    block: the most samples of a block.
    parameters, gradients: float32 [elements]; parameters cannot be written.  images: [block, C, H, W] of the job's element.  labels, predicted: int32
    [block].  targets: target_element [block, targets].  indices: uint64 [block].  tensors, running: where each begins in the flat vector.  buckets: in ascending order.
    AttachError: what the daemon said makes no sense.
    """

    def __init__(
        self,
        found: Dict[str, Any],
        parameters: int,
        block: int,
        tensors: Sequence[Tuple[str, int]],
        running: Sequence[Tuple[str, int]],
        samples: int,
        shape: Tuple[int, int, int],
        element: str = "uint8",
        targets: int = 0,
        target_element: str = "float32",
    ) -> None:
        """Maps both descriptors and closes them.

        tensors: name and elements of each.  running: name and channels of each.  samples: the most of a block, where MEMORY does not say it.
        shape: C, H, W.  element, targets, target_element: as of Settings.
        """
        try:
            self.elements = number(found, "elements", 1, 1 << 40, "MEMORY")
            read = _map(parameters, number(found, "parameters", 1, 1 << 42, "MEMORY"), mmap.PROT_READ, "parameters")
            write = _map(block, number(found, "bytes", 1, 1 << 42, "MEMORY"), mmap.PROT_READ | mmap.PROT_WRITE, "bytes")
        finally:
            os.close(parameters)
            os.close(block)
        self.block = samples = number(found, "block", 1, 1 << 32, "MEMORY") if "block" in found else samples
        self.parameters = _array(read, found, None, "f4", (self.elements,))
        self.images = _array(write, found, "images", element, (samples, *shape))
        self.labels = _array(write, found, "labels", "i4", (samples,))
        self.targets = _array(write, found, "targets", target_element, (samples, targets)) if targets else None
        self.indices = _array(write, found, "indices", "u8", (samples,))
        self.predicted = _array(write, found, "predicted", "i4", (samples,))
        self.gradients = _array(write, found, "gradients", "f4", (self.elements,))
        self.tensors = self._parts(found, "tensors", tensors)
        self.running = self._parts(found, "running", [(name, 2 * channels) for name, channels in running])
        self.buckets = self._buckets(found)

    def tensor(self, vector: Any, index: int, shape: Sequence[int]) -> Any:
        """The elements of a tensor in a flat vector, as an array of this shape that shares its memory."""
        part = self.tensors[index]
        return vector[part.first : part.first + part.elements].reshape(shape)

    def statistics(self, vector: Any, index: int) -> Any:
        """A module's running statistics in a flat vector: [2, channels], means and second moments."""
        part = self.running[index]
        return vector[part.first : part.first + part.elements].reshape(2, -1)

    def _parts(self, found: Dict[str, Any], key: str, wanted: Sequence[Tuple[str, int]]) -> List[Part]:
        firsts = found.get(key)
        if not isinstance(firsts, list) or len(firsts) != len(wanted):
            raise AttachError(f"MEMORY of gradcastd: {key} is not a list of {len(wanted)} places")
        parts = []
        for first, (name, elements) in zip(firsts, wanted):
            if not isinstance(first, int) or first < 0 or (key == "tensors" and first % ALIGNMENT) or first + elements > self.elements:
                raise AttachError(f"MEMORY of gradcastd: {name} begins at {first!r}, which is not a place of {elements} elements")
            parts.append(Part(name, first, elements))
        return parts

    def _buckets(self, found: Dict[str, Any]) -> List[Bucket]:
        rows = found.get("buckets")
        if not isinstance(rows, list):
            raise AttachError("MEMORY of gradcastd: buckets is not a list")
        buckets, held = [], 0
        for row in rows:
            if not isinstance(row, list) or len(row) != 2 or not all(isinstance(value, int) and value >= 0 for value in row):
                raise AttachError(f"MEMORY of gradcastd: {row!r} is not a bucket")
            first, elements = row

            def inside(parts: List[Part]) -> List[int]:
                return [i for i, part in enumerate(parts) if first <= part.first and part.first + part.elements <= first + elements]

            buckets.append(Bucket(first, elements, inside(self.tensors), inside(self.running)))
            held += len(buckets[-1].tensors) + len(buckets[-1].running)
        if held != len(self.tensors) + len(self.running):
            raise AttachError("MEMORY of gradcastd: not every tensor is in exactly one bucket")
        return buckets


def _map(descriptor: int, size: int, protection: int, name: str) -> mmap.mmap:
    try:
        if os.fstat(descriptor).st_size < size:
            raise AttachError(f"MEMORY of gradcastd: {name} says {size} bytes, and the memory has {os.fstat(descriptor).st_size}")
        return mmap.mmap(descriptor, size, mmap.MAP_SHARED, protection)
    except (OSError, ValueError) as error:
        raise AttachError(f"MEMORY of gradcastd: {size} bytes of {name} cannot be mapped: {error}") from error


def _array(mapped: mmap.mmap, found: Dict[str, Any], key: Any, kind: str, shape: Tuple[int, ...]) -> Any:
    """A part of a mapping.  key: where the message says at which byte it begins; None: at the first."""
    first = number(found, key, 0, len(mapped), "MEMORY") if key else 0
    count = 1
    for extent in shape:
        count *= extent
    kind = numpy.dtype(kind).newbyteorder("<")
    item = kind.itemsize
    if first % item or first + count * item > len(mapped):
        raise AttachError(f"MEMORY of gradcastd: {key or 'parameters'} at byte {first} does not hold {count} values of {item} bytes")
    if count == 0:
        return numpy.zeros(shape, kind)
    return numpy.frombuffer(mapped, kind, count, first).reshape(shape)
