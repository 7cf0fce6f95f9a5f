"""The worker process that starts before the command line is loaded."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tilewright.worker import early

SRC = Path(__file__).parents[2] / "src"
WAITS = [sys.executable, "-c", "import sys; sys.stdin.read()"]


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[subprocess.Popen[str]]]:
    """The processes that are started, on a machine that is said to have a driver."""
    processes: list[subprocess.Popen[str]] = []
    real = early.spawned

    def spawned(command: Sequence[str] = early.WORKER) -> subprocess.Popen[str]:
        processes.append(real((*WAITS, *command)))
        return processes[-1]

    monkeypatch.setattr(early, "has_driver", lambda: True)
    monkeypatch.setattr(early, "spawned", spawned)
    monkeypatch.setattr(early, "_begun", [])
    yield processes
    for process in processes:
        process.kill()
        process.communicate()


def test_the_command_takes_the_process_that_was_begun(started: list[subprocess.Popen[str]]) -> None:
    early.begin(["tune", "ops.py", "--json"])
    assert len(started) == 1
    assert early.early_worker() is started[0] and len(started) == 1
    assert early.early_worker() is started[1], "a second one is started for whoever asks again"


def test_a_task_with_a_trusted_implementation_imports_torch_at_once(
    started: list[subprocess.Popen[str]], tmp_path: Path
) -> None:
    for name, text in (("plain.py", "tw.Task()"), ("judged.py", "tw.Task(trusted=product)")):
        (tmp_path / name).write_text(text)
    for word in ("plain.py:task", "judged.py:task", "absent.py", "name"):
        early.begin(["tune", str(tmp_path / word)])
    assert [early.WITH_TORCH in one.args for one in started] == [False, True, False, False]  # type: ignore[operator]


@pytest.mark.parametrize(
    "words",
    [[], ["tune", "--help"], ["optimize", "ops.py", "-h"], ["inspect", "ops.py"], ["--version"], ["lint", "tune"]],
)
def test_other_words_start_nothing(started: list[subprocess.Popen[str]], words: list[str]) -> None:
    early.begin(words)
    assert not started


def test_without_a_driver_nothing_starts(started: list[subprocess.Popen[str]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(early, "has_driver", lambda: False)
    early.begin(["tune", "ops.py"])
    assert not started and early.early_worker() is None


def test_a_process_that_no_command_takes_is_ended(started: list[subprocess.Popen[str]]) -> None:
    early.begin(["tune", "--no-such-option"])
    early.end()
    assert started[0].wait() == -9


def test_it_starts_before_the_command_line_is_loaded(tmp_path: Path) -> None:
    """And no second process starts before the task is read."""
    seen = tmp_path / "seen.json"
    code = f"""
        import json, sys
        sys.path.insert(0, {str(SRC)!r})
        from tilewright.worker import early
        real, loaded = early.spawned, []

        def spawned(command=early.WORKER):
            loaded.append(sorted({{"typer", "numpy", "tilewright.records"}} & set(sys.modules)))
            return real({WAITS!r})

        early.spawned, early.has_driver = spawned, lambda: True
        sys.argv = ["tilewright", "tune", "no_such_file.py"]
        from tilewright.__main__ import main
        code = main()
        json.dump([code, loaded], open({str(seen)!r}, "w"))
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert json.loads(seen.read_text()) == [2, [[]]], done.stderr
