"""What a process has loaded: libraries with their versions, and the script's own modules with their digests."""

from __future__ import annotations

import hashlib
import os
import platform
import sys
from typing import Dict, List

_INSTALLED = ("site-packages", "dist-packages")   # folders of packages, in a virtual environment beside the script for example


def libraries() -> Dict[str, str]:
    """Versions of Python, numpy and torch, the latter two where they are imported."""
    found = {"python": platform.python_version()}
    for name in ("numpy", "torch"):
        if name in sys.modules:
            found[name] = str(getattr(sys.modules[name], "__version__", "unknown"))
    return found


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
