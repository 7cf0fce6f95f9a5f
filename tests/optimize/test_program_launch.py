"""The kept launch of a captured task, written in the library's own code where the program makes the launch."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from cuda.tile import tune
from tests.optimize.captured_norm import HOST, KERNEL, library, recorded, task_file
from tests.optimize.kit import H200, candidates

from tilewright.optimize.attempting import Builder, Variant
from tilewright.optimize.program_launch import in_program
from tilewright.optimize.versions.workspace import Workspace
from tilewright.playbook.analyses.edited_files import edited_files
from tilewright.playbook.base import Site
from tilewright.playbook.entries import persistent
from tilewright.task.loading import editable_files, load_task, where_is
from tilewright.task.task import Task

torch = pytest.importorskip("torch")
ROWS, COLUMNS = 640, 128


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program asks for the stream also while its launches are only described."""
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: None)


@dataclass
class Kept:
    """A captured task whose kernel was made persistent."""

    task: Task
    builder: Builder
    workspace: Workspace
    incumbent: Variant
    file: Path
    """The library's file."""

    def in_program(self) -> list[str]:
        return in_program(self.task, self.workspace, self.incumbent, 1)

    def patched(self, name: str = "") -> str:
        return self.workspace.texts()[self.file.with_name(name) if name else self.file]


@contextmanager
def kept(folder: Path, host: str = HOST, *, apart: bool = False, elsewhere: bool = False) -> Iterator[Kept]:
    """``apart``: whether the launch is in another file than the kernel. ``elsewhere``: whether it was recorded on a
    machine whose packages lie in another folder."""
    imports = "import cuda.tile as ct\nimport torch\n\nfrom .norms import cubic_norm\n"
    module = library(folder, KERNEL, imports + host) if apart else library(folder, KERNEL + host)
    if hasattr(module, "TIMES"):
        next(module.TIMES)  # the recorded process launches twice the rows that a new one does
    arguments = (torch.zeros(ROWS, COLUMNS, dtype=torch.bfloat16), torch.ones(2, dtype=torch.bfloat16))
    written = task_file(folder, recorded(module.normed, *arguments))
    if elsewhere:
        text = written.read_text()
        assert str(folder) in text[text.index("call=") :]
        written.write_text(text.replace(str(folder), "/elsewhere/site-packages"))
    task = load_task(str(written))
    texts = {path: path.read_text() for path in editable_files(task)}
    builder = Builder(
        candidates("torch"), task, where_is(task), H200, task.selected(None), folder / "versions", seconds=60
    )
    with Workspace.open(task, "run", folder / "home", datetime.date(2026, 11, 24)) as workspace:
        changed = _persistent(texts)
        workspace.keep(workspace.write_and_commit(0, changed, "persistent"))
        yield Kept(task, builder, workspace, builder.build_one("kept", changed), Path(str(module.__file__)))


def _persistent(texts: dict[Path, str]) -> dict[Path, str]:
    [files] = [files for files in edited_files(texts) if len(files.paths) == 2]
    source = files.source
    site = Site.at(source, source.functions["cubic_norm"], "", (4,))
    text = persistent.ENTRY.change(source, site, 4)
    head, _, space = text.rpartition("shipped=")
    text = f"{head}shipped={space.replace(repr('occupancy') + ': 4', repr('occupancy') + ': 2')}"
    return {**texts, **files.parted(text)}


def launch_lines(text: str) -> str:
    return " ".join(text[text.rindex("ct.launch") :].split())


def test_the_program_launches_what_was_kept(tmp_path: Path) -> None:
    """The grid follows the program's own arithmetic and the GPU's number of SMs; the hint is in the decorator."""
    with kept(tmp_path) as case:
        [line] = case.in_program()
        assert line.endswith("normed makes exactly the kept launch")
        text, patch = case.patched(), case.workspace.patch()
    sms = "torch.cuda.get_device_properties(x.device).multi_processor_count"
    assert f"(min(grid[0], {sms} * 4),)" in launch_lines(text)
    assert launch_lines(text).endswith("(x, y, weights, scales, columns, float(eps), columns, grid[0]), ) return y")
    assert "@ct.kernel(occupancy=2)" in text
    assert all(f"+++ b/{name}" in patch for name in ("captured.py", f"library_of_{tmp_path.name}/norms.py"))
    assert case.file.read_text() == KERNEL + HOST, "the user's own file is not changed"


@pytest.mark.long
def test_a_launch_that_was_recorded_on_another_machine(tmp_path: Path) -> None:
    with kept(tmp_path, elsewhere=True) as case:
        [line] = case.in_program()
        text = case.patched()
    assert "the launch in norms.py:" in line and "multi_processor_count * 4" in launch_lines(text)


@pytest.mark.long
def test_a_launch_in_another_file_than_the_kernel(tmp_path: Path) -> None:
    with kept(tmp_path, apart=True) as case:
        [line] = case.in_program()
        host, norms = case.patched("host.py"), case.patched("norms.py")
    assert "the launch in host.py:12 is changed, too" in line
    assert "multi_processor_count * 4" in launch_lines(host)
    assert "@ct.kernel(occupancy=2)" in norms


SEARCHED = """

def _configurations():
    if torch.cuda.get_device_capability()[0] < 9:
        yield SimpleNamespace(occupancy=1)
    else:
        yield SimpleNamespace(occupancy=8)
        yield SimpleNamespace(occupancy=4)


KNOWN = {}


def normed(x, weights, eps=1e-6):
    rows, columns = x.shape
    y = torch.empty_like(x)
    scales = torch.empty(rows, dtype=torch.float32, device=x.device)
    stream = torch.cuda.current_stream()
    if columns not in KNOWN:
        result = exhaustive_search(
            list(_configurations()), stream, lambda cfg: (rows, 1, 1), cubic_norm,
            lambda cfg: (x, y, weights, scales, columns, float(eps), columns),
            lambda cfg: {"occupancy": cfg.occupancy},
        )
        best = result.best.config
        KNOWN[columns] = best, cubic_norm.replace_hints(occupancy=best.occupancy)
    best, tuned = KNOWN[columns]
    ct.launch(stream, (rows, 1, 1), tuned, (x, y, weights, scales, columns, float(eps), columns))
    return y
"""
SEARCH = "from types import SimpleNamespace\n\nfrom cuda.tile.tune import exhaustive_search\n"


def second(configurations: list[Any], *_: Any, **__: Any) -> Any:
    """In place of a search, which times on a GPU."""
    return SimpleNamespace(best=SimpleNamespace(config=configurations[1]))


@pytest.fixture
def searching(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tune, "exhaustive_search", second)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: (9, 0))


@pytest.mark.long
def test_a_launch_whose_configuration_is_searched(tmp_path: Path, searching: None) -> None:
    """Grid and arguments change in the search and after it, and the list gets the kept configuration."""
    with kept(tmp_path, SEARCH + SEARCHED) as case:
        [line] = case.in_program()
        assert line.endswith("normed makes exactly the kept launch, if its search chooses the kept configuration")
        text = case.patched()
    flat = " ".join(text.split())
    grid = "min(rows, torch.cuda.get_device_properties(x.device).multi_processor_count * 4)"
    assert flat.count(grid) == 2 and "lambda cfg: (rows, 1, 1)" not in flat
    assert flat.count("columns, rows)") == 2, "the number of items is passed in both"
    old = "yield SimpleNamespace(occupancy=4)\n"
    assert f"        {old}        {old.replace('4', '2')}" in text and "yield SimpleNamespace(occupancy=1)" in text
    assert "@ct.kernel(occupancy=4)" in text, "the search sets this hint"


@pytest.mark.long
def test_a_search_and_a_launch_that_share_variables(tmp_path: Path, searching: None) -> None:
    """As in TileGym's softmax: each variable is changed once."""
    grid, args = "(rows, 1, 1)", "(x, y, weights, scales, columns, float(eps), columns)"
    host = SEARCHED.replace(f"lambda cfg: {grid}", "lambda _: grid").replace(f"lambda cfg: {args}", "lambda _: args")
    host = host.replace(grid, "grid").replace(args, "args")
    host = host.replace("    stream =", f"    grid = {grid}\n    args = {args}\n    stream =")
    with kept(tmp_path, SEARCH + host) as case:
        [line] = case.in_program()
        assert "normed makes exactly the kept launch" in line
        text = case.patched()
    flat = " ".join(text.split())
    assert "grid = (min(rows, torch.cuda.get_device_properties(x.device).multi_processor_count * 4),)" in flat
    assert "args = (x, y, weights, scales, columns, float(eps), columns, rows)" in flat
    assert "lambda _: grid" in flat and "ct.launch(stream, grid, tuned, args)" in flat


@pytest.mark.long
def test_a_configuration_that_the_list_has_is_not_added_again(tmp_path: Path, searching: None) -> None:
    listed = SEARCHED.replace("SimpleNamespace(occupancy=8)", "SimpleNamespace(occupancy=2)")
    with kept(tmp_path, SEARCH + listed) as case:
        [line] = case.in_program()
        text = case.patched()
    assert "normed makes exactly the kept launch" in line
    assert text.count("yield SimpleNamespace(occupancy=2)") == 1


@pytest.mark.long
def test_a_variable_that_something_else_reads_stays(tmp_path: Path, searching: None) -> None:
    host = SEARCHED.replace("(rows, 1, 1)", "grid")
    host = host.replace("    stream =", "    grid = (rows, 1, 1)\n    print(grid)\n    stream =")
    with kept(tmp_path, SEARCH + host) as case:
        [line] = case.in_program()
        text = case.patched()
    assert "normed makes exactly the kept launch" in line
    assert "    grid = (rows, 1, 1)\n" in text and text.count("min(grid[0], torch") == 2


def test_a_hint_that_was_not_searched_is_searched_too(tmp_path: Path, searching: None) -> None:
    """Only the kept configuration has it; the others keep what the kernel had."""
    host = SEARCHED.replace("occupancy=8", "num_ctas=2").replace("occupancy=4", "num_ctas=1")
    with kept(tmp_path, SEARCH + host.replace("occupancy", "num_ctas")) as case:
        [line] = case.in_program()
        text = case.patched()
    assert "normed makes exactly the kept launch" in line
    squeezed = "".join(text.split()).replace(",)", ")")
    assert '{"num_ctas":cfg.num_ctas,"occupancy":getattr(cfg,"occupancy",4)}' in squeezed
    assert 'cubic_norm.replace_hints(num_ctas=best.num_ctas,occupancy=getattr(best,"occupancy",4))' in squeezed
    assert "yieldSimpleNamespace(num_ctas=1,occupancy=2)" in squeezed and "@ct.kernel(occupancy=4)" in text


OTHER_SEARCHES = {
    "another search": (
        "    return y\n",
        "    other = x, y, weights, scales, 1, eps, 1\n"
        "    exhaustive_search([1, 2], stream, lambda n: (n,), cubic_norm, lambda n: other)\n    return y\n",
        "launches what 'tuned' holds, not cubic_norm",
    ),
    "a search elsewhere": (
        "KNOWN = {}",
        "KNOWN = {}\n\n\ndef other(*args):\n    exhaustive_search([1], 0, lambda n: (n,), cubic_norm, lambda n: args)",
        "launches cubic_norm, too, with fewer arguments",
    ),
    "two names": ("lambda cfg: (rows, 1, 1)", "lambda one: (rows, 1, 1)", "name its configuration in two ways"),
    "a function": ("lambda cfg: (rows, 1, 1)", "grid_of", "grid_fn of the search is no lambda with one parameter"),
    "no list": (
        "yield SimpleNamespace(",
        "yield from made(",
        "no list of literals has the captured configuration; fix: ",
    ),
    "another list": (
        "list(_configurations())",
        "[*made(8), *made(4)]",
        "with the patch, normed launches cubic_norm with",
    ),
}
MADE = f"""

def made(occupancy):
    return [SimpleNamespace(**dict([("occupancy", occupancy)]))]


def grid_of(cfg):
    return ({ROWS}, 1, 1)
"""


@pytest.mark.parametrize(("old", "new", "reason"), OTHER_SEARCHES.values(), ids=OTHER_SEARCHES)
def test_a_search_that_is_not_understood(tmp_path: Path, searching: None, old: str, new: str, reason: str) -> None:
    with kept(tmp_path, SEARCH + MADE + SEARCHED.replace(old, new)) as case:
        [line] = case.in_program()
    assert reason in line


ON_ONE_LINE = {
    "a lambda": "launch = lambda x, y, weights, scales, eps:",
    "a function": "def launch(x, y, weights, scales, eps):",
    "a default": "def launch(*args, go=lambda x, y, weights, scales, eps:",
}


@pytest.mark.parametrize("how", [pytest.param("a lambda", marks=pytest.mark.long), "a function", "a default"])
def test_a_launch_in_a_function_of_one_line(tmp_path: Path, how: str) -> None:
    """Its name is that of a function of the task file, too."""
    call = HOST[HOST.index("ct.launch(") : HOST.index("    return y")].rstrip()
    inside = call.replace("grid", "(x.shape[0], 1, 1)").replace("columns", "x.shape[1]")
    head = f"\n\n{ON_ONE_LINE[how]} {inside}"
    head += "): go(*args)" if how == "a default" else ""
    host = HOST.replace(call, "launch(x, y, weights, scales, eps)")
    with kept(tmp_path, f"{head}\n{host}") as case:
        [line] = case.in_program()
        text = case.patched()
    assert "the launch in norms.py:33 is changed, too" in line
    compile(text, "norms.py", "exec")
    assert "(min(x.shape[0], torch.cuda.get_device_properties(x.device).multi_processor_count * 4),)" in text
    assert "float(eps), x.shape[1], x.shape[0])" in text
    assert text.endswith(host)


def test_a_launch_that_stayed_needs_no_change_and_one_without_its_source_is_refused(tmp_path: Path) -> None:
    with kept(tmp_path) as case:
        before = case.builder.build_one("before", case.workspace.texts(case.workspace.base_commit))
        assert in_program(case.task, case.workspace, before, 1) == []
        captured: Any = getattr(case.task.reference, "__self__")  # noqa: B009
        [place] = [place for place in captured.call["places"] if place["file"] == str(case.file)]
        other = case.file.with_name("other.py")
        captured.call = {**captured.call, "places": [{**place, "file": str(other)}]}
        [gone] = case.in_program()
        other.write_text(case.file.read_text())
        [elsewhere] = case.in_program()
        captured.call = None
        [unknown] = case.in_program()
    assert "no ct.launch(...) is found at other.py:38, because its file is gone" in gone
    assert "other.py:38 is not in an editable file; fix: load the file by tilewright.editable" in elsewhere
    assert "does not say where the program made the launch" in unknown


@dataclass(frozen=True)
class Unwritable:
    """A form of the program's launch, and the reason why the kept launch cannot be written there."""

    old: str
    new: str
    reason: str


UNWRITABLE = {
    "a partial": Unwritable("ct.launch(", "functools.partial(ct.launch)(", "fix: if the file has changed since"),
    "a kernel chosen late": Unwritable(
        "cubic_norm, (", "KERNELS[columns > 64], (", "launches what 'KERNELS[columns > 64]' holds, not cubic_norm"
    ),
    "a grid of a function": Unwritable("(rows, 1, 1)", "shape_of(x)", "the grid 'grid' is not written as a tuple"),
    "a second launch of the kernel": Unwritable(
        "    return y",
        "    if rows == 7:\n        ct.launch(0, (1,), cubic_norm, (x, y, weights, scales, 1, eps, 1))\n    return y",
        "launches cubic_norm, too, with fewer arguments",
    ),
    "another launch each time": Unwritable(
        "(rows, 1, 1)",
        "(rows * next(TIMES) // 2, 1, 1)",
        "as it was, normed launches cubic_norm with the grid (320, 1, 1) instead of (640, 1, 1)",
    ),
}
NAMES = """import functools
import itertools

KERNELS = (cubic_norm, cubic_norm)
TIMES = itertools.count(1)


def shape_of(x):
    return (x.shape[0], 1, 1)
"""


@pytest.mark.parametrize("case", UNWRITABLE.values(), ids=UNWRITABLE)
def test_what_the_caller_must_launch_is_said(tmp_path: Path, case: Unwritable) -> None:
    """The patch then holds the kernel only, and one line says why, and what must be launched."""
    assert case.old in HOST
    with kept(tmp_path, NAMES + HOST.replace(case.old, case.new)) as made:
        before = made.patched()
        [line] = made.in_program()
        assert made.patched() == before
    assert "the patch does not change the program's launch" in line
    assert case.reason in line
    assert "must launch cubic_norm over (min(" in line
    assert "(here (528,))" in line
    assert "occupancy=2" in line
