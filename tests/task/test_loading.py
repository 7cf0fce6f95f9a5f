"""Finding the task in a file: whatever is wrong with the file is one line with its place and the choices."""

from __future__ import annotations

import importlib.util
import inspect
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tilewright.errors import RequestError, TaskError, UnknownChoice
from tilewright.task.loading import editable, editable_files, load_task, where_is

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


@pytest.mark.parametrize(("wanted", "name"), [("first", "one"), ("one", "one"), ("second", "two"), ("two", "two")])
def test_a_task_is_found_by_its_name_and_by_its_variable(write: Write, wanted: str, name: str) -> None:
    path = write("first = task_named('one')\nsecond = task_named('two')\n")
    assert load_task(f"{path}:{wanted}").name == name


def test_one_task_under_two_variables_is_one_task(write: Write) -> None:
    assert load_task(str(write("a = task_named('one')\nb = a\n"))).name == "one"


def test_several_tasks_are_listed(write: Write) -> None:
    path = write("first = task_named('one')\nsecond = task_named('two')\n")
    message = refused(path)
    assert "holds 2 tasks (one, two): name one, e.g. " in message
    assert message.endswith("ops.py:one")


def test_an_unknown_task_is_answered_with_the_choices(write: Write) -> None:
    path = write("first = task_named('one')\nsecond = task_named('two')\n")
    assert refused(f"{path}:three", UnknownChoice).endswith("ops.py 'three'; known: one, two")
    assert refused(f"{path}:", UnknownChoice).endswith("ops.py is empty; known: one, two")


def test_a_file_without_a_task_says_how_to_make_one(write: Write) -> None:
    assert "holds no task: bind a tilewright.Task to a name" in refused(write("x = 3\n"))
    assert "'one'; known: none" in refused(f"{write('x = 3')}:one", UnknownChoice)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    assert refused(tmp_path / "none.py", RequestError).startswith("no such task file: ")
    assert refused(f"{tmp_path}/none.py:one", RequestError).endswith("none.py")
    assert refused(tmp_path, RequestError) == f"{tmp_path} is a folder; name a task file in it"


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
    ("line", "fix"),
    [
        ("import no_such_module\n", f"; fix: install it for {sys.executable}, or add its folder to PYTHONPATH"),
        (
            "from .kernels import silu\n",
            "relative imports refer to the folder of the file as the package test_an_import_that_fails_name",
        ),
        ("raise MemoryError\n", "import: MemoryError"),
    ],
)
def test_an_import_that_fails_names_the_fix(write: Write, line: str, fix: str) -> None:
    assert refused(write("\n" + line)).rstrip("0123456789").endswith(fix)  # the folder's name ends with a number


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
def test_a_space_that_cannot_be_used_is_one_line_with_its_place(write: Write, space: str, message: str) -> None:
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


@pytest.mark.parametrize("data", [b"\xff\xfex\x00=\x001\x00", b"x = 1\x00", b"x = '\xe9'\n", b"# coding: none\n"])
def test_a_file_that_is_not_text_names_the_fix(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "ops.py").write_bytes(data)
    assert refused(tmp_path / "ops.py").endswith("; fix: save the file as UTF-8 text")


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


# Versions of a file, and modules that a task edits


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An installed package with relative imports, which imports its own kernels; returns the folder above."""
    site = tmp_path / "site-packages"
    (site / "gym_of_loading" / "ops").mkdir(parents=True)
    (site / "gym_of_loading" / "__init__.py").write_text("from .ops import kernels\n")
    (site / "gym_of_loading" / "ops" / "__init__.py").write_text("")
    (site / "gym_of_loading" / "ops" / "utils.py").write_text("WIDTH = 32\n")
    (site / "gym_of_loading" / "ops" / "kernels.py").write_text(KERNELS)
    monkeypatch.syspath_prepend(str(site))
    yield site
    for name in [name for name in sys.modules if name.startswith("gym_of_loading")]:
        del sys.modules[name]


KERNELS = """\
from .utils import WIDTH
from gym_of_loading.ops import utils


def kernel():
    return "original", WIDTH
"""
EDITS = "import tilewright as tw\nkernels = tw.editable('gym_of_loading.ops.kernels')\n"


def copy_of(path: Path, old: str, new: str, name: str = "copy") -> dict[str, str]:
    """The overlay of a version in which ``old`` is ``new``."""
    copy = path.parent.parent / f"versions of {path.stem}" / name / path.name
    copy.parent.mkdir(parents=True, exist_ok=True)
    copy.write_text(path.read_text().replace(old, new))
    return {str(path): str(copy)}


def test_a_version_runs_where_the_original_lies(write: Write, tmp_path: Path) -> None:
    """Siblings are importable, `__file__` and `Task.file` are the user's; the code is the copy's."""
    write("NAME = 'from_beside'\n", name="sibling_of_version.py", head="")
    path = write(
        "from sibling_of_version import NAME\nimport pathlib\nHERE = pathlib.Path(__file__).parent\n"
        "def launch(x, y, config): return 'original', HERE, NAME\n"
        "import dataclasses\ntask = dataclasses.replace(task_named(NAME), launch=launch)\n"
    )
    task = load_task(str(path), copy_of(path, "'original'", "'changed'"))
    assert task.launch(0, 0, 0) == ("changed", tmp_path, "from_beside")
    assert task.file == path and task.edit == ("ops.py",)
    assert editable_files(task) == (path,)
    assert load_task(where_is(task)).launch(0, 0, 0)[0] == "original"


def test_a_task_file_in_a_package_may_import_relatively(write: Write, tmp_path: Path) -> None:
    folder = tmp_path / "package_of_a_task"
    folder.mkdir()
    (folder / "__init__.py").touch()
    write("NAME = 'from_beside'\n", name="package_of_a_task/beside.py", head="")
    path = write("task = task_named(NAME)\n", name="package_of_a_task/ops.py", head=f"from .beside import NAME\n{TASK}")
    before = list(sys.path)
    for files in (None, copy_of(path, "task_named(NAME)", "task_named(f'{NAME}!')")):
        assert load_task(str(path), files).name == "from_beside" + "!" * bool(files)
    assert sys.path == before
    path.write_text(f"from .missing import NAME\n{TASK}task = task_named(NAME)\n")
    assert "No module named 'package_of_a_task.missing'; relative imports refer to the folder" in refused(path)
    folder.rename(tmp_path / "not-a-name")
    assert "fix: import by full names, and put the package's parent on" in refused(tmp_path / "not-a-name" / "ops.py")


def test_versions_live_side_by_side_each_with_its_own_text(write: Write) -> None:
    """What a compiler reads with `inspect` is the text that was loaded, also when size and second are equal."""
    path = write(
        "def launch(x): return 1\nimport dataclasses\nt = dataclasses.replace(task_named('t'), launch=launch)\n"
    )
    tasks = [load_task(str(path), copy_of(path, "return 1", f"return {n}", str(n))) for n in range(2, 6)]
    tasks.append(load_task(str(path)))
    assert [task.launch(0) for task in tasks] == [2, 3, 4, 5, 1]
    sources = [inspect.getsource(task.launch) for task in tasks]
    assert sources == [f"def launch(x): return {n}\n" for n in (2, 3, 4, 5, 1)]
    assert len({task.launch.__module__ for task in tasks}) == 5


def test_a_copy_that_was_rewritten_within_a_second_is_read_again(write: Write) -> None:
    path = write(
        "def launch(x): return 1\nimport dataclasses\nt = dataclasses.replace(task_named('t'), launch=launch)\n"
    )
    for n in range(1, 9):
        files = copy_of(path, "return 1", f"return {n}")
        os.utime(files[str(path)], (1, 1))
        task = load_task(str(path), files)
        assert (task.launch(0), inspect.getsource(task.launch)) == (n, f"def launch(x): return {n}\n")
    assert not list(path.parent.rglob("__pycache__")), "nothing is written beside the user's file"


def test_a_module_that_a_task_edits_is_declared_by_loading_it(write: Write, package: Path) -> None:
    """P-13: what may be changed is what the task says."""
    path = write(EDITS + "task = task_named(kernels.kernel()[0])\n")
    task = load_task(str(path))
    kernels = package / "gym_of_loading" / "ops" / "kernels.py"
    assert task.name == "original"
    assert task.edit == (str(kernels),)
    assert editable_files(task) == (kernels,)
    assert load_task(where_is(task)).edit == task.edit


def test_a_version_of_a_package_module_imports_from_the_installed_package(write: Write, package: Path) -> None:
    path = write(EDITS + "from gym_of_loading.ops import kernels as installed, utils\n"
                 "assert kernels.utils is utils and installed.kernel() == ('original', 32)\n"
                 "assert kernels.__package__ == 'gym_of_loading.ops' and kernels is not installed\n"
                 "task = task_named('%s_%s' % kernels.kernel())\n")  # fmt: skip
    module = package / "gym_of_loading" / "ops" / "kernels.py"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        names = [load_task(str(path), copy_of(module, "original", new, new)).name for new in ("two", "three")]
    assert names == ["two_32", "three_32"]
    assert load_task(str(path)).name == "original_32"
    assert sys.modules["gym_of_loading.ops.kernels"].kernel() == ("original", 32)


def test_a_file_beside_the_task_can_be_edited_too(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "lib").mkdir()
    kernels = write("from sibling_of_kernels import NAME\n", name="lib/kernels.py", head="")
    write("NAME = 'sibling'\n", name="lib/sibling_of_kernels.py", head="")
    path = write("kernels = tw.editable('lib/kernels.py')\nassert kernels is tw.editable('lib/kernels.py')\n"
                 "task = task_named(kernels.NAME)\n")  # fmt: skip
    monkeypatch.chdir("/")
    task = load_task(str(path))
    assert (task.name, task.edit) == ("sibling", (str(kernels),))
    assert load_task(str(path), copy_of(kernels, "NAME\n", "NAME\nNAME = 'edited'\n")).name == "edited"
    absolute = write(f"kernels = tw.editable({str(kernels)!r})\ntask = task_named(kernels.NAME)\n", name="b.py")
    assert load_task(str(absolute)).edit == (str(kernels),)


def test_what_a_task_declares_is_what_may_be_edited(write: Write, package: Path) -> None:
    """A file of several tasks says for each what is its own."""
    write("", name="kernels.py", head="")
    path = write(EDITS + "from dataclasses import replace\nbeside = tw.editable('kernels.py')\n"
                 "def edits(*names): return replace(task_named(names[0]), edit=names)\n"
                 "own = edits('ops.py')\nboth = edits('kernels.py', 'gym_of_loading.ops.kernels', './ops.py')\n"
                 "by_file = edits(kernels.__file__)\n"
                 "every = task_named('every')\n")  # fmt: skip
    module = package / "gym_of_loading" / "ops" / "kernels.py"
    beside = path.parent / "kernels.py"
    assert load_task(f"{path}:own").edit == ("ops.py",)
    assert editable_files(load_task(f"{path}:both")) == (beside, module, path)
    assert editable_files(load_task(f"{path}:by_file")) == (module,)
    assert editable_files(load_task(f"{path}:every")) == (module, beside)


@pytest.mark.parametrize("name", ["other.py", "/etc/passwd", "gym.ops"])
def test_a_file_that_the_task_does_not_load_cannot_be_edited(write: Write, name: str) -> None:
    write("", name="other.py", head="")
    path = write(f"import dataclasses\nt = dataclasses.replace(task_named('t'), edit=({name!r},))\n")
    message = refused(path)
    assert f"edit names '{name}', which is neither ops.py nor loaded by editable; fix: " in message
    assert message.endswith(f'tilewright.editable("{name}")')


def test_a_version_that_is_not_loaded_is_said(write: Write, package: Path) -> None:
    """Else the original would be measured under the version's name: here a helper imports once for all."""
    write("import tilewright as tw\nkernels = tw.editable('gym_of_loading.ops.kernels')\n",
          name="helper_of_loading.py", head="")  # fmt: skip
    path = write("from helper_of_loading import kernels\ntask = task_named(kernels.kernel()[0])\n")
    module = package / "gym_of_loading" / "ops" / "kernels.py"
    assert load_task(str(path)).name == "original"
    with pytest.raises(TaskError, match="does not load .*kernels.py through editable .*outside any function"):
        load_task(str(path), copy_of(module, "original", "two"))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ("'no_such_module_of_loading'", "no such module; fix: write a file's name with .py"),
        ("'gym_of_loading.none'", "no such module"),
        ("'none_of_loading.ops'", "its package does not import: ModuleNotFoundError: No module named 'none_of"),
        ("'.ops'", "its package does not import: "),
        ("'none.py'", "no such file: /"),
        ("'ops.py'", "is the task file itself, which may be edited without this call"),
        ("'math'", "the module is not a Python file but "),
        ("'gym_of_loading.ops.broken'", "broken.py:3: does not import: ZeroDivisionError: division by zero"),
    ],
)
def test_a_module_that_cannot_be_edited_is_one_line(write: Write, package: Path, call: str, message: str) -> None:
    (package / "gym_of_loading" / "ops" / "broken.py").write_text("\n\n1 / 0\n")
    said = refused(write(f"\nm = tw.editable({call})\n"))
    assert said.startswith("ops.py:14: ")
    assert message in said


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("def broken(:\n", "ops.py:1: does not import: SyntaxError: "),
        ("x = 1\n1 / 0\n", "ops.py:2: does not import: ZeroDivisionError: "),
        ("x = 1\n", "holds no task"),
        ("import sys\nsys.exit()\n", "ops.py:2: does not import: SystemExit"),
        ("\0", "does not import: "),
    ],
)
def test_a_version_that_does_not_import_gives_the_line_of_the_users_file(write: Write, text: str, message: str) -> None:
    path, before = write("task = task_named('one')\n"), list(sys.path)
    files = copy_of(path, path.read_text(), text)
    with pytest.raises(TaskError) as caught:
        load_task(str(path), files)
    assert message in str(caught.value) and "\n" not in str(caught.value)
    assert sys.path == before
    assert load_task(str(path)).name == "one"


def test_a_version_that_is_missing_is_one_line(write: Write) -> None:
    path = write("task = task_named('one')\n")
    with pytest.raises(TaskError, match="does not import: FileNotFoundError: "):
        load_task(str(path), {str(path): str(path.parent / "no such folder" / "ops.py")})


def test_outside_of_loading_a_task_a_module_is_the_original(package: Path) -> None:
    module = editable("gym_of_loading.ops.kernels")
    assert module.kernel() == ("original", 32)
    assert module is not sys.modules["gym_of_loading.ops.kernels"]
    assert editable("test_loading.py").__file__ == str(Path(__file__).parent / "test_loading.py")
    assert editable("gym_of_loading").kernels is sys.modules["gym_of_loading.ops.kernels"], "a whole package"


def test_a_task_that_loads_another_leaves_its_own_declarations(write: Write, package: Path) -> None:
    inner = write("task = task_named('inner')\n", name="inner.py")
    path = write(f"from tilewright.task.loading import load_task\ninner = load_task({str(inner)!r}).name\n"
                 + EDITS + "task = task_named(inner)\n")  # fmt: skip
    assert [file.name for file in editable_files(load_task(str(path)))] == ["kernels.py"]


def test_the_backward_of_a_version_is_found_in_the_users_file(write: Write) -> None:
    path = write("import dataclasses\nspace = tw.Space(constants={'TILE': (1,)}, shipped={'TILE': 1})\n"
                 "back = tw.Task(name='back', tensors={'d_y': tw.Tensor(('M',), 'float32'), 'd_x': "
                 "tw.Output(('M',), 'float32')}, reference=lambda d_y: d_y, launch=lambda d_y, d_x: None, "
                 "flops=lambda M: M, space=space, workloads={'s': {'M': 8}})\n"
                 "task = dataclasses.replace(task_named('t'), backward=back)\n")  # fmt: skip
    task = load_task(f"{path}:task", copy_of(path, "x", "x"))
    assert task.backward is not None and where_is(task.backward) == f"{path}:back"


@pytest.mark.skipif(importlib.util.find_spec("tilegym") is None, reason="TileGym is not installed")
def test_a_kernel_of_tilegym_is_loaded_as_a_version(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "triton", None)  # with it TileGym asks for a GPU when it is imported
    path = write("a = tw.editable('tilegym.ops.cutile.attention')\ntask = task_named('t')\nLN2 = a.LN2\n"
                 "import dataclasses\ntask = dataclasses.replace(task, launch=a._fmha_kernel._pyfunc)\n")  # fmt: skip
    (module,) = editable_files(load_task(str(path)))
    assert module.parts[-4:] == ("tilegym", "ops", "cutile", "attention.py")
    copy = tmp_path / "copy.py"
    copy.write_text("# one line more\n" + module.read_text())
    task = load_task(str(path), {str(module): str(copy)})
    assert inspect.getsourcefile(task.launch) == str(copy)
    assert "def _fmha_kernel(" in inspect.getsource(task.launch)
