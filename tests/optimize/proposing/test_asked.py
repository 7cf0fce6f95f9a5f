"""Proposers that misbehave, as real commands, and how the loop asks them: bad input of point 3 of the issue."""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.optimize.kit import LIMITS, SCALE, Lines, Stage, repository, staged
from tests.optimize.proposing.patches import diff
from tests.processes import for_ever, gone

from tilewright.errors import RequestError, StorageError
from tilewright.ledger.ledger import Ledger
from tilewright.ledger.records import Iteration
from tilewright.optimize.loop import optimize
from tilewright.optimize.options import Options
from tilewright.optimize.proposing.asked import NoAnswer, Propose, stopped
from tilewright.optimize.proposing.command import ProposerCommand, words_of
from tilewright.records import Json

DOUBLED = "ct.load(x, (i,), (TILE,)) * 2"
FASTER = SCALE.replace(DOUBLED, "2 * ct.load(x, (i,), (TILE,))")
GOOD = json.dumps(
    {"title": "the factor first", "expected": "nothing, but it is tried", "patch": diff(SCALE, FASTER, "ops.py")}
)
DONE = json.dumps({"done": "no idea left"})


def python(tmp_path: Path, text: str) -> str:
    """A command that runs these lines of Python."""
    script = tmp_path / "propose.py"
    script.write_text(text)
    return shlex.join([sys.executable, str(script)])


class Says:
    """An `Ask` without a process: gives the next of these answers, and keeps what it was asked."""

    def __init__(self, *answers: str | BaseException) -> None:
        self.answers, self.asked = [*answers], list[Mapping[str, Any]]()

    def __call__(self, request: Mapping[str, Json], seconds: float) -> str:
        self.asked.append(request)
        answer = self.answers.pop(0)
        if isinstance(answer, BaseException):
            raise answer
        return answer


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return repository(tmp_path / "user")


def ran(file: Path, ask: Any, *script: Any, check: Callable[[Stage], None] = lambda stage: None, **limits: Any) -> Any:
    """The loop without a playbook: its rows, and why it stopped."""
    propose = Propose("scripted", **{"only": True, **limits})
    with staged(file, file.parents[1] / "home", script, propose=(propose, ask)) as stage:
        reason = stage.run()
        check(stage)
        return stage.rows[1:], reason


# Bad input, with real commands --------------------------------------------------------------------------


def test_one_that_never_answers_is_killed_with_its_children(file: Path, tmp_path: Path) -> None:
    seconds = for_ever()
    command = python(tmp_path, f"import subprocess\nsubprocess.run(['sleep', '{seconds}'])\n")
    rows, reason = ran(file, ProposerCommand(command), seconds=0.5, failures=1)
    assert rows[0].reason.startswith("the proposer gave no answer in 0.5 s (--propose-seconds): ")
    assert (rows[0].status, rows[0].tampering) == ("crash", "")
    assert reason.startswith("1 unusable answer of the proposer in a row (--propose-failures)") and gone(seconds)


def test_what_leaves_the_process_group_of_the_command_ends_with_it(file: Path, tmp_path: Path) -> None:
    seconds = for_ever()
    left = f"import subprocess\nsubprocess.Popen(['sleep', '{seconds}'], start_new_session=True)\nprint('nothing')\n"
    rows, _ = ran(file, ProposerCommand(python(tmp_path, left)), failures=1)
    assert rows[0].status == "crash" and gone(seconds)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("print('I made it twice as fast.')", "the answer is no JSON object but the text 'I made it twice as fast.'"),
        ("raise SystemExit('error: no quota left')", "the proposer python returned 1: no quota left"),
        ("import os\nos.kill(os.getpid(), 9)", "the proposer python was killed by signal 9"),
        ("import sys\nsys.stdout.buffer.write(bytes(range(256)))", "the answer is no JSON object but"),
    ],
)
def test_one_that_says_nothing_useful_is_a_row_with_the_reason(
    file: Path, tmp_path: Path, text: str, said: str
) -> None:  # fmt: skip
    rows, _ = ran(file, ProposerCommand(python(tmp_path, text)), failures=1)
    assert [row.status for row in rows] == ["crash"] and said in rows[0].reason.replace("python3", "python")
    assert "\n" not in rows[0].reason and not rows[0].tampering


def test_one_that_edits_the_reference_on_the_disk_is_not_asked_again(file: Path, tmp_path: Path) -> None:
    """Its answer is not read, and what the user had is not lost."""
    command = python(tmp_path, f"from pathlib import Path\nPath({str(file)!r}).write_text('')\nprint({GOOD!r})")
    rows, reason = ran(file, ProposerCommand(command), 0.9)
    assert [(row.status, bool(row.tampering)) for row in rows] == [("revert", True)]
    assert reason.startswith(f"{file} changed while the proposer ran; its content before is in ")
    assert Path(reason.rpartition(" ")[2]).read_text() == SCALE


def test_one_that_writes_its_own_gain_into_the_ledger_ends_the_run(file: Path, tmp_path: Path) -> None:
    forged = Iteration(n=1, optimization="magic", correctness="PASS", status="keep", reason="2.00 × faster")

    def ask(request: Mapping[str, Json], seconds: float) -> str:
        with Ledger(tmp_path / "home" / "ledger.db") as ledger:
            ledger.append(ledger.runs()[0].run, forged)
        return GOOD

    with staged(file, tmp_path / "home", [0.9], propose=(Propose("x", only=True), ask)) as stage:
        with pytest.raises(StorageError, match="rows in the ledger were changed while the proposer ran; start with"):
            stage.run()
        run = stage.ledger.run(stage.loop.setup.run.run)
        assert run.finished and "were changed while the proposer ran" in str(run.stop_reason), "it is not resumed"
        assert stage.ledger.resume(run.key) is None and run.patch == ""


def test_a_command_has_a_ledger_of_its_own_and_a_folder_for_its_files(tmp_path: Path) -> None:
    text = "import json, os, sys\nprint(json.dumps([json.load(sys.stdin), dict(os.environ)]))"
    request, seen = json.loads(ProposerCommand(python(tmp_path, text))({"version": 1, "text": "é"}, 60))
    assert request == {"version": 1, "text": "é"}
    assert seen["TILEWRIGHT_HOME"] != os.environ["TILEWRIGHT_HOME"] and not Path(seen["TMPDIR"]).exists()
    assert "TILEWRIGHT_TUNED" not in seen and seen["PATH"] == os.environ["PATH"]


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("no-such-program --fast", "no-such-program cannot be started"),
        ("", "is empty; give a command, or model:PROVIDER:NAME"),
        ("sh 'unclosed", "No closing quotation; quote it as for a shell"),
        ("model:", "names no model; give model:PROVIDER:NAME"),
    ],
)
def test_a_command_that_cannot_start_is_refused_before_anything_runs(file: Path, command: str, said: str) -> None:
    with pytest.raises(RequestError, match="--propose") as error:
        optimize(str(file), arch="sm_90", options=Options(propose=Propose(command)))
    assert said in str(error.value) and "\n" not in str(error.value)


def test_limits_are_checked() -> None:
    assert words_of("sh -c 'a b'") == ["sh", "-c", "a b"]
    for wrong in ({"seconds": 0.0}, {"attempts": 0}, {"failures": 0}):
        with pytest.raises(RequestError, match="must be above 0"):
            Propose("x", **wrong)  # type: ignore[arg-type]
    with pytest.raises(RequestError, match="--propose-only leaves the playbook out"):
        Options(propose=Propose("x", only=True), only=("occupancy",))


# The loop -----------------------------------------------------------------------------------------------


def test_what_is_kept_is_the_next_incumbent_and_its_time_the_next_diagnosis(file: Path) -> None:
    ask = Says(GOOD, DONE)
    rows, reason = ran(file, ask, 0.8)
    assert [(row.entry, row.status, row.site, row.why_chosen) for row in rows] == [
        ("proposer", "keep", "the factor first", "nothing, but it is tried")
    ]
    assert reason == "the proposer has nothing left: no idea left"
    first, second = ask.asked
    assert second["files"] == {"ops.py": FASTER} and second["last_failure"] is None
    (before,), (after,) = first["workloads"], second["workloads"]
    assert before["time_is"] == after["time_is"] == "measured" and after["us"] == pytest.approx(
        0.8 * before["us"], rel=0.01
    )


def test_the_reason_of_a_failure_comes_with_the_next_request(file: Path) -> None:
    ask = Says(GOOD, NoAnswer("it slept"), GOOD, DONE)
    rows, _ = ran(file, ask, "wrong", "crash")
    reasons = [
        each["last_failure"] and each["last_failure"].partition("; usual causes that fit: ")[0] for each in ask.asked
    ]
    assert reasons == [None, "y[3] is 7, expected 6", "it slept", "an illegal address"]
    assert [each["limits"]["proposals_left"] for each in ask.asked] == [10, 9, 8, 7]
    assert len(rows) == 3


def test_unusable_answers_in_a_row_end_it_and_judged_ones_do_not_count(file: Path) -> None:
    rows, reason = ran(file, Says("", GOOD, "", "prose"), 1.05, failures=2)
    assert [row.unusable for row in rows] == [True, False, True, True]
    assert reason.startswith("2 unusable answers of the proposer in a row") and "'prose'" in reason


def test_the_most_proposals_end_it(file: Path) -> None:
    rows, reason = ran(file, Says(GOOD), 1.05, attempts=1)
    assert (len(rows), reason) == (1, "1 proposal (--propose-attempts)")
    assert stopped(Propose("x", attempts=2), rows) is None


def test_the_playbook_goes_first_and_has_limits_of_its_own(file: Path, tmp_path: Path) -> None:
    ask, entry = Says(GOOD, DONE), Lines(places=("a", "b", "c"))
    limits = replace(LIMITS, patience=2)
    with staged(
        file, tmp_path / "home", [1.05, 1.05, 0.9], [entry], limits=limits, propose=(Propose("x"), ask)
    ) as stage:  # fmt: skip
        reason = stage.run()
        assert [(row.entry, row.status) for row in stage.rows[1:]] == [
            ("T", "revert"), ("T", "revert"), ("proposer", "keep"),
        ]  # fmt: skip
    assert reason == (
        "2 iterations in a row without improvement (--patience 2); the proposer has nothing left: no idea left"
    )
    assert [each["change"] for each in ask.asked[0]["history"]] == ["lines of T: a", "lines of T: b"]


def test_an_interrupted_run_goes_on_with_the_proposer(file: Path, tmp_path: Path) -> None:
    """The playbook is not tried again, and the proposals so far count."""
    home, options = tmp_path / "home", Propose("x", attempts=2)
    with staged(file, home, [0.9], propose=(options, Says(GOOD, KeyboardInterrupt()))) as before:
        with pytest.raises(KeyboardInterrupt):
            before.run()
        run = before.loop.setup.run.run
    ask = Says(json.dumps({"files": {"ops.py": FASTER + "# more\n"}}))
    with staged(file, home, [1.05], [Lines()], propose=(options, ask), run=run) as after:
        assert after.run() == "2 proposals (--propose-attempts)"
        assert [(row.entry, row.status) for row in after.rows[1:]] == [("proposer", "keep"), ("proposer", "revert")]
    assert ask.asked[0]["limits"]["proposals_left"] == 1
