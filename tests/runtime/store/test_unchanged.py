"""What a stored row names is compared before it is executed, and said: here each file leaves a trace when it runs."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.runtime.made_winners import winner

from tilewright.cli import main as cli
from tilewright.errors import RequestError
from tilewright.runtime.capture.described import DescribedLaunch, described
from tilewright.runtime.key import digest
from tilewright.runtime.search.trials import label
from tilewright.runtime.store.unchanged import executed_files, unchanged_launches
from tilewright.runtime.store.verifying import source_problem
from tilewright.runtime.store.winners import Winner, Winners
from tilewright.source.needed import digest_of_needed

torch = pytest.importorskip("torch")
pytest.importorskip("cuda.tile")

TRACE = "import pathlib\npathlib.Path({trace!r}).touch()\n"
KERNEL = """
import cuda.tile as ct

@ct.kernel
def double(x, y, TILE: ct.Constant[int]):
    ct.store(y, (ct.bid(0),), ct.load(x, (ct.bid(0),), (TILE,)) * 2)
"""
NAME = "kernels_of_a_row"


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """A file that exists once code of the user's folder has run."""
    return tmp_path / "it ran"


@pytest.fixture
def entry(tmp_path: Path, trace: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Winner]:
    folder = tmp_path / "own"
    folder.mkdir()
    file = folder / f"{NAME}.py"
    file.write_text(TRACE.format(trace=str(trace)) + KERNEL)
    monkeypatch.syspath_prepend(folder)
    made = importlib.import_module(NAME).double
    launch = described(made, (2, 1, 1), (torch.zeros(256), torch.zeros(256), 128))
    launch = replace(launch, text=digest_of_needed(file, "double"))
    parts: dict[str, Any] = {"board": "NVIDIA H200 sm_90"}
    tile = {"TILE": 128}
    outcomes = ({"label": label(tile), "status": "timed", "us": 1.0},)
    yield forgotten(
        winner(digest(parts), kernel="double", parts=parts, config=tile, shipped=tile, outcomes=outcomes, index=0,
               launches={"winner": launch.to_json()}), trace)  # fmt: skip
    forgotten(winner(), trace)


def forgotten(entry: Winner, trace: Path) -> Winner:
    """As a new process would find it."""
    sys.modules.pop(NAME, None)
    importlib.invalidate_caches()
    trace.unlink(missing_ok=True)
    return entry


def with_launch(entry: Winner, **changes: Any) -> Winner:
    assert entry.launches is not None
    launch = replace(DescribedLaunch.from_json(entry.launches["winner"]), **changes)
    return replace(entry, launches={"winner": launch.to_json()})


def test_an_unchanged_row_is_executed_and_its_file_named(entry: Winner, trace: Path, tmp_path: Path) -> None:
    assert executed_files([entry]) == (tmp_path / "own" / f"{NAME}.py",) and not trace.exists()
    assert source_problem(entry) == "" and trace.exists()


def a_changed_kernel(entry: Winner, folder: Path) -> Winner:
    file = folder / "own" / f"{NAME}.py"
    file.write_text(file.read_text().replace("* 2", "* 3"))
    return entry


def another_file(entry: Winner, folder: Path) -> Winner:
    other = folder / "other.py"
    other.write_text(TRACE.format(trace=str(folder / "it ran")))
    return with_launch(entry, file=str(other), module="__main__")


def a_module_of_another_file(entry: Winner, folder: Path) -> Winner:
    """Its own file is right, so only that is executed; the module that it names is not."""
    (folder / "own" / "hostile.py").write_text(TRACE.format(trace=str(folder / "it ran")))
    file = folder / "own" / f"{NAME}.py"
    file.write_text(KERNEL)
    return with_launch(entry, module="hostile")


def a_module_that_is_no_file_of_the_kernel(entry: Winner, folder: Path) -> Winner:
    (folder / "own" / "hostile.py").write_text(TRACE.format(trace=str(folder / "it ran")))
    return with_launch(entry, module="hostile", file="/nowhere/kernels.py")


def a_closure_over_another_module(entry: Winner, folder: Path) -> Winner:
    (folder / "own" / "hostile.py").write_text(TRACE.format(trace=str(folder / "it ran")))
    return with_launch(entry, closure={"helper": "module hostile"})


CHANGED = {
    a_changed_kernel: "has changed since it was launched",
    another_file: "does not define 'double'",
    a_module_of_another_file: "",
    a_module_that_is_no_file_of_the_kernel: "does not define 'double'",
    a_closure_over_another_module: "does not import",
    lambda entry, folder: with_launch(entry, text=""): "without the digest",
    lambda entry, folder: replace(entry, parts={"board": "another"}): "its key is not the digest of its parts",
    lambda entry, folder: replace(entry, config={"TILE": 2**30}): "TILE=1073741824 is none of the configurations",
}


@pytest.mark.parametrize("change", CHANGED, ids=lambda change: change.__name__)
def test_nothing_of_a_changed_row_is_executed(
    change: Callable[[Winner, Path], Winner], entry: Winner, trace: Path, tmp_path: Path
) -> None:
    changed = forgotten(change(entry, tmp_path), trace)
    problem = source_problem(changed)
    assert CHANGED[change] in problem and bool(problem) == bool(CHANGED[change]), problem
    assert not trace.exists()
    if problem:
        assert executed_files([changed]) == ()
        with pytest.raises(RequestError):
            unchanged_launches(changed)


@pytest.mark.parametrize("command", [("verify",), ("prune", "--missing-source", "--dry-run")], ids=" ".join)
def test_commands_say_what_they_execute(
    command: tuple[str, ...], entry: Winner, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    Winners(strict=True).put(entry)
    cli.main(("tuned", *command))
    said = capsys.readouterr().err
    assert f"note: executes the file of each unchanged kernel: {tmp_path / 'own' / NAME}.py" in said
