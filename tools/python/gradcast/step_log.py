"""steps.jsonl, in which a node logs a job's steps."""

from __future__ import annotations

import json
import os
from typing import Any, Dict, Iterator

_LINE_MAX = 1 << 20   # bytes


def steps(folder: str, arrays: bool = False) -> Any:
    """The steps that a job has logged in `folder`: its own at a node, or what `gradcastctl run --keep` has left; or the file itself.

    Returns an iterator of dicts, a step each, by ascending step: "step", "loss", "digest", ...  Steps that the node has no line of are left
    out, and so is a last line that is still being written.  A line that is no step raises ValueError with its number.

    arrays: a dict of numpy arrays instead, one for each key whose values are all numbers; NaN where a step lacks it.  Integers that all
    steps have are int64.
    """
    path = os.path.join(folder, "steps.jsonl") if os.path.isdir(folder) else folder
    return _arrays(path) if arrays else _lines(path)


def _lines(path: str) -> Iterator[Dict[str, Any]]:
    with open(path, "rb") as file:
        number = 0
        while True:
            line = file.readline(_LINE_MAX + 1)
            number += 1
            if len(line) > _LINE_MAX:
                raise ValueError(f"{path}:{number}: the line is too long for a step")
            if not line.endswith(b"\n"):   # the end, or being written
                return
            try:
                found = json.loads(line)
            except ValueError as error:
                raise ValueError(f"{path}:{number}: not JSON: {error}") from None
            if not isinstance(found, dict) or ("step" not in found and "gap" not in found):
                raise ValueError(f"{path}:{number}: not a step")
            if "gap" not in found:
                yield found


def _arrays(path: str) -> Dict[str, Any]:
    import numpy

    rows = list(_lines(path))
    number = (int, float, type(None))
    keys = dict.fromkeys(key for row in rows for key in row)
    numbers = [key for key in keys if all(isinstance(row.get(key), number) and not isinstance(row.get(key), bool) for row in rows)]
    found = {}
    for key in numbers:
        values = [row.get(key) for row in rows]
        whole = all(isinstance(value, int) for value in values)
        found[key] = numpy.array([float("nan") if value is None else value for value in values], dtype="int64" if whole else "float64")
    return found
