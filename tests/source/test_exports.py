"""The names that a module exports are those that Python finds in it after loading it."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from tilewright.errors import RequestError
from tilewright.source.exports import exports

MODULE = """'''Text.'''
import os.path, json as coder
from math import pi as circle, sqrt
try:
    import nothing_of_this_name as missing
except ImportError as error:
    missing = None
ONE, (TWO, *REST) = 1, (2, 3)
typed: int = 4
untyped = walrus = (inner := 5)
if ONE:
    def conditional(argument):
        local = argument
        return local
else:
    otherwise = 1
for turn in range(2):
    pass
class Made:
    attribute = 1
    def method(self):
        return self
async def later():
    global told
    told = 1
match TWO:
    case 2 as matched:
        pass
"""


def loaded(path: Path) -> set[str]:
    spec = importlib.util.spec_from_file_location("exported", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return {name for name in vars(module) if not name.startswith("__")}


def test_names_are_those_of_the_loaded_module(tmp_path: Path) -> None:
    (path := tmp_path / "module.py").write_text(MODULE)
    found = exports(path)
    assert found is not None
    assert loaded(path) <= found
    assert found - loaded(path) == {"error", "otherwise", "told"}, "only those that another way through the text makes"


@pytest.mark.parametrize(
    "text", ["from os import *", "def __getattr__(name): ...", "globals()['a'] = 1", "exec('a = 1')",
             "import sys\nsetattr(sys.modules[__name__], 'a', 1)"],
)  # fmt: skip
def test_names_that_the_text_does_not_show_are_unknown(text: str, tmp_path: Path) -> None:
    assert exports(tmp_path / "module.py", text) is None


@pytest.mark.parametrize("text", [b"def f(:\n", b"\xff\xfe", None])
def test_a_file_that_cannot_be_read_is_one_line(text: bytes | None, tmp_path: Path) -> None:
    path = tmp_path / "module.py"
    if text is not None:
        path.write_bytes(text)
    with pytest.raises(RequestError, match=r"module\.py") as raised:
        exports(path)
    assert "\n" not in str(raised.value)
