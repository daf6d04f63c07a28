"""Samples as a net of gradcast sees them: bytes become floats, (x / 255 - mean) / std by channel, values (x - mean) / std (nn/cpu/pixels.cc)."""

from __future__ import annotations

from typing import Any, Sequence

import numpy


class Pixels:
    """mean, std: [C].  The arithmetic is float32, each product and sum rounded by itself, so the bits are those of gradcast's own nets."""

    def __init__(self, mean: Sequence[float], std: Sequence[float]) -> None:
        one, m, s = numpy.float32(1), numpy.asarray(mean, numpy.float32), numpy.asarray(std, numpy.float32)
        self._scale = (one / (numpy.float32(255) * s)).reshape(-1, 1, 1)
        self._shift = (-m / s).reshape(-1, 1, 1)
        self._mean, self._std = m.reshape(-1, 1, 1), s.reshape(-1, 1, 1)

    def floats(self, images: Any) -> Any:
        """images: uint8 or float32, [n, C, H, W].  Returns a new array, float32 of the same shape."""
        if images.dtype == numpy.float32:
            return (images - self._mean) / self._std
        found = images.astype(numpy.float32)
        found *= self._scale
        found += self._shift
        return found


def targets(labels: Any, classes: int, scale: float) -> Any:
    """labels: int32 [n].  Returns those of a regression, float32 [n]: (label - classes // 2) * scale."""
    return (labels.astype(numpy.float32) - numpy.float32(classes // 2)) * numpy.float32(scale)
