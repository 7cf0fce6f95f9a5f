"""``job_spec.json``: what is wrong in it is one line with the fix, and what is missing is asked and never guessed."""

from __future__ import annotations

import io
import json
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tilewright.cli.main import main
from tilewright.errors import TilewrightError
from tilewright.remote import job_spec, login, queue

FULL = {"ssh_host": "login1", "partition": "h100", "account": None, "gpus_per_node": 1, "walltime": "2:00:00"}


def test_other_jobs_of_the_user_are_none_of_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever their names are, also if they have none."""
    queued = "7 RUNNING my job \n8 PENDING  \n9 PENDING tune-abc-01234567   \n10 RUNNING tune-abcd-01234567\n"
    monkeypatch.setattr(login, "slurm", lambda command: subprocess.CompletedProcess(command, 0, queued, ""))
    assert login._found("abc") == {"tune-abc-01234567": login.QueuedJob("9", "PENDING")}


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path / "job_spec.json"


def test_all_fields_are_read(file: Path) -> None:
    more = {
        "slurm_user": "me", "node_count": 1, "job_name": "tune", "cpus_per_task": 8, "container_image": "image.sqsh",
        "mounts": ["/data:/data"], "python": "/opt/python3", "packages": ["einops"], "remote_work_dir": "/scratch/me",
        "remote_cwd": "/home/me", "mfa_style": True, "immediate": True,
    }  # fmt: skip
    assert set(FULL) | set(more) == set(job_spec.FIELDS)
    file.write_text(json.dumps(FULL | more))
    spec = job_spec.read()
    assert (spec.host, spec.mounts, spec.asked["partition"]) == ("me@login1", ("/data:/data",), "h100")
    assert job_spec.read("debug").partition == "debug", "what --on names replaces the field"


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"partitoin": "x"}, "unknown field of job_spec.json 'partitoin'; did you mean 'partition'. known: ssh_host"),
        ({"walltime": "2 hours"}, 'walltime is "2 hours"; fix: make it a time such as 30 .minutes., 2:00:00 or 1-12'),
        ({"gpus_per_node": "1"}, 'gpus_per_node is "1"; fix: make it a number from 0 on'),
        ({"gpus_per_node": None}, "gpus_per_node is null; fix: make it a number"),
        ({"partition": "--uid=0"}, "partition is .*; fix: make it a text"),
        ({"account": ""}, "account is .*; fix: make it a text"),
        ({"mfa_style": "yes"}, 'mfa_style is "yes"; fix: make it true, false or null'),
        ({"node_count": 2}, "node_count is 2, but a run uses one node"),
        ({"container_image": "image"}, 'container_image needs "python" too'),
        ({"mounts": ["/data:/data"]}, 'mounts are for a container; fix: add "container_image"'),
        ({"mounts": "/data:/data"}, "mounts is .*; fix: make it a list of texts"),
        ({"ssh_host": "-oProxyCommand=x"}, "ssh_host is .*; fix: make it a text"),
        ({"ssh_host": None, "slurm_user": "nobody-here"}, "slurm_user is nobody-here, and you are"),
    ],
)
def test_a_mistake_is_one_line(change: dict[str, Any], line: str, file: Path) -> None:
    file.write_text(json.dumps(FULL | change))
    with pytest.raises(TilewrightError, match=line) as error:
        job_spec.read()
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(("text", "line"), [("{", "is no JSON"), ("[]", "is no object of JSON")])
def test_a_file_that_is_no_object_is_one_line(text: str, line: str, file: Path) -> None:
    file.write_text(text)
    with pytest.raises(TilewrightError, match=line):
        job_spec.read()


def test_what_is_missing_is_named_and_not_guessed(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "ops.py", "--on", "slurm"]) == 2
    said = capsys.readouterr().err.strip().splitlines()
    assert len(said) == 1 and all(f'"{name}": ' in said[0] for name in job_spec.NEEDED)
    assert "job_spec.json is not there; it needs" in said[0]
    file.write_text(json.dumps({name: FULL[name] for name in FULL if name != "account"}))
    with pytest.raises(TilewrightError, match='job_spec.json lacks "account": the account that is charged; null: your'):
        job_spec.read()


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_is_asked_and_the_answers_are_kept(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = Terminal()
    monkeypatch.setattr("sys.stdin", Terminal("login1\n\n2\ntomorrow\n1:00:00\n"))
    monkeypatch.setattr("sys.stderr", asked)
    spec = job_spec.read("h100")
    assert (spec.host, spec.partition, spec.account, spec.gpus_per_node) == ("login1", "h100", None, 2)
    assert asked.getvalue().count("walltime (") == 2 and "give a time such as" in asked.getvalue()
    monkeypatch.setattr("sys.stdin", io.StringIO())
    assert job_spec.read() == spec


def test_the_script_starts_the_resident_process_in_the_container(file: Path) -> None:
    more = {"container_image": "my image.sqsh", "mounts": ["/data:/data"], "python": "/opt/python3", "cpus_per_task": 8}
    file.write_text(json.dumps(FULL | more))
    asked, cache = job_spec.read().asked, Path("/scratch/it's me")
    text = login.script(cache, "code", cache / "runs" / "key", asked, "", "/opt/python3", "work", "ops", 300.0)
    [command] = [line for line in text.replace("\\\n", " ").splitlines() if "remote.agent" in line]
    words = shlex.split(command)
    assert words[:2] == ["srun", "--exact"] and "--gres=gpu:1" in words
    assert "--container-image=my image.sqsh" in words
    assert f"--container-mounts={cache}:{cache},/data:/data" in words
    assert words[words.index("-m") - 1 :][:4] == [
        "/opt/python3",
        "-m",
        "tilewright.remote.agent",
        "@tilewright-key-$SLURM_JOB_ID",
    ]
    options = login.options(asked, "name")
    assert {"--no-requeue", "--partition=h100", "--time=2:00:00", "--gres=gpu:1", "--cpus-per-task=8"} <= set(options)
    assert not [word for word in options if word.startswith("--account")]


@pytest.mark.parametrize(
    ("walltime", "minutes"),
    [("90", 90), ("10:30", 11), ("2:00:00", 120), ("0:0:1", 1), ("1-12", 2160), ("1-1:30", 1530), ("2-0:0:0", 2880)],
)
def test_walltimes_are_read_as_sbatch_does(walltime: str, minutes: int) -> None:
    assert queue.minutes(walltime) == minutes


def test_a_shorter_walltime_and_other_partitions_are_tried() -> None:
    found = list(queue.alternatives({"walltime": "60", "partition": "a"}, ("a", "b")))
    assert found == [{"walltime": "30"}, {"walltime": "15"}, {"walltime": "7"}, {"partition": "b"}]
    assert "no shorter walltime or other partition would start earlier" in queue.offer(3600, ())


@pytest.mark.parametrize(
    ("said", "line"),
    [
        ("Access/permission denied", "you may not use partition h100; fix: account or partition in job_spec.json"),
        (
            "Unable to contact slurm controller (connect failure)",
            "SLURM's controller does not answer .*; fix: try again",
        ),
        (
            "sbatch: error: Batch job submission failed: Odd",
            "refuses the allocation: Batch job submission failed: Odd;",
        ),
        ("Job violates accounting/QOS policy", "the limits of account .your default. do not allow this job; fix:"),
        ("", "SLURM refuses the allocation: no message"),
    ],
)
def test_refusals_of_slurm_are_one_line(said: str, line: str) -> None:
    asked = {"partition": "h100", "account": None, "walltime": "60", "gpus_per_node": 1}
    with pytest.raises(AssertionError, match=line):
        raise AssertionError(queue.refusal(said, asked, ("h100",)))


def test_a_reason_for_which_no_job_starts_is_an_error_and_others_are_not() -> None:
    assert queue.hopeless("Priority", FULL) is None and queue.hopeless("Resources", FULL) is None
    for reason in ("PartitionTimeLimit", "QOSMaxWallDurationPerJobLimit"):
        why = queue.hopeless(reason, FULL)
        assert why is not None and "walltime 2:00:00 is longer than partition h100 allows; fix" in why
