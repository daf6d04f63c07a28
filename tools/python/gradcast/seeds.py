"""Seeds of Python's, numpy's and torch's own random numbers."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import random
import sys
from typing import Any, Optional


def seed_all(seed: int) -> None:
    """Seeds random, and numpy and torch where they are imported.  seed: 64 bits."""
    random.seed(seed)
    if "numpy" in sys.modules:
        # The state is that of init_by_array, which takes both halves.
        sys.modules["numpy"].random.seed([seed & 0xFFFFFFFF, seed >> 32])
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(seed)


def seed_torch_when_imported(seed: int) -> None:
    """Seeds torch as soon as the script imports it.  Nothing is imported here: a script without torch does not pay for it."""
    if "torch" not in sys.modules:
        sys.meta_path.insert(0, _Torch(seed))


class _Torch:
    """A finder of the module torch alone, which it finds as the other finders do."""

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Optional[importlib.machinery.ModuleSpec]:
        if name != "torch":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def execute_and_seed(module: Any) -> None:
                execute(module)
                module.manual_seed(self._seed)

            spec.loader.exec_module = execute_and_seed   # type: ignore[method-assign]
        return spec
