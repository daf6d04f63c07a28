"""What gradcastd says of a job before it begins: START, field by field."""

from __future__ import annotations

from typing import Any, Dict, NamedTuple, Tuple

from .border import WIRE, AttachError, number
from .version import __version__


class Settings(NamedTuple):
    """seed: of the job.  lane, lanes: this process among those of its node.  threads: that it may use.  block: the most samples of a block.

    C, H, W: shape of a sample; all 0 where the process has its own data.  classes: of the labels.  target_scale: above 0 for a regression.
    mean, std: of the training set, by channel, of values in 0 to 1.
    """

    seed: int
    lane: int
    lanes: int
    threads: int
    block: int
    C: int
    H: int
    W: int
    classes: int
    target_scale: float
    mean: Tuple[float, ...]
    std: Tuple[float, ...]


def settings_of(start: Dict[str, Any]) -> Settings:
    """AttachError: versions differ, or a field makes no sense."""
    if start.get("version") != __version__:
        raise AttachError(
            f"the package gradcast is {__version__} and gradcastd is {start.get('version')}: install the package of that version")
    if start.get("wire") != WIRE:
        raise AttachError(f"the package gradcast has border {WIRE} and gradcastd has {start.get('wire')}: install both from one version")
    samples = start.get("samples")
    if not isinstance(samples, dict):
        raise AttachError("START of gradcastd: samples is missing")
    C, H, W = (number(samples, key, 0, 1 << 32) for key in "CHW")
    return Settings(
        seed=number(start, "seed"),
        lane=number(start, "lane"),
        lanes=number(start, "lanes", 1),
        threads=number(start, "threads"),
        block=number(start, "block", 0, 1 << 32),
        C=C,
        H=H,
        W=W,
        classes=number(samples, "classes", 0, 1 << 32),
        target_scale=_floats([samples.get("target_scale", 0)], "target_scale")[0],
        mean=_floats(samples.get("mean", []), "mean", C),
        std=_floats(samples.get("std", []), "std", C),
    )


def _floats(values: Any, name: str, count: int = 1) -> Tuple[float, ...]:
    right = isinstance(values, list) and len(values) == count
    if not right or not all(isinstance(value, (int, float)) and not isinstance(value, bool) for value in values):
        raise AttachError(f"START of gradcastd: {name} is {values!r}, not {count} numbers")
    return tuple(float(value) for value in values)
