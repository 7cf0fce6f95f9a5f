"""The loop with a gate that follows a script: P-10, P-11, P-18 to P-23, P-25, X-12, X-15, X-25; each row of P-22.

Git, ledger, loading and the decision on samples are real; the compiler and the GPU are made up (`loop_kit`).
"""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from tests.ledger.test_perf_results import parse
from tests.optimize.kit import (
    LIMITS,
    SCALE,
    Lines,
    Pretending,
    Scripted,
    Stage,
    Told,
    Tripping,
    git,
    repository,
    staged,
)

from tilewright.cli.optimize_table import ending
from tilewright.errors import MachineError
from tilewright.ledger.records import Iteration
from tilewright.optimize import time_limit
from tilewright.optimize.ending import finish
from tilewright.optimize.options import Options
from tilewright.optimize.proposed import Change, Seen
from tilewright.optimize.time_limit import TimeUp, within
from tilewright.optimize.versions.leftovers import leftovers
from tilewright.playbook.base import Site
from tilewright.records import Value
from tilewright.source.syntax import Source

Open = Callable[..., Stage]
BASE = replace(LIMITS, policy="base")
MANY = tuple(f"place {n}" for n in range(30))


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Open]:
    """A loop on a repository with the kernel; several on the same one where asked several times."""
    file = repository(tmp_path / "user")
    with ExitStack() as stack:

        def open_(script: Sequence[Told] = (), *entries: object, **more: object) -> Stage:
            return stack.enter_context(
                staged(file, tmp_path / "home", script, entries or (Lines(places=MANY),), **more)  # type: ignore[arg-type]
            )

        yield open_


def last(stage: Stage) -> Iteration:
    return stage.rows[-1]


def texts(stage: Stage) -> bytes:
    """The editable file in the worktree, byte for byte."""
    return (stage.workspace.folder / "ops.py").read_bytes()


# P-22, row by row -----------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", ["default", "base"])
def test_a_gain_of_5_percent_or_more_is_kept_and_the_loop_goes_on(opened: Open, policy: str) -> None:
    stage = opened([0.9, 0.9, 0.9], limits=replace(LIMITS, policy=policy, iterations=3))
    assert stage.run() == "3 iterations (--iterations)"
    assert stage.statuses == ["keep"] * 3 and not stage.loop.lowered
    assert texts(stage).decode() == stage.loop.incumbent.texts[stage.file] != SCALE


@pytest.mark.parametrize("policy", ["default", "base"])
def test_a_gain_of_2_to_5_percent_is_kept_and_its_entry_comes_later(opened: Open, policy: str) -> None:
    small, other = Lines("S", places=("a", "b")), Lines("O", places=("c",), expected=1.09)
    limits = replace(LIMITS, policy=policy, iterations=2)
    stage = opened([0.965, 0.9], small, other, limits=limits)
    stage.run()
    assert stage.statuses == ["keep", "keep"]
    assert [one.entry for one in stage.rows[1:]] == ["S", "O"], "by expectation alone S comes first again"
    assert stage.loop.lowered == {"S"}


def test_a_gain_under_2_percent_is_kept_and_ends_the_base_policy(opened: Open) -> None:
    stage = opened([0.985], limits=BASE)
    assert "is under 2% (--policy base)" in stage.run()
    assert stage.statuses == ["keep"]


def test_a_gain_under_2_percent_does_not_end_the_default_policy(opened: Open) -> None:
    stage = opened([0.985, 0.9], limits=replace(LIMITS, iterations=2))
    assert stage.run() == "2 iterations (--iterations)"
    assert stage.statuses == ["keep", "keep"]


def test_what_is_slower_is_reverted_and_the_next_entry_is_tried(opened: Open) -> None:
    stage = opened([1.05, 0.9], limits=replace(BASE, iterations=2))
    stage.run()
    assert stage.statuses == ["revert", "keep"]
    assert stage.rows[1].reason.startswith("slower on small")
    assert stage.rows[1].site != stage.rows[2].site


def test_what_the_noise_hides_is_not_decided_not_kept_and_counted(opened: Open) -> None:
    """trust.md 42."""
    stage = opened([0.995, 0.9, 1.05], limits=replace(LIMITS, iterations=3))
    stage.run()
    assert stage.statuses == ["revert", "keep", "revert"]
    assert [one.decided for one in stage.rows[1:]] == [False, True, True]
    assert stage.rows[1].reason.startswith("not decided: ")
    stop = finish(stage.loop, ["3 iterations"], None).record.stop_reason
    assert stop is not None and "; 1 not decided: the noise hid whether they are faster" in stop


@pytest.mark.parametrize("told", [1.0, 1.05, "wrong", "crash", "refused"])
def test_two_iterations_without_improvement_end_the_base_policy(opened: Open, told: Told) -> None:
    """Whatever was the matter with them: nothing gained, wrong, crashed."""
    stage = opened([told] * 3, limits=BASE)
    assert stage.run() == "2 iterations in a row without improvement (--policy base)"
    assert len(stage.rows) == 3


def test_a_keep_between_two_misses_starts_the_count_anew(opened: Open) -> None:
    stage = opened([1.0, 0.9, 1.0, 1.0], limits=BASE)
    stage.run()
    assert stage.statuses == ["revert", "keep", "revert", "revert"]


def test_patience_is_how_many_misses_end_the_default_policy(opened: Open) -> None:
    stage = opened([1.0] * 9, limits=replace(LIMITS, patience=3))
    assert stage.run() == "3 iterations in a row without improvement (--patience 3)"
    assert stage.statuses == ["revert"] * 3


# P-23 -----------------------------------------------------------------------------------------------


def test_at_most_25_iterations(opened: Open) -> None:
    assert LIMITS.iterations == Options().iterations == 25
    stage = opened([0.9] * 9, limits=replace(LIMITS, iterations=4))
    assert stage.run() == "4 iterations (--iterations)"
    assert [one.n for one in stage.rows] == list(range(5))


def test_no_iterations_at_all_leave_the_baseline(opened: Open) -> None:
    stage = opened([], limits=replace(LIMITS, iterations=0))
    assert stage.run() == "0 iterations (--iterations)"
    (row,) = stage.rows
    assert (row.n, row.optimization, row.status, row.correctness) == (0, "baseline", "keep", "PASS")


def test_it_ends_when_every_entry_was_tried(opened: Open) -> None:
    stage = opened([1.0, 1.0], Lines(places=("a", "b")))
    assert stage.run() == "every entry was tried"
    assert len(stage.rows) == 3


def test_a_site_is_tried_again_only_after_another_change_was_kept(opened: Open) -> None:
    stage = opened([1.0, 0.9, 1.0], Lines("A", expected=1.3), Lines("B"))
    assert stage.run() == "every entry was tried"
    assert [one.entry for one in stage.rows[1:]] == ["A", "B", "A"]


# One change, one commit, one row ----------------------------------------------------------------------


def test_each_iteration_is_one_commit_that_names_its_technique_and_reason(opened: Open) -> None:
    """P-10, P-25: also of what was reverted, wrong or crashed."""
    stage = opened([0.9, 1.05, "wrong", "crash", "refused", 0.9], limits=replace(LIMITS, iterations=6))
    stage.run()
    folder, run = stage.file.parent, stage.loop.setup.run.run
    for one in stage.rows[1:]:
        assert one.commit == git(folder, "rev-parse", f"refs/tilewright/{run}/{one.n}").strip()
        message = git(folder, "log", "-1", "--format=%B", one.commit)
        assert message.startswith(f"lines of T: {one.site.removesuffix(', ')} = 1\n")
        assert f"Iteration {one.n}, T at {one.site}." in message
        assert one.reason in message and one.why_chosen in message
        assert git(folder, "diff", "--name-only", f"{one.commit}^", one.commit) == "ops.py\n"
        assert one.diff.count("\n+") == 2, "the header and the one line that was added"
    branch = git(folder, "log", "--format=%H", f"main..{stage.workspace.branch}").split()
    assert branch == [stage.rows[6].commit, stage.rows[1].commit]


def test_a_revert_restores_every_byte(tmp_path: Path) -> None:
    """X-15, X-25: line ends and missing ends of lines too."""
    text = SCALE.replace("\n", "\r\n").removesuffix("\r\n")
    file = repository(tmp_path / "user", text)
    with staged(file, tmp_path / "home", [1.05, "wrong"], [Lines(places=("a", "b"))]) as stage:
        stage.run()
        assert texts(stage) == text.encode() == file.read_bytes()
        assert stage.workspace.patch() == ""


def test_a_keep_is_the_next_incumbent(opened: Open) -> None:
    stage = opened([0.9, 1.05, 0.9], Lines(places=("a", "b", "c")), limits=replace(LIMITS, iterations=3))
    stage.run()
    assert stage.statuses == ["keep", "revert", "keep"]
    kept = [f"# T {one.site.partition(',')[0]} 1" for one in stage.rows[1:] if one.status == "keep"]
    assert texts(stage).decode() == SCALE + "".join(f"{line}\n" for line in kept)
    assert stage.workspace.patch().count("\n+# T") == 2


def test_the_user_s_files_stay_as_they_are(opened: Open) -> None:
    stage = opened([0.9, 1.05], limits=replace(LIMITS, iterations=2))
    stage.run()
    assert stage.file.read_text() == SCALE
    assert git(stage.file.parent, "status", "--porcelain") == ""


def test_all_values_of_a_site_are_one_iteration(opened: Open) -> None:
    stage = opened([0.9], Lines(values=(1, 2, 3)), limits=replace(LIMITS, iterations=1))
    stage.run()
    assert stage.gate.asked == [["1", "2", "3"]]
    assert [one.status for one in last(stage).attempts] == ["raced"] * 3


# Wrong, crashed, too slow -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("told", "status", "correctness", "reason"),
    [
        (1.05, "revert", "PASS", "slower"),
        ("wrong", "revert", "FAIL", "y[3] is 7, expected 6"),
        ("crash", "crash", "FAIL", "an illegal address"),
        ("refused", "crash", "unverified", "the worker process said something strange"),
    ],
)
def test_what_failed_is_a_row_of_the_ledger_too(
    opened: Open, told: Told, status: str, correctness: str, reason: str
) -> None:
    stage = opened([told, 0.9], limits=replace(LIMITS, iterations=2))
    stage.run()
    one = stage.rows[1]
    assert (one.status, one.correctness) == (status, correctness) and reason in one.reason
    assert one.diff and one.commit and one.value == "1"
    assert stage.rows[2].status == "keep", "the loop goes on"


def test_an_iteration_that_takes_too_long_is_a_crash(opened: Open) -> None:
    """P-11: the limit is enforced, and the overrun recorded."""
    stage = opened(["hang", 0.9], limits=replace(LIMITS, iterations=2))
    stage.run()
    assert (stage.rows[1].status, stage.rows[2].status) == ("crash", "keep")
    assert "(--minutes)" in stage.rows[1].reason


def in_thread(work: Callable[[], object]) -> None:
    with ThreadPoolExecutor(1) as pool:
        pool.submit(work).result()


@pytest.mark.parametrize("run", [lambda work: work(), in_thread], ids=["main thread", "other thread"])
def test_the_limit_is_one_deadline_over_build_and_judgement(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Callable[[Callable[[], object]], None]
) -> None:
    """P-11: 4 s of build and 4 s of judgement are over a limit of 6 s, however good the change is."""
    passed = [0.0]
    monkeypatch.setattr(time_limit, "clock", lambda: passed[0])
    for kind, name in ((Pretending, "build"), (Scripted, "confirm")):
        slow = getattr(kind, name)

        def slower(*arguments: Any, slow: Any = slow) -> Any:
            passed[0] += 4.0
            return slow(*arguments)

        monkeypatch.setattr(kind, name, slower)

    def one_iteration() -> None:
        limits = replace(LIMITS, iterations=1, minutes=0.1)
        with staged(repository(tmp_path / "user"), tmp_path / "home", [0.5], [Lines()], limits=limits) as stage:
            passed[0] = 0.0
            stage.run()
            assert (last(stage).status, last(stage).reason) == ("crash", "longer than 0.1 min (--minutes)")
            assert texts(stage).decode() == SCALE

    run(one_iteration)


def test_a_build_that_takes_too_long_is_a_crash(opened: Open) -> None:
    @dataclass(frozen=True)
    class Slow(Lines):
        def apply(self, source: Source, site: Site, value: Value) -> str:
            signal.raise_signal(signal.SIGALRM)  # as if the rest of the iteration's time were over
            raise AssertionError("the limit did not hold")

    stage = opened([], Slow(), limits=replace(LIMITS, iterations=1))
    stage.run()
    assert last(stage).status == "crash" and last(stage).reason == "did not compile within 10 min (--minutes)"


def test_the_limit_interrupts_another_thread() -> None:
    def forever() -> None:
        while True:
            pass

    def work() -> None:
        with pytest.raises(TimeUp), within(0.05):
            forever()
        with within(3600):
            pass  # nothing is left of the first exception

    in_thread(work)


TRACED = """
import sys, threading
from tilewright.optimize.options import Options
from tilewright.optimize.time_limit import TimeUp, within

def work():
    with within(3600):
        pass
    try:
        with within(0.001):
            while True:
                pass
    except TimeUp:
        print("interrupted")

thread = threading.Thread(target=work)
thread.start()
thread.join()
sys.settrace(lambda *_: None)
(lambda: print("traced"))()
"""


def test_a_limit_in_another_thread_leaves_nothing_that_stops_a_debugger() -> None:
    done = subprocess.run([sys.executable, "-c", TRACED], capture_output=True, text=True, timeout=60)
    assert done.stdout == "interrupted\ntraced\n", done.stderr


def test_a_timer_of_the_program_goes_on_after_the_limit() -> None:
    came: list[int] = []
    before = signal.signal(signal.SIGALRM, lambda number, _: came.append(number))
    earlier = signal.setitimer(signal.ITIMER_REAL, 1000.0)
    try:
        with within(3600):
            pass
        assert 0 < signal.getitimer(signal.ITIMER_REAL)[0] <= 1000.0
        with pytest.raises(TimeUp), within(3600):
            signal.raise_signal(signal.SIGALRM)
        assert 0 < signal.getitimer(signal.ITIMER_REAL)[0] <= 1000.0 and not came
    finally:
        signal.signal(signal.SIGALRM, before)
        signal.setitimer(signal.ITIMER_REAL, *earlier)


def test_a_run_ends_when_its_time_is_over(opened: Open) -> None:
    stage = opened([0.9], limits=replace(LIMITS, stop_after=0.0))
    assert stage.run() == "0 minutes were over (--stop-after)" and len(stage.rows) == 1


def test_a_machine_that_fails_ends_the_run_and_loses_nothing(opened: Open) -> None:
    stage = opened([0.9, "no machine"])
    with pytest.raises(MachineError, match="fell off the bus"):
        stage.run()
    assert stage.statuses == ["keep"]
    assert texts(stage).decode() == stage.loop.incumbent.texts[stage.file]


def test_an_entry_that_breaks_down_does_not_end_the_loop(opened: Open) -> None:
    broken = [Tripping(at, at=at, expected=2.0) for at in ("sites", "apply", "refuses")]  # type: ignore[arg-type]
    stage = opened([0.9], *broken, Lines("Z"))
    assert stage.run() == "every entry was tried"
    (one,) = stage.rows[1:]
    assert one.entry == "Z" and one.status == "keep"
    said = "\n".join(one.ruled_out)
    assert "sites lines of sites cannot read ops.py: KeyError" in said
    assert "lines of apply: the end: does not apply: IndexError" in said
    assert "lines of refuses: the end: does not apply: the loop has no bounds" in said


def test_what_was_ruled_out_is_told_once(opened: Open) -> None:
    stage = opened([1.0, 1.0], Tripping("X", at="refuses", expected=2.0), Lines(places=("a", "b")))
    stage.run()
    assert [len(one.ruled_out) for one in stage.rows[1:]] == [1, 0]


# The table ----------------------------------------------------------------------------------------------


def test_perf_results_is_the_table_of_every_iteration(opened: Open) -> None:
    """P-18, F-1: numbered from 0 without gaps, also what crashed."""
    stage = opened([0.9, 1.05, "crash", "wrong", "refused", 0.9], limits=replace(LIMITS, iterations=6))
    stage.run()
    folder = stage.ledger.folder(stage.loop.setup.run.run)
    rows = parse((folder / "perf_results.md").read_text())
    assert [one.iteration for one in rows] == list(range(7))
    assert [one.status for one in rows] == ["keep", "keep", "revert", "crash", "revert", "crash", "keep"]
    assert [one.correctness for one in rows] == ["PASS", "PASS", "PASS", "FAIL", "FAIL", "FAIL", "PASS"]
    assert rows[3].latency_ms == rows[1].latency_ms, "no number is invented for what crashed"
    assert not (folder / "perf_predicted.md").exists()


# What was found out at the end --------------------------------------------------------------------------


def test_a_change_that_proves_wrong_at_the_end_is_taken_back(opened: Open) -> None:
    stage = opened([0.9, 0.9, 1.05], Lines(places=("a", "b", "c")), limits=replace(LIMITS, iterations=3))
    stage.run()
    first, second = stage.rows[1:3]
    stage.loop.undo("wrong for N = 1")
    undone = last(stage)
    assert (undone.n, undone.status, undone.correctness) == (4, "revert", "FAIL")
    assert undone.reason == "wrong for N = 1" and undone.commit == second.commit
    assert stage.workspace.kept == first.commit and texts(stage).decode().count("# T") == 1
    assert stage.loop.incumbent.texts[stage.file].encode() == texts(stage)
    stage.loop.undo("still")
    assert texts(stage) == SCALE.encode() and stage.workspace.patch() == ""
    table = stage.ledger.folder(stage.loop.setup.run.run) / "perf_results.md"
    assert [one.iteration for one in parse(table.read_text())] == list(range(6))


# After an interruption ------------------------------------------------------------------------------------


def test_an_interrupted_run_goes_on_as_if_nothing_had_been(tmp_path: Path) -> None:
    """The choice depends on what was tried and kept, on misses and on lowered entries: all are in the ledger."""
    entries = [Lines("S", places=MANY[:4]), Lines("O", places=MANY[4:8], expected=1.09)]
    script: list[Told] = [0.965, 1.0, "wrong", 0.9, "refused", 1.0, 1.05, 1.0]
    limits = replace(LIMITS, patience=4)
    with staged(repository(tmp_path / "one"), tmp_path / "home 1", script, entries, limits=limits) as whole:
        reason = whole.run()
    for done in (2, 5):  # after a gain and a miss; after a lowered entry
        file = repository(tmp_path / f"two {done}")
        home = tmp_path / f"home 2 {done}"
        with staged(file, home, script[:done], entries, limits=replace(limits, iterations=done)) as before:
            before.run()
            run, tried, misses = before.loop.setup.run.run, before.loop.tried, before.loop.misses
        with staged(file, home, script[done:], entries, limits=limits, run=run) as after:
            assert (after.loop.tried, after.loop.misses) == (tried, misses)
            assert after.loop.incumbent.texts == before.loop.incumbent.texts
            assert after.run() == reason
            assert [(one.n, one.entry, one.site, one.status) for one in after.rows] == [
                (one.n, one.entry, one.site, one.status) for one in whole.rows
            ], f"interrupted after {done}"


def test_a_row_that_the_table_lost_is_added_also_where_nothing_is_left_to_try(tmp_path: Path) -> None:
    """A kill may come between the ledger and the table."""
    file, home, entries = repository(tmp_path / "user"), tmp_path / "home", [Lines()]
    with staged(file, home, [1.0], entries, limits=replace(LIMITS, iterations=1)) as before:
        before.run()
        run = before.loop.setup.run.run
    table = home / "runs" / run / "perf_results.md"
    whole = table.read_text()
    table.write_text("".join(whole.splitlines(keepends=True)[:-1]))
    with staged(file, home, [], entries, run=run) as after:
        assert after.run() == "every entry was tried"
    assert table.read_text() == whole


def test_a_run_that_was_killed_after_its_last_iteration_only_ends(tmp_path: Path) -> None:
    file, home = repository(tmp_path / "user"), tmp_path / "home"
    entries = [Lines(places=MANY)]
    with staged(file, home, [1.0, 1.0], entries, limits=BASE) as before:
        reason, run = before.run(), before.loop.setup.run.run
    with staged(file, home, [], entries, limits=BASE, run=run) as after:
        assert after.run() == reason and len(after.rows) == 3


@pytest.mark.parametrize(("told", "left"), [(1.0, False), (0.9, True)])
def test_a_run_that_ends_with_nothing_kept_leaves_no_branch(tmp_path: Path, told: Told, left: bool) -> None:
    """Its attempts stay within reach. Until its end, it can be resumed, and keeps the branch."""
    file, home, entries = repository(tmp_path / "user"), tmp_path / "home", [Lines(places=MANY[:1])]
    with staged(file, home, [told], entries) as before:
        before.run()
        run, branch = before.loop.setup.run.run, before.workspace.branch
    assert branch in git(file.parent, "branch", "--list"), "it was interrupted"
    with staged(file, home, [told] * 3, entries, run=run) as after:
        result = finish(after.loop, [after.run()], None)
        git(file.parent, "rev-parse", "--verify", branch)
    assert bool(result.kept) == left
    refs = git(file.parent, "for-each-ref", "--format=%(refname)")
    assert (f"refs/heads/{branch}" in refs) == (f"/branch/{branch}" in refs) == left
    assert f"refs/tilewright/{run}/1" in refs and f"refs/tilewright/{run}/kept" in refs
    lines = [line for line in ending(result, "ops.py") if line.startswith("branch ")]
    assert (result.record.branch, len(lines)) == ((branch, 1) if left else (None, 0))
    branches = [each.name for each in leftovers(file.parent, home) if each.kind == "branches"]
    assert branches == ([f"branch {branch}"] if left else [])


# Handed in (L) --------------------------------------------------------------------------------------------


class Proposing:
    """Hands in one text after the other."""

    def __init__(self, *endings: str) -> None:
        self.endings = list(endings)
        self.seen: list[Seen] = []

    def propose(self, seen: Seen) -> Change | None:
        self.seen.append(seen)
        if not self.endings:
            return None
        (path, text), ending = next(iter(seen.texts.items())), self.endings.pop(0)
        return Change(f"with {ending}", "the model said so", {path: f"{text}{ending}\n"})


def test_what_a_proposer_hands_in_goes_through_the_same_gate(opened: Open) -> None:
    proposer = Proposing("# a", "# b")
    stage = opened([0.9, "wrong", 1.0], Lines(), proposers=[proposer])
    stage.run()
    assert [(one.entry, one.status) for one in stage.rows[1:]] == [
        ("proposed", "keep"),
        ("proposed", "revert"),
        ("T", "revert"),
    ]
    assert "the model said so" in git(stage.file.parent, "log", "-1", "--format=%B", str(stage.rows[1].commit))
    assert len(proposer.seen[1].iterations) == 2, "it sees what became of the first"
    assert proposer.seen[1].texts[stage.file].endswith("# a\n")


def test_what_is_handed_in_and_does_not_load_is_a_crash_with_its_reason(opened: Open) -> None:
    """No iteration without a row: who hands something in hears what became of it."""
    stage = opened([0.9], Lines(), proposers=[Proposing("def (")])
    stage.run()
    crashed = stage.rows[1]
    assert (crashed.entry, crashed.status) == ("proposed", "crash") and "does not import" in crashed.reason
    assert "def (" in crashed.diff
    assert stage.rows[2].status == "keep"


def test_a_proposer_that_never_stops_runs_out_of_patience(opened: Open) -> None:
    class Stubborn(Proposing):
        def propose(self, seen: Seen) -> Change | None:
            return Change("elsewhere", "why not", {Path("/etc/passwd"): ""})

    stage = opened([], Lines(), proposers=[Stubborn()])
    assert "without improvement" in stage.run()
    assert all("not editable" in one.reason for one in stage.rows[1:])
