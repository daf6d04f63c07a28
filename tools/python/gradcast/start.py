"""What gradcastd says of a job before it begins: START, field by field."""

from __future__ import annotations

from typing import Any, Dict, NamedTuple, Tuple

from .border import WIRE, AttachError, number
from .version import __version__


class Settings(NamedTuple):
    """seed: of the job.  lane, lanes: this process among those of its node.  threads: that it may use.  block: the most samples of a block.

    C, H, W: shape of a sample; all 0 where the process has its own data.  classes: of the labels.  target_scale: above 0 for a regression.
    mean, std: of the training set, by channel; of pixels as values in 0 to 1.
    element: the type of a sample's elements, a name of numpy: uint8 of pixels, float32 of values, uint16 or uint32 of tokens.  targets: values of
    target_element that a sample has in place of a label; 0: a label.  float32 of a regression, uint8 or uint16 of a mask with H W of them.  ignore: the label
    of a mask that says nothing; -1: none.  vocabulary: of a text, whose samples are tokens; 0: no text.
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
    element: str = "uint8"
    targets: int = 0
    target_element: str = "float32"
    ignore: int = -1
    vocabulary: int = 0

    @property
    def masks(self) -> bool:
        """Each sample has one of `classes` for each pixel."""
        return self.targets > 0 and self.target_element != "float32"

    @property
    def labelled(self) -> bool:
        """Each sample has one of `classes`."""
        return self.C > 0 and self.target_scale == 0 and self.targets == 0 and self.vocabulary == 0


ELEMENTS = {"u8": "uint8", "u16": "uint16", "u32": "uint32", "f32": "float32"}


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
        element=_element(samples.get("element", "u8")),
        targets=number(samples, "targets", 0, 1 << 32) if "targets" in samples else 0,
        target_element=_element(samples.get("target_element", "f32")),
        ignore=number(samples, "ignore", -1, 1 << 16) if "ignore" in samples else -1,
        vocabulary=number(samples, "vocabulary", 0, 1 << 32) if "vocabulary" in samples else 0,
    )


def _element(name: Any) -> str:
    if name not in ELEMENTS:
        raise AttachError(f"START of gradcastd: element is {name!r}, not one of {', '.join(ELEMENTS)}")
    return ELEMENTS[name]


def _floats(values: Any, name: str, count: int = 1) -> Tuple[float, ...]:
    right = isinstance(values, list) and len(values) == count
    if not right or not all(isinstance(value, (int, float)) and not isinstance(value, bool) for value in values):
        raise AttachError(f"START of gradcastd: {name} is {values!r}, not {count} numbers")
    return tuple(float(value) for value in values)
