"""Files of safetensors, as `gradcastctl export` writes them."""

from __future__ import annotations

import json
import os
from typing import Any, Dict

_HEADER_MAX = 100 << 20   # bytes, as the format says
_KINDS = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2", "I64": "<i8", "I32": "<i4", "I16": "<i2", "I8": "i1", "U8": "u1", "BOOL": "?",
          "C64": "<c8"}


def load(path: str) -> Dict[str, Any]:
    """The tensors of a safetensors file, by name, as numpy arrays; BF16 as float32.

    torch.from_numpy() makes tensors of them: model.load_state_dict({name: torch.from_numpy(a) for name, a in load(path).items()}).  The file of an
    attached model has all that its state_dict() has, under the same names: trained parameters, running statistics, frozen parameters and
    persistent buffers.  A file that is none raises ValueError, which names it.
    """
    import numpy

    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        header = _header(path, file, size)
        begin = file.tell()
        tensors = {}
        for name, each in header.items():
            if name == "__metadata__":
                continue
            kind, shape, (first, end) = _tensor(path, name, each)
            count = 1
            for extent in shape:
                count *= extent
            bytes_each = numpy.dtype(_KINDS[kind]).itemsize
            if end - first != count * bytes_each or begin + end > size:
                raise ValueError(f"{path}: tensor {name}: its bytes {first}..{end} do not hold {kind} {shape}")
            file.seek(begin + first)
            values = numpy.frombuffer(file.read(end - first), dtype=_KINDS[kind])
            if kind == "BF16":
                values = (values.astype("<u4") << 16).view("<f4")
            tensors[name] = values.reshape(shape).copy()
    return tensors


def _header(path: str, file: Any, size: int) -> Dict[str, Any]:
    length = int.from_bytes(file.read(8), "little") if size >= 8 else 0
    if length == 0 or length > min(_HEADER_MAX, size - 8):
        raise ValueError(f"{path}: not a safetensors file")
    try:
        header = json.loads(file.read(length))
    except ValueError:
        header = None
    if not isinstance(header, dict):
        raise ValueError(f"{path}: not a safetensors file: its header is not JSON")
    return header


def _tensor(path: str, name: str, each: Any):
    try:
        kind, shape, (first, end) = each["dtype"], each["shape"], each["data_offsets"]
    except (KeyError, TypeError, ValueError):
        raise ValueError(f"{path}: tensor {name}: its entry is not dtype, shape, data_offsets") from None
    whole = [first, end, *shape] if isinstance(shape, list) else [None]
    if kind not in _KINDS or any(not isinstance(value, int) or isinstance(value, bool) or value < 0 for value in whole) or end < first:
        raise ValueError(f"{path}: tensor {name}: {kind} {shape} at {first}..{end} is not a tensor of {', '.join(_KINDS)}")
    return kind, shape, (first, end)
