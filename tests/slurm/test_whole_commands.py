"""Whole commands in an allocation of a real SLURM: one allocation for each, and what they leave is here afterwards."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.coordinate.made_agent import PROGRAM, program_in
from tests.optimize.kit import SCALE, repository
from tests.remote.driven import AGENT, HANDED, context_of, over_there
from tests.remote.kit import wait_for
from tests.slurm.kit import Cluster, needs_slurm

from tilewright.cli.main import main
from tilewright.ledger.agent_runs import AgentLedger
from tilewright.ledger.ledger import Ledger

pytestmark = [needs_slurm, pytest.mark.usefixtures("environ"), pytest.mark.timeout(240)]
SECOND = 'from tilewright.cli.main import main\nassert main(["check", "ops.py", "--on", "slurm"]) == 2\n'


@pytest.fixture(autouse=True)
def _home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TILEWRIGHT_HOME", str(tmp_path / "home"))


def test_all_specialists_work_in_one_allocation_and_get_one_context(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C-05: byte for byte. Their changes reach the files here and can be taken back."""
    script, before = program_in(tmp_path / "program"), cluster.submitted()
    monkeypatch.chdir(script.parent)
    assert over_there(script.with_name("driver.py"), AGENT, "slurm:main") == 0
    assert cluster.submitted() == before + 1
    assert "fast = 1" in script.read_text() and "faster = 1" in script.read_text()
    with AgentLedger() as ledger:
        run, found = ledger.load("latest")
    assert context_of(found, script.parent) == run.context and "reached with --on slurm:main;" in run.context
    assert main(["agent", "--undo", run.run]) == 0 and script.read_text() == PROGRAM


def test_a_file_of_one_specialist_is_there_for_the_next_and_a_second_allocation_is_refused(
    cluster: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    before = cluster.submitted()
    assert over_there(Path("driver.py"), SECOND + HANDED, "slurm") == 0
    said = capsys.readouterr()
    assert "same context: True" in said.out and cluster.submitted() == before + 1
    assert "this command runs in the allocation of a run, which gets no second one; fix: leave --on" in said.err
    assert "--on slurm" in (tmp_path / "home" / "written" / "kernel.py").read_text()


@pytest.mark.long
def test_optimize_and_profile_leave_what_they_leave_here(
    cluster: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file, before = repository(tmp_path / "user", SCALE.replace("(256,)", "(256, 1024)")), cluster.submitted()
    monkeypatch.chdir(file.parent)
    words = ["--arch", "sm_90", "--seed", "1", "--iterations", "1", "--only", "tile_sizes", "--budget", "60"]
    assert main(["optimize", "ops.py", *words, "--on", "slurm", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    with Ledger() as ledger:
        record, iterations = ledger.run(found["run"]), ledger.iterations(found["run"])
    assert record.where == f"{file}:scale" and record.reproduce.endswith("--on slurm")
    assert [each.n for each in iterations] == [0, 1] and record.finished
    assert main(["profile", "--on", "slurm", "--", "python", "-c", "1"]) == 3
    assert "needs a GPU, and there is none here" in capsys.readouterr().err
    assert cluster.submitted() == before + 2


BEGINS_AGAIN = """\
import os, sys, time
from pathlib import Path
place = Path(PLACE)
done = Path("done.txt")
done.write_text(done.read_text() + "b" if done.exists() else "a")
print(done.read_text(), flush=True)
with (place / "began").open("a") as file:
    file.write(os.environ.get("SLURM_RESTART_COUNT", "0"))
while done.read_text() == "a":
    time.sleep(0.02)
sys.exit(5)
"""
"""Its first run lasts until it is ended, and leaves a file that the second one goes on from."""


@pytest.mark.long
def test_a_command_goes_on_in_a_requeued_job_from_what_it_has_finished(
    cluster: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "user").mkdir()
    monkeypatch.chdir(tmp_path / "user")
    before, began = cluster.submitted(), tmp_path / "began"
    with ThreadPoolExecutor(1) as pool:
        text = BEGINS_AGAIN.replace("PLACE", repr(str(tmp_path)))
        code = pool.submit(over_there, Path("slow.py"), text, "slurm")
        wait_for(began.exists)
        cluster.requeue(cluster.jobs()[0].split()[0])
        assert code.result(120) == 5
    said = capsys.readouterr()
    assert "the command goes on from what it has finished" in said.err
    assert (began.read_text(), said.out.splitlines()) == ("01", ["a", "ab"])
    assert Path("done.txt").read_text() == "ab" and cluster.submitted() == before + 1
