"""Runs in their file, and the verdicts from them (X-13): intervals of whole runs, of one place only."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from tilewright.errors import StorageError
from tilewright.latencies.comparing import LatencyComparison, compare
from tilewright.latencies.gate import slower_by
from tilewright.latencies.records import Latency, Record
from tilewright.latencies.runs import Host, SuiteRun, append, appendable, current, load, revision

SRC = Path(__file__).parent.parent / "src"
HERE = Host("node1", "NVIDIA H200", "sm_90", 1)
BEFORE = (0.100, 0.103, 0.099, 0.104)


def run(median: float, place: Host = HERE, commit: str = "a", test: str = "t.py::test_perf[cutile]") -> SuiteRun:
    latency = Latency(median, 0.001, 1.0, median, median * 0.9, median * 1.1, 20, 8.0, {"kernel_name": "k"})
    versions = {"cuda-tile": "1.7.0"}
    return SuiteRun("2026-11-21", place, commit, "580", versions, {}, (Record(test, "cutile", {"forward": latency}),))


def runs(medians: Sequence[float]) -> tuple[SuiteRun, ...]:
    return tuple(map(run, medians))


def compared(after: Sequence[float], before: Sequence[float] = BEFORE) -> LatencyComparison:
    *beside, last = runs(after)
    return compare(last, beside, runs(before))


@pytest.mark.parametrize(
    ("factor", "verdict"),
    [(1.0, "no difference shown"), (1.1, "slower"), (0.8, "faster"), (1.02, "no difference shown")],
)
def test_verdicts_of_four_runs_against_four(factor: float, verdict: str) -> None:
    (one,) = compared([factor * t for t in BEFORE]).results
    assert one.verdict == verdict
    assert one.ratio is not None and one.ratio.decided
    assert one.ratio.low <= factor <= one.ratio.high
    assert (one.before_ms, one.after_ms) == pytest.approx((0.1015, factor * 0.1015))


@pytest.mark.parametrize(
    ("after", "before", "lacking"),
    [
        ([0.2], BEFORE, "1 run against 4: 3 more of this code"),
        ([0.2] * 3, BEFORE, "3 runs against 4: 1 more of this code"),
        ([0.2] * 4, BEFORE[:1], "4 runs against 1: 3 more in the baseline"),
        ([0.2], BEFORE[:1], "1 run against 1: 4 more of this code and 2 more in the baseline"),
    ],
)
def test_too_few_runs_say_how_many_are_missing(after: list[float], before: Sequence[float], lacking: str) -> None:
    """Never by a single number: twice as slow in one run is no verdict."""
    comparison = compared(after, before)
    assert [(one.verdict, one.reason) for one in comparison.results] == [("not enough runs", lacking)]
    assert not slower_by(comparison.results, 0.0)
    assert not comparison.decidable


def test_the_limit_is_held_against_the_whole_interval() -> None:
    comparison = compared([1.12 * t for t in BEFORE])
    assert comparison.results[0].ratio is not None
    sure = 100 * (comparison.results[0].ratio.low - 1)
    assert slower_by(comparison.results, sure - 0.01)
    assert not slower_by(comparison.results, sure + 0.01)
    assert sure < 12


@pytest.mark.parametrize(
    "other", [replace(HERE, gpu="NVIDIA B200"), replace(HERE, machine="node2"), replace(HERE, workers=4)]
)
def test_another_place_is_never_compared(other: Host) -> None:
    *beside, last = runs(BEFORE)
    comparison = compare(last, beside, tuple(run(t, other) for t in BEFORE))
    assert comparison.results[0].verdict == "new"
    (note,) = comparison.notes
    assert note.startswith("4 runs are not compared")
    assert str(other) in note


def test_runs_of_other_code_are_no_samples_of_this_one() -> None:
    beside = tuple(run(t, commit="b") for t in BEFORE)
    comparison = compare(run(0.1), beside, runs(BEFORE))
    assert comparison.results[0].verdict == "not enough runs"
    assert comparison.notes == ("4 earlier runs are not counted: they ran other revisions of the code",)


def test_what_else_changed_is_said() -> None:
    now = replace(run(0.1), driver="590", versions={"cuda-tile": "1.8.0"}, settings={"CUPTI": "0"})
    assert compare(now, (), runs(BEFORE)).notes == (
        "driver: 580 in the baseline, 590 here",
        "cuda-tile: 1.7.0 in the baseline, 1.8.0 here",
        "CUPTI: unset in the baseline, 0 here",
    )


def test_a_test_that_the_baseline_lacks_is_new() -> None:
    (one,) = compare(run(0.1, test="t.py::test_other"), (), runs(BEFORE)).results
    assert (one.verdict, one.before_ms, one.ratio) == ("new", None, None)


# The file


def test_runs_come_back(tmp_path: Path) -> None:
    path = tmp_path / "runs.json"
    for i, one in enumerate(runs(BEFORE)):
        assert len(append(path, one)) == i + 1
    assert load(path) == runs(BEFORE)
    assert json.loads(path.read_text())["version"] == 1
    assert os.listdir(tmp_path) == ["runs.json"], "nothing is left beside it"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "is not JSON"),
        ("[1]", "has no latency runs"),
        ('{"format": "tilewright latency runs", "version": 9, "runs": []}', "format 9, this one reads 1"),
        ('{"format": "tilewright latency runs", "version": 1, "runs": [{"created": 3}]}', "is damaged"),
        ('{"format": "tilewright latency runs", "version": 1}', "is damaged"),
    ],
)
def test_a_file_that_cannot_be_used_is_one_line_and_stays(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "runs.json"
    path.write_text(text)
    for use in (load, appendable, lambda p: append(p, run(1.0))):
        with pytest.raises(StorageError, match=said) as raised:
            use(path)
        assert "\n" not in str(raised.value)
    assert path.read_text() == text


def test_places_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="no such folder"):
        appendable(tmp_path / "none" / "runs.json")
    with pytest.raises(StorageError, match="no such file"):
        load(tmp_path / "runs.json")
    with pytest.raises(StorageError, match="cannot write"):
        append(tmp_path, run(1.0))


def test_a_link_stays_and_its_file_is_written(tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    link, file = tmp_path / "runs.json", tmp_path / "kept" / "runs.json"
    link.symlink_to(file)
    for _ in range(2):  # the first makes the file
        appendable(link)
        append(link, run(1.0))
    assert link.is_symlink() and len(load(file)) == 2
    assert os.listdir(tmp_path / "kept") == ["runs.json"]
    link.unlink()
    link.symlink_to(tmp_path / "none" / "runs.json")
    with pytest.raises(StorageError, match=r"cannot write .*runs\.json: no such folder: .*none"):
        appendable(link)


def test_an_append_that_was_killed_is_no_obstacle(tmp_path: Path) -> None:
    """The file is made before it is written."""
    path = tmp_path / "runs.json"
    path.touch()
    appendable(path)
    assert len(append(path, run(1.0))) == 1


@pytest.mark.parametrize("kind", ["device", "pipe", "folder", "loop"])
def test_only_a_file_is_replaced(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "runs.json"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    else:
        path.symlink_to(os.devnull if kind == "device" else path)
    with pytest.raises(StorageError, match=r"cannot write .*runs\.json: (it is not a regular file|Too many levels)"):
        appendable(path)


def test_json_that_is_nested_too_deep_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "runs.json"
    path.write_text("[" * 200_000)
    with pytest.raises(StorageError, match="is not JSON"):
        load(path)


APPENDING = """
import sys
from pathlib import Path
from tilewright.latencies.runs import Host, SuiteRun, append
for i in range(10):
    append(Path(sys.argv[1]), SuiteRun(sys.argv[2], Host("m", None, None, 1), None, None, {}, {}, ()))
"""


def test_processes_that_append_together_all_get_in(tmp_path: Path) -> None:
    path = tmp_path / "runs.json"
    environment = {**os.environ, "PYTHONPATH": str(SRC)}
    started = [subprocess.Popen([sys.executable, "-c", APPENDING, str(path), name], env=environment) for name in "abc"]
    assert [process.wait() for process in started] == [0, 0, 0]
    names = [one.created for one in load(path)]
    assert sorted(names) == ["a"] * 10 + ["b"] * 10 + ["c"] * 10


def test_the_revision_is_of_the_code_and_not_of_our_own_files(tmp_path: Path) -> None:
    def git(*words: str) -> None:
        subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@b", *words], cwd=tmp_path, check=True)

    assert revision(tmp_path) is None
    (tmp_path / "kernel.py").write_text("1\n")
    ours = tmp_path / "runs.json"
    append(ours, run(1.0))
    git("init", "-q")
    git("add", ".")
    git("commit", "-q", "-m", "one")
    clean = revision(tmp_path, (ours,))
    append(ours, run(1.0))
    assert revision(tmp_path, (ours,)) == clean
    (tmp_path / "kernel.py").write_text("2\n")
    changed = revision(tmp_path, (ours,))
    assert clean and changed and changed.startswith(f"{clean}+")
    (tmp_path / "kernel.py").write_text("3\n")
    assert revision(tmp_path, (ours,)) not in (clean, changed)


def test_the_current_run_says_where_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUPTI", "1")
    now = current((), machine="pool", workers=2, folder=tmp_path)
    assert (now.place.machine, now.place.workers) == ("pool", 2)
    assert now.settings["CUPTI"] == "1"
    assert now.versions["cuda-tile"]
