"""A copy that has only some files of a package replaces only these."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PROGRAM = """
import importlib.util, sys
from tilewright.runtime.copied import TilewrightCopied
sys.path.insert(0, sys.argv[1])
sys.meta_path.insert(0, TilewrightCopied(*sys.argv[1:]))
from package.inner.changed import said
import package.inner.spaces.own as own
print(said, own.said)
"""


def test_the_neighbours_of_a_changed_module_are_found(tmp_path: Path) -> None:
    """Also in an inner package, of which the copy has a folder without ``__init__.py``, and in a namespace package."""
    root, copy = tmp_path / "root", tmp_path / "copy"
    files = {
        "__init__.py": "", "inner/__init__.py": "name = 'inner'", "inner/neighbour.py": "said = 'neighbour'",
        "inner/changed.py": "said = 'old'", "inner/spaces/own.py": "said = 'own'", "inner/spaces/other.py": "",
    }  # fmt: skip
    for name, text in files.items():
        (root / "package" / name).parent.mkdir(parents=True, exist_ok=True)
        (root / "package" / name).write_text(text)
    changed = "from . import name\nfrom .neighbour import said\n\nsaid = f'{name}, {said}, new'\n"
    for name, text in {"inner/changed.py": changed, "inner/spaces/other.py": ""}.items():
        (copy / "package" / name).parent.mkdir(parents=True, exist_ok=True)
        (copy / "package" / name).write_text(text)
    command = [sys.executable, "-c", PROGRAM, str(root), str(copy)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.stdout == "inner, neighbour, new own\n", done.stderr
