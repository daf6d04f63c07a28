"""What a process has loaded: libraries with their versions, and the script's own modules with their digests."""

from __future__ import annotations

import hashlib
import os
import platform
import re
import sys
from typing import Any, Dict, List

_INSTALLED = ("site-packages", "dist-packages")   # folders of packages, in a virtual environment beside the script for example


_VERSION_MAX = 256                                # letters of a version
_BLAS = re.compile(r"(blas|lapack|mkl|blis|onednn|dnnl)[^/]*\.so")   # files whose code decides bits


def libraries() -> Dict[str, str]:
    """Versions of Python, and of numpy and torch where they are imported; of torch how it was built, and what it takes of the CPU.

    "blas": the files of linear algebra that the process has loaded, which on Debian is an alternative.
    """
    found = {"python": platform.python_version()}
    for name in ("numpy", "torch"):
        if name in sys.modules:
            found[name] = str(getattr(sys.modules[name], "__version__", "unknown"))
    if "torch" in sys.modules:
        found.update(_torch(sys.modules["torch"]))
    if _blas():
        found["blas"] = " ".join(_blas())
    return {name: _line(version) for name, version in found.items() if _line(version)}


def _torch(torch: Any) -> Dict[str, str]:
    """What torch says of its build, as far as this version of torch says it."""
    try:
        text = torch.__config__.show()
    except (AttributeError, RuntimeError):
        return {}
    patterns = {"torch.blas": r"BLAS_INFO=([^,\s]+)", "torch.cpu": r"CPU capability usage: *(\S+)", "torch.onednn": r"MKL-DNN v?(\S+)", "torch.mkl": r"Math Kernel Library Version (\S+)"}
    found = {name: match.group(1) for name, match in ((name, re.search(pattern, text)) for name, pattern in patterns.items()) if match}
    commit = str(getattr(getattr(torch, "version", None), "git_version", None) or "Unknown")
    if commit != "Unknown":
        found["torch.commit"] = commit
    return found


def _blas() -> List[str]:
    try:
        with open("/proc/self/maps", encoding="utf-8", errors="replace") as file:
            paths = {line.split(maxsplit=5)[5].strip() for line in file if "/" in line}
    except (OSError, IndexError):
        return []
    return sorted({os.path.basename(path) for path in paths if _BLAS.search(os.path.basename(path))})


def _line(version: str) -> str:
    return "".join(letter if letter.isprintable() else "?" for letter in version)[:_VERSION_MAX].strip()


def modules() -> List[Dict[str, str]]:
    """Path and SHA-256 of the script, and of each loaded module whose file is below the script's folder.

    A path is relative to the working directory where the file is below it, and absolute else.  Installed packages are left out.
    """
    main = getattr(sys.modules.get("__main__"), "__file__", None)
    if not main:
        return []
    script = os.path.realpath(main)
    folder = os.path.dirname(script)
    paths = {script}
    for module in list(sys.modules.values()):
        file = getattr(module, "__file__", None)
        if isinstance(file, str):
            path = os.path.realpath(file)
            inside = os.path.relpath(path, folder).split(os.sep)
            if inside[0] != os.pardir and not any(each in _INSTALLED for each in inside) and os.path.isfile(path):
                paths.add(path)
    return [{"path": _shown(path), "sha256": _digest(path)} for path in sorted(paths)]


def _shown(path: str) -> str:
    here = os.path.realpath(os.curdir)
    return os.path.relpath(path, here) if path.startswith(here.rstrip(os.sep) + os.sep) else path


def _digest(path: str) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        for piece in iter(lambda: file.read(1 << 20), b""):
            digest.update(piece)
    return digest.hexdigest()
