"""Finding the task in a file: whatever is wrong with the file is one line with its place and the choices."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tilewright.errors import RequestError, TaskError, UnknownChoice
from tilewright.loading import load_task, where_is

Write = Callable[..., Path]

TASK = """\
import tilewright as tw

def task_named(name, space=None):
    return tw.Task(
        name=name,
        tensors={"x": tw.Tensor(("M",), "float32"), "y": tw.Output(("M",), "float32")},
        reference=lambda x: 2 * x,
        launch=lambda x, y, config: tw.Launch(None, (1,), (x, y)),
        flops=lambda M: M,
        space=space or tw.Space(constants={"TILE": (1,)}, shipped={"TILE": 1}),
        workloads={"small": {"M": 8}},
    )
"""


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write(text: str, name: str = "ops.py", head: str = TASK) -> Path:
        path = tmp_path / name
        path.write_text(head + text)
        return path

    return write


def refused(where: object, kind: type[Exception] = TaskError) -> str:
    with pytest.raises(kind) as caught:
        load_task(str(where))
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_one_task_needs_no_name(write: Write) -> None:
    path = write("scale = task_named('scale_rows')\n")
    task = load_task(str(path))
    assert task.name == "scale_rows"
    assert task.file == path
    assert task.edit == ("ops.py",)


@pytest.mark.parametrize(
    ("wanted", "name"), [("first", "one"), ("one", "one"), ("second", "two"), ("two", "two")]
)
def test_a_task_is_found_by_its_name_and_by_its_variable(write: Write, wanted: str, name: str) -> None:
    path = write("first = task_named('one')\nsecond = task_named('two')\n")
    assert load_task(f"{path}:{wanted}").name == name


def test_one_task_under_two_variables_is_one_task(write: Write) -> None:
    assert load_task(str(write("a = task_named('one')\nb = a\n"))).name == "one"


def test_several_tasks_are_listed(write: Write) -> None:
    path = write("first = task_named('one')\nsecond = task_named('two')\n")
    message = refused(path)
    assert "holds 2 tasks (one, two): say which, e.g. " in message
    assert message.endswith("ops.py:one")


def test_an_unknown_task_is_answered_with_the_choices(write: Write) -> None:
    path = write("first = task_named('one')\nsecond = task_named('two')\n")
    assert refused(f"{path}:three", UnknownChoice).endswith("ops.py 'three'; known: one, two")


def test_a_file_without_a_task_says_how_to_make_one(write: Write) -> None:
    assert "holds no task: bind a tilewright.Task to a name" in refused(write("x = 3\n"))
    assert "'one'; known: none" in refused(f"{write('x = 3')}:one", UnknownChoice)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    assert refused(tmp_path / "none.py", RequestError).startswith("no such task file: ")
    assert refused(f"{tmp_path}/none.py:one", RequestError).endswith("none.py")
    assert refused(tmp_path, RequestError).startswith("no such task file: ")


def test_a_file_that_is_not_python_is_refused(write: Write) -> None:
    assert "is not a Python file" in refused(write("", name="notes.txt"))


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("def broken(:\n", "ops.py:14: does not import: SyntaxError: "),
        ("if True:\n", "ops.py:14: does not import: IndentationError: "),
        ("import no_such_module\n", "ops.py:14: does not import: ModuleNotFoundError: No module named"),
        ("1 / 0\n", "ops.py:14: does not import: ZeroDivisionError: division by zero"),
        ("raise ValueError('first\\nsecond')\n", "ops.py:14: does not import: ValueError: first"),
        ("t = tw.Task(name='t')\n", "ops.py:14: does not import: TypeError: "),
        ("import sys\nsys.exit(3)\n", "ops.py:15: does not import: SystemExit: 3"),
    ],
)
def test_a_file_that_does_not_import_gives_its_line(write: Write, line: str, message: str) -> None:
    assert refused(write("\n" + line)).startswith(message)


@pytest.mark.parametrize(
    ("space", "message"),
    [
        ("tw.Space(constants={'TILE': ()}, shipped={'TILE': 1})", "constants['TILE'] is empty"),
        ("tw.Space(constants={'TILE': (1,)}, shipped={'TILE': 1}, only=[])", "only= is empty"),
        ("(n for n in range(3))", "space is a generator; pass tilewright.Space(only="),
        ("{'TILE': (1, 2)}", "space is a dictionary; pass tilewright.Space(constants="),
        ("[{'TILE': 1}]", "space is a list; pass tilewright.Space("),
        ("tw.Space(constants={'TILE': (1,)}, shipped={'TILES': 1})", "'TILES'"),
    ],
)
def test_a_space_that_cannot_be_used_is_one_line_with_its_place(
    write: Write, space: str, message: str
) -> None:
    """The line of the file in which it was made, not a line of Tilewright."""
    said = refused(write(f"\ntask = task_named('t', {space})\n"))
    assert message in said
    place = said.split(": ")[0]
    assert place in ("ops.py:4", "ops.py:14")


def test_the_folder_of_the_file_is_importable_while_it_loads(write: Write, tmp_path: Path) -> None:
    write("NAME = 'from_beside'\n", name="beside_of_loading.py", head="")
    path = write("from beside_of_loading import NAME\ntask = task_named(NAME)\n")
    before = list(sys.path)
    assert load_task(str(path)).name == "from_beside"
    assert sys.path == before


def test_the_search_path_is_as_before_after_a_failure(write: Write) -> None:
    before, modules = list(sys.path), set(sys.modules)
    refused(write("1 / 0\n"))
    assert sys.path == before
    assert not {name for name in set(sys.modules) - modules if name.startswith("tilewright_task")}


def test_a_syntax_error_in_an_imported_file_gives_the_line_of_the_import(write: Write) -> None:
    write("x = 1\n\n\ndef broken(:\n", name="broken_of_loading.py", head="")
    message = refused(write("\nimport broken_of_loading\n"))
    assert message.startswith("ops.py:14: does not import: SyntaxError: ")
    assert "broken_of_loading.py, line 4" in message


def test_two_files_of_one_name_are_two_modules(write: Write, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    one = write("task = task_named('one')\n")
    two = write("task = task_named('two')\n", name="other/ops.py")
    assert [load_task(str(path)).name for path in (one, two, one)] == ["one", "two", "one"]


def test_a_changed_file_is_read_again(write: Write) -> None:
    assert load_task(str(write("task = task_named('before')\n"))).name == "before"
    assert load_task(str(write("task = task_named('after_it')\n"))).name == "after_it"


def test_where_a_task_is_finds_it_again(write: Write) -> None:
    path = write("first = task_named('one')\nsecond = task_named('two')\n")
    task = load_task(f"{path}:second")
    assert load_task(where_is(task)) == task or load_task(where_is(task)).name == task.name == "two"


def test_a_file_with_a_colon_in_its_name_is_a_file(write: Write) -> None:
    path = write("task = task_named('odd')\n", name="a:b.py")
    assert load_task(str(path)).name == "odd"
    assert load_task(f"{path}:odd").name == "odd"
    assert load_task(where_is(load_task(str(path)))).name == "odd"


def test_a_relative_path_is_found_again_from_elsewhere(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write("task = task_named('one')\n")
    monkeypatch.chdir(path.parent)
    task = load_task("ops.py")
    monkeypatch.chdir("/")
    assert load_task(where_is(task)).name == "one"


def test_ctrl_c_while_a_file_loads_is_not_the_files_fault(write: Write) -> None:
    with pytest.raises(KeyboardInterrupt):
        load_task(str(write("raise KeyboardInterrupt\n")))
