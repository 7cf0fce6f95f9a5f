"""`optimize --test`, `--dry-run`, escalations, the usual causes of a failed check: P-15, P-16, P-20, P-21, P-22."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from tests.optimize.kit import LIMITS, SCALE, Lines, Scripted, git, repository, staged

from tilewright.cli import main as cli
from tilewright.errors import RequestError
from tilewright.hardware.diagnosis import Diagnosis, ResourceLimit
from tilewright.ledger.ledger import Ledger
from tilewright.ledger.records import Iteration, Metrics, ToConfirm
from tilewright.optimize import escalation
from tilewright.optimize.attempting import Variant
from tilewright.optimize.ending import finish
from tilewright.optimize.project_tests import ProjectTests
from tilewright.optimize.usual_causes import fitting

READS = "import importlib.util, sys; text = open(importlib.util.find_spec('ops').origin).read(); "


def made_tests(tmp_path: Path, script: str) -> ProjectTests:
    (tmp_path / "check.py").write_text(script)
    return ProjectTests(f"'{sys.executable}' check.py", 60.0)


def test_a_version_that_fails_the_project_s_tests_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = repository(tmp_path / "user")
    monkeypatch.chdir(file.parent)
    (file.parent / "check.py").write_text(f"{READS}sys.exit('FAILED tests/test_b.py::b' if '# T b' in text else 0)")
    limits = replace(LIMITS, iterations=2, test=f"'{sys.executable}' check.py")
    with staged(file, tmp_path / "home", [0.9, 0.9], [Lines(places=("a", "b"))], limits=limits) as stage:
        stage.run()
        assert stage.statuses == ["keep", "revert"]
        assert stage.rows[1].reason.endswith("; the project's tests pass")
        assert stage.rows[2].reason == "the project's tests fail (exit code 1): FAILED tests/test_b.py::b"
        assert stage.rows[2].correctness == "FAIL"
    assert file.read_text() == SCALE


def test_only_the_edited_files_are_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "lib" / "inner"
    package.mkdir(parents=True)
    for path, text in ((package.parent, ""), (package, "from lib.inner.kernel import two\n")):
        (path / "__init__.py").write_text(text)
    (package / "kernel.py").write_text("from lib.inner.other import one\ntwo = 'old'\n")
    (package / "other.py").write_text("one = 1\n")
    monkeypatch.chdir(tmp_path)
    tests = made_tests(
        tmp_path, "import lib.inner as i, lib.inner.other as o\nassert i.two == 'new', i.two\nassert o.one"
    )
    assert tests.failure({package / "kernel.py": "from lib.inner.other import one\ntwo = 'new'\n"}) is None
    failure = tests.failure({package / "kernel.py": "two = 'wrong'\n"})
    assert failure is not None and "AssertionError: wrong" in failure
    with pytest.raises(RequestError, match="--test on the untouched code: the project's tests fail"):
        tests.check_untouched({package / "kernel.py": "two = 'old'\n"})


def test_tests_that_write_the_edited_file_say_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is restored: it may be the user who edits it."""
    file = repository(tmp_path / "user")
    monkeypatch.chdir(file.parent)
    (file.parent / "check.py").write_text(f"open({str(file)!r}, 'a').write('# more')")
    tests = ProjectTests(f"'{sys.executable}' check.py", 60.0)
    with pytest.raises(RequestError, match=r"ops.py changed while the tests ran, .*; fix: "):
        tests.check_untouched({file: SCALE})
    assert file.read_text() == SCALE + "# more"


@pytest.mark.parametrize(
    ("command", "said"),
    [("", "--test is empty"), ("no-such-tool x", "no-such-tool"), ("'open", "No closing quotation")],
)
def test_a_command_that_cannot_run_is_a_wrong_request(command: str, said: str) -> None:
    with pytest.raises(RequestError, match=said) as caught:
        ProjectTests(command, 10.0).failure({})
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("added", "said"),
    [
        ("    y = ct.exp2(x, flush_to_zero=True)", "flush_to_zero or approximate"),
        ("    x = ct.load(x, (i,), (TILE * 2,))", "a tile reaches beyond"),
        ("    ct.store(y, (i,), t, allow_tma=False)", "allow_tma=False"),
        ("    for i in range(ct.bid(0), items, ct.num_blocks(0)):", "bounds of the persistent loop"),
        ("    # flush_to_zero", ""),
        ("    z = y", ""),
    ],
)
def test_a_failed_check_names_the_usual_causes_that_fit(added: str, said: str) -> None:
    file = Path("ops.py")
    found = fitting({file: SCALE}, {file: f"{SCALE}{added}\n"})
    assert said in found and bool(found) == bool(said)


def test_the_usual_causes_are_in_the_reason_of_a_failed_iteration(tmp_path: Path) -> None:
    class Flushes(Lines):
        def apply(self, source, site, value):  # type: ignore[no-untyped-def]
            return f"{source.text}flush_to_zero = 1\n"

    limits = replace(LIMITS, iterations=1)
    with staged(repository(tmp_path / "user"), tmp_path / "home", ["wrong"], [Flushes()], limits=limits) as stage:
        stage.run()
        assert "; usual causes that fit: flush_to_zero or approximate rounding" in stage.rows[1].reason


def test_an_escalation_does_not_call_reverted_what_waits_for_a_gpu() -> None:
    baseline = Iteration(n=0, optimization="baseline", correctness="PASS", status="keep", reason="the untouched code")
    confirm = ToConfirm(speedup=2.8, kind="form", patch="1.patch", command="")
    waiting = replace(baseline, n=1, optimization="whole rows", status="revert", reason="faster", to_confirm=confirm)
    text = escalation.written("norm", "norm.py", (), (baseline, waiting))
    assert "1. whole rows: waits: faster" in text


@pytest.mark.parametrize("measured", [True, False])
@pytest.mark.parametrize(
    ("resource", "cause"), [("unknown", "unknown"), ("issue slots", "scheduling"), ("traffic", "")]
)
def test_a_limit_that_nothing_eases_is_escalated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, measured: bool, resource: str, cause: str
) -> None:
    """Also without a GPU."""
    plain = Scripted.final

    def final(gate: Scripted, variant: Variant) -> tuple[Metrics, ...]:
        found = Diagnosis(0.3, "machine code and predicted time", ResourceLimit(resource, 9.0, "12 µs; 3 µs"))  # type: ignore[arg-type]
        return tuple(replace(metrics, diagnosis=found) for metrics in plain(gate, variant))

    limits = replace(LIMITS, iterations=1)
    with staged(repository(tmp_path / "user"), tmp_path / "home", [0.9], [Lines()], limits=limits) as stage:
        stage.run()
        monkeypatch.setattr(Scripted, "final", final)
        stage.gate.measured = measured
        done = finish(stage.loop, ["the end"], None)
        file = done.folder / escalation.FILE
        assert file.exists() == bool(cause)
        assert (f"a person is needed for small ({cause}): {file}" in str(done.record.stop_reason)) == bool(cause)
        if cause:
            text = file.read_text()
            assert "1. lines of T: the end: keep:" in text and f"tilewright inspect {done.record.where} --lines" in text


def test_a_dry_run_lists_the_proposals_and_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TILEWRIGHT_HOME", str(tmp_path / "home"))
    file = repository(tmp_path / "user")
    (tmp_path / "ops.py").write_text(SCALE.replace("* 2", "* 2.0"))
    before = git(file.parent, "for-each-ref")
    change = ("--change", str(tmp_path / "ops.py"))
    asked = ("optimize", str(file), "--arch", "sm_90", "--dry-run", "--policy", "base", *change)
    assert cli.main((*asked, "--json")) == 0
    plan = json.loads(capsys.readouterr().out)["proposals"]
    assert plan[0]["optimization"] == "proposed: ops.py" and plan[1]["why"].startswith("line ")
    places = [int(each["why"].partition("place ")[2].split()[0]) for each in plan[1:] if "place " in each["why"]]
    assert len(places) > 3 and places == sorted(places), "the base policy follows the list"
    assert cli.main(asked) == 0
    assert f"{len(plan)} proposals for scale on sm_90; nothing was changed or stored" in capsys.readouterr().out
    assert git(file.parent, "for-each-ref") == before
    with Ledger(tmp_path / "home" / "ledger.db") as ledger:
        assert not ledger.runs()
