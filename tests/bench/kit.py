"""Loads a script of bench/, which is no package."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

BENCH = Path(__file__).parents[2] / "bench"


def bench_module(name: str) -> ModuleType:
    """Returns the script as a module. What it imports from its folder is not left in `sys.modules`."""
    with pytest.MonkeyPatch.context() as patched:
        patched.syspath_prepend(str(BENCH))
        spec = importlib.util.spec_from_file_location(f"bench_{name}", BENCH / f"{name}.py")
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        patched.setitem(sys.modules, spec.name, module)
        spec.loader.exec_module(module)
        for each in [name for name in sys.modules if (BENCH / f"{name}.py").is_file()]:
            del sys.modules[each]
        return module
