"""A task file that imports a kernel language that is not installed."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tilewright.errors import CompilerMissing
from tilewright.task import loading, missing_language
from tilewright.task.loading import load_task

LANGUAGE = "language_of_nobody"
HEAD = f"""\
import tilewright as tw
import {LANGUAGE}
import {LANGUAGE}.language as lang
from {LANGUAGE}.tools import Descriptor

@{LANGUAGE}.jit
def there(x, y, BLOCK: lang.constexpr):
    lang.store(y, lang.load(x))

def own(x, y, config):
    return tw.Launch(len, (1,), (x, y))
"""
TAIL = """
space = tw.Space(constants={"TILE": (1, 2)}, shipped={"TILE": 1})
shared = dict(
    name="copy", tensors={"x": tw.Tensor(("N",), "float32"), "y": tw.Output(("N",), "float32")},
    reference=lambda x: x, flops=lambda N: N, workloads={"one": {"N": 8}},
)
"""
USES = {
    "the kernel": "launch = lambda x, y: tw.Launch(there, (1,), (x, y))\n",
    "a function of the language": f"def launch(x, y):\n    return tw.Launch(len, ({LANGUAGE}.cdiv(8, 4),), (x, y))\n",
    "a helper": "def made(*a):\n    return Descriptor(*a)\nlaunch = lambda x, y: tw.Launch(len, (1,), made(x, y))\n",
    "an inner function": "def launch(x, y):\n    inner = lambda: there\n    return tw.Launch(inner(), (1,), (x, y))\n",
    "a partial": "import functools\nlaunch = functools.partial(tw.Launch, there, (1,), ())\n",
    "a closure": "def over(kernel):\n    return lambda x, y: tw.Launch(kernel, (1,), (x, y))\nlaunch = over(there)\n",
    "another file": "from beside import theirs\ndef launch(x, y):\n    return tw.Launch(theirs, (1,), (x, y))\n",
}  # fmt: skip
LEFT_OUT = f"it needs {LANGUAGE}, which is not installed; fix: pip install 'tilewright[nobody]'"


@pytest.fixture(autouse=True)
def missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(missing_language.EXTRAS, LANGUAGE, "tilewright[nobody]")
    (tmp_path / "beside.py").write_text(f"import {LANGUAGE}\ntheirs = {LANGUAGE}.jit(len)\n")


def written(folder: Path, launch: str, *implementations: str) -> str:
    each = ", ".join(f"{name!r}: tw.Implementation({name}, space)" for name in implementations)
    (file := folder / "ops.py").write_text(
        f"{HEAD}{launch}{TAIL}task = tw.Task(implementations={{{each}}}, **shared)\n"
    )
    return str(file)


@pytest.mark.parametrize("use", USES)
def test_the_other_implementations_are_loaded(tmp_path: Path, use: str) -> None:
    task = load_task(written(tmp_path, USES[use], "launch", "own"))
    assert list(task.implementations) == ["own"]
    assert task.left_out == (f"implementation 'launch' is left out: {LEFT_OUT}",)
    assert [str(config) for config in task.space.configurations(90, {"N": 8})] == [
        "implementation=own,TILE=1", "implementation=own,TILE=2",
    ]  # fmt: skip
    assert not [name for name in sys.modules if name.startswith(LANGUAGE) or name == "beside"]


@pytest.mark.parametrize(
    "task",
    [
        "tw.Task(implementations={'one': tw.Implementation(launch, space)}, **shared)",
        "tw.Task(launch=own, space=space, **shared)",
    ],
    ids=["no other implementation", "one kernel"],
)
def test_if_nothing_else_is_left_the_line_is_as_before(tmp_path: Path, task: str) -> None:
    (file := tmp_path / "ops.py").write_text(f"{HEAD}{USES['the kernel']}{TAIL}task = {task}\n")
    with pytest.raises(CompilerMissing) as caught:
        load_task(str(file))
    assert str(caught.value) == f"ops.py:2: {LEFT_OUT.removeprefix('it ')}"


def test_a_stand_in_that_breaks_the_file_is_not_what_the_user_reads(tmp_path: Path) -> None:
    file = written(tmp_path, f"class Kernel({LANGUAGE}.Kernel): pass\n{USES['the kernel']}", "launch", "own")
    with pytest.raises(CompilerMissing, match=f"needs {LANGUAGE}, which is not installed"):
        load_task(file)


def test_a_language_that_is_installed_is_never_replaced(tmp_path: Path) -> None:
    (tmp_path / LANGUAGE).mkdir()
    for module, text in (("__init__", "jit = len\n"), ("language", "constexpr = load = store = 1\n"), ("tools", "")):
        (tmp_path / LANGUAGE / f"{module}.py").write_text(text)
    with pytest.raises(loading.TaskError, match="cannot import name 'Descriptor'"):
        load_task(written(tmp_path, USES["the kernel"], "launch", "own"))
    for name in [name for name in sys.modules if name.startswith(LANGUAGE)]:
        del sys.modules[name]
