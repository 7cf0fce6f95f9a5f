"""What is on the hot path and what only a miss runs (A-21, A-47, Part 7 check 8)."""

from __future__ import annotations

import ast
from pathlib import Path
from textwrap import dedent, indent

import pytest

from tilewright.lint.guards import on_every_call
from tilewright.source.source_file import SourceFile

HEAD = "import functools\n_cache = {}\nkernel = object()\n_one = None\n"


def hot(body: str, before: str = "") -> bool:
    """Whether ``make()`` runs on every call of a function with this body."""
    text = f"{HEAD}{dedent(before)}def run(key, other, off):\n{indent(dedent(body), '    ')}"
    text += "    _cache[key] = other\n"
    file = SourceFile(Path("m.py"), text)
    (call,) = (one for one in file.every(ast.Call) if ast.unparse(one.func).endswith("make"))
    return on_every_call(file, call)


@pytest.mark.parametrize(
    "body",
    [
        "if key not in _cache:\n    kernel.make()\n",
        "if off and key not in _cache:\n    kernel.make()\n",
        "if key in _cache:\n    return _cache[key]\nkernel.make()\n",
        "if key in _cache:\n    found = 1\nelse:\n    kernel.make()\n",
        "found = _cache.get(key)\nif found is None:\n    found = kernel.make()\n",
        "found = _cache.get(key)\nif not found:\n    found = kernel.make()\n",
        "found = _cache.get(key)\nif found is not None:\n    return found\nwith other:\n    kernel.make()\n",
        "if (found := _cache.get(key)) is None:\n    kernel.make()\n",
        "try:\n    return _cache[key]\nexcept KeyError:\n    kernel.make()\n",
        "try:\n    return _cache[key]\nexcept KeyError:\n    pass\nkernel.make()\n",
        "global _one\nif _one is None:\n    _one = kernel.make()\n",
        "found = kernel.make() if key not in _cache else _cache[key]\n",
        "return lookup(key, lambda: kernel.make())\n",
        "if force_retune or key not in _cache:\n    kernel.make()\n",
        "if not self.force and key in _cache:\n    found = 1\nelse:\n    kernel.make()\n",
    ],
)
def test_only_on_a_miss(body: str) -> None:
    assert not hot(body)


@pytest.mark.parametrize(
    "body",
    [
        "kernel.make()\n",
        "if off:\n    return kernel.make()\n",
        "if key not in _cache:\n    pass\nkernel.make()\n",
        "if key in _cache:\n    kernel.make()\n",
        "if off or key not in _cache:\n    kernel.make()\n",
        "if off is None:\n    off = kernel.make()\n",
        "if key not in (1, 2):\n    kernel.make()\n",
        "_cache.setdefault(key, kernel.make())\n",
        "for one in other:\n    kernel.make()\n",
    ],
)
def test_on_every_call(body: str) -> None:
    assert hot(body)


def test_a_function_is_as_guarded_as_its_callers() -> None:
    assert not hot("if key not in _cache:\n    _made()\n", "def _made():\n    return kernel.make()\n\n\n")
    assert hot("_made()\n", "def _made():\n    return kernel.make()\n\n\n")
    assert hot("_made()\n", "def _made():\n    return _inner()\n\n\ndef _inner():\n    return kernel.make()\n\n\n")


@pytest.mark.parametrize("decorator", ["functools.cache", "functools.lru_cache(maxsize=None)"])
def test_a_memoised_function_runs_once_a_key(decorator: str) -> None:
    assert not hot("_made()\n", f"@{decorator}\ndef _made():\n    return kernel.make()\n\n\n")


def test_the_top_of_a_file_runs_once() -> None:
    assert not hot("pass\n", "small = kernel.make()\n\n\n")


def test_functions_that_call_each_other_end() -> None:
    before = "def _a():\n    _b()\n\n\ndef _b():\n    _a()\n    kernel.make()\n\n\n"
    assert not hot("pass\n", before)
