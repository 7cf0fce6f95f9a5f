"""Talking to the worker process: it may hang, crash, or write half a line; the parent goes on (trust.md 29, 34)."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.processes import PATIENCE, until

from tilewright.errors import MachineError, NoGpu, TaskError
from tilewright.optimize.time_limit import TimeUp, within
from tilewright.worker import session as session_module
from tilewright.worker.messages import Advanced, Message, Step
from tilewright.worker.outcome import Outcome
from tilewright.worker.session import Session

START = """\
import json, os, signal, sys, time
def say(**said):  # all in one piece
    lines = []
    for name, value in said.items():
        message = {
            "started": {"message": "Started"},
            "at": {"message": "Running", "at": value},
            "progress": {"message": "Advanced", "rounds": value},
            "error": {"message": "Refused", "error": value},
            "failed": {"message": "Broken", "reason": value, "dead": said.get("dead")},
            "done": {"message": "Echo", "values": value},
        }.get(name)
        if message:
            lines.append(json.dumps(message) + "\\n")
    sys.stdout.write("".join(lines))
    sys.stdout.flush()
opened = json.loads(sys.stdin.readline())
task, files = opened["where"], dict(opened["files"])
"""
READY = "say(started=True)\n"
REQUESTS = "for line in sys.stdin:\n    request = json.loads(line)['values']\n"
ECHO = START + READY + REQUESTS + "    say(done={'pid': os.getpid(), 'task': task, **request})\n"

Make = Callable[[str], Session]


@dataclass(frozen=True)
class Echo(Message):
    values: dict[str, Any]


@dataclass(frozen=True)
class Ask(Step[Echo]):
    values: dict[str, Any]
    answer = Echo


def ask(session: Session, values: dict[str, Any], **more: Any) -> dict[str, Any] | Outcome[Echo]:
    """Returns the values of the answer, or the outcome without one."""
    outcome = session.run(Ask(values), **more)
    return outcome if outcome.answer is None else outcome.answer.values


@pytest.fixture
def worker() -> Iterator[Make]:
    """Sessions whose child runs the given lines instead of the GPU worker."""
    made: list[Session] = []

    def make(script: str) -> Session:
        made.append(Session("ops.py:task", [sys.executable, "-u", "-c", script]))
        return made[-1]

    yield make
    for one in made:
        one.close()


def answering(lines: str) -> str:
    """A worker that starts well and then does ``lines`` for each request."""
    body = "".join(f"    {line}\n" for line in lines.splitlines())
    return START + READY + REQUESTS + body


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def pid_of(session: Session) -> int:
    assert session._process is not None
    return session._process.pid


def test_a_request_is_answered(worker: Make) -> None:
    session = worker(ECHO)
    first, second = ask(session, {"do": "this"}), ask(session, {"do": "that"})
    assert isinstance(first, dict) and isinstance(second, dict)
    assert (first["do"], second["do"], first["task"]) == ("this", "that", "ops.py:task")
    assert first["pid"] == second["pid"], "one process serves both"
    assert session.losses == 0


def test_every_process_opens_the_same_files(worker: Make) -> None:
    """What judges a version is the baseline, also after a loss."""
    script = START + READY + REQUESTS + "    say(done={'task': task, 'files': files})\n    os._exit(0)\n"
    named = {"/home/u/ops.py": "/runs/7/baseline/ops.py"}
    late = Session(None, [sys.executable, "-u", "-c", script])
    late.open("ops.py:late", named)
    early = Session("ops.py:early", [sys.executable, "-u", "-c", script], named)
    for session, task in ((late, "ops.py:late"), (early, "ops.py:early")):
        with session:
            assert ask(session, {}) == {"task": task, "files": named}
            assert isinstance(ask(session, {}), Outcome)
            assert ask(session, {}) == {"task": task, "files": named}
    assert ask(worker(script), {}) == {"task": "ops.py:task", "files": {}}


def test_starting_does_not_wait_for_the_process(worker: Make, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    session = worker(f"import os, time\nwhile not os.path.exists({str(gate)!r}): time.sleep(0.01)\n" + ECHO)
    gate.touch()  # whoever waited for the process would not come here
    assert isinstance(ask(session, {}), dict)


def test_closing_ends_the_process(worker: Make) -> None:
    with worker(ECHO) as session:
        ask(session, {})
        pid = pid_of(session)
    assert until(lambda: not alive(pid)), "nobody waits while it gives back the GPU's memory"
    session.close()


def test_progress_comes_through_before_the_answer(worker: Make) -> None:
    seen: list[Any] = []
    session = worker(answering("for n in range(3): say(progress=n)\nsay(done={})"))
    assert ask(session, {}, on_progress=seen.append) == {}
    assert seen == [Advanced(0), Advanced(1), Advanced(2)]


def test_progress_counts_as_a_sign_of_life(worker: Make) -> None:
    """Silence is what ends a worker, not the length of the work."""
    session = worker(answering("for n in range(25): say(progress=n); time.sleep(0.2)\nsay(done={})"))
    assert ask(session, {}, silence=4.0) == {}  # of 5 s


def test_a_hang_is_lost_and_the_process_killed(worker: Make) -> None:
    ignores = "signal.signal(signal.SIGTERM, signal.SIG_IGN)\nsay(started=True, at=4)\ntime.sleep(3600)"
    session = worker(START + ignores)
    pid = pid_of(session)
    assert ask(session, {}, silence=1.0) == Outcome("HANG_DETECTED", reason="no answer for 1 s: a kernel hangs", at=4)
    assert not alive(pid)
    assert session.losses == 1


def test_a_crash_is_lost_with_its_last_words_and_the_signal(worker: Make) -> None:
    session = worker(
        answering(
            "say(at=2)\nprint('first', file=sys.stderr)\nprint('CUDA error: illegal address', file=sys.stderr)\n"
            "os.kill(os.getpid(), signal.SIGSEGV)"
        )
    )
    answer = ask(session, {})
    assert answer == Outcome("FAILED", reason="CUDA error: illegal address (killed by signal 11)", at=2)


def test_an_exit_without_a_word_is_lost_with_its_code(worker: Make) -> None:
    """trust.md 29: no answer is a failure, whatever the exit code."""
    for code in (0, 7):
        assert ask(worker(answering(f"os._exit({code})")), {}) == Outcome(
            "FAILED", reason=f"no message (exit code {code})"
        )


def test_half_a_line_is_lost(worker: Make) -> None:
    session = worker(answering('sys.stdout.write(\'{"done": {"ratio"\'); sys.stdout.flush(); os._exit(0)'))
    assert isinstance(ask(session, {}, silence=5), Outcome)


@pytest.mark.parametrize("text", ["what a print leaves", "[1, 2]", "3", "{}", '{"done"'])
def test_a_line_that_is_no_message_is_lost_at_once(worker: Make, text: str) -> None:
    """The process lives on and says nothing more: the parent need not wait for the silence to end."""
    session = worker(answering(f"print({text!r}, flush=True)\ntime.sleep(3600)"))
    pid = pid_of(session)
    answer = ask(session, {}, silence=3600)
    assert isinstance(answer, Outcome)
    assert not alive(pid)


def test_what_is_wrong_with_the_task_is_raised(worker: Make) -> None:
    session = worker(answering("say(error='task x: the reference is one constant')"))
    with pytest.raises(TaskError, match="the reference is one constant"):
        ask(session, {})
    assert session.losses == 0


def test_what_the_machine_lacks_is_no_mistake_of_the_task(worker: Make) -> None:
    said = '{"message": "Refused", "error": "cuda-bindings is not installed; fix: pip install it", "machine": true}'
    session = worker(answering(f"print('{said}', flush=True)"))
    with pytest.raises(MachineError, match="cuda-bindings is not installed"):
        ask(session, {})
    assert session.losses == 0


def test_a_task_that_does_not_load_is_raised_on_the_first_request(worker: Make) -> None:
    session = worker(START + "say(error='ops.py:3: does not import')\n")
    with pytest.raises(TaskError, match="ops.py:3"):
        ask(session, {})


def test_a_failure_that_the_process_survived_keeps_it(worker: Make) -> None:
    session = worker(answering("say(failed='out of GPU memory', dead=False)"))
    pid = pid_of(session)
    assert ask(session, {}) == Outcome("FAILED", reason="out of GPU memory")
    assert ask(session, {}) == Outcome("FAILED", reason="out of GPU memory")
    assert session.losses == 0, "its buffers are still there"
    assert pid_of(session) == pid and alive(pid)


def test_a_failure_that_broke_the_context_ends_the_process(worker: Make) -> None:
    session = worker(answering("say(at=1)\nsay(failed='illegal memory access', dead=True)"))
    pid = pid_of(session)
    assert ask(session, {}) == Outcome("FAILED", reason="illegal memory access", at=1)
    assert not alive(pid)
    assert session.losses == 1


def test_after_a_loss_the_next_request_starts_another(worker: Make) -> None:
    dies_once = answering("if request.get('die'): os._exit(1)\nsay(done={'pid': os.getpid(), 'task': task})")
    session = worker(dies_once)
    before = ask(session, {})
    for losses in (1, 2):
        assert isinstance(ask(session, {"die": True}), Outcome)
        assert session.losses == losses
        after = ask(session, {})
        assert isinstance(before, dict) and isinstance(after, dict)
        assert after["pid"] != before["pid"] and after["task"] == "ops.py:task"
        before = after


def test_what_a_dead_process_said_late_does_not_answer_the_next_request(worker: Make) -> None:
    session = worker(
        answering("if request['n'] == 0: say(progress=0); time.sleep(3600)\nsay(done={'n': request['n']})")
    )
    assert isinstance(ask(session, {"n": 0}, silence=0.3), Outcome)
    assert ask(session, {"n": 1}) == {"n": 1}


def test_after_an_interrupted_request_the_next_one_gets_its_own_answer(worker: Make) -> None:
    """P-11: the time limit of an iteration comes as an exception, in the middle of a request."""
    session = worker(answering("time.sleep(request['s'])\nsay(done={'s': request['s']})"))
    assert ask(session, {"s": 0}) == {"s": 0}
    with pytest.raises(TimeUp), within(1.0):
        ask(session, {"s": 3600})
    assert session.losses == 1, "what the process had prepared is gone with it"
    assert ask(session, {"s": 0}) == {"s": 0}


def test_a_process_that_died_between_requests_is_lost(worker: Make) -> None:
    session = worker(ECHO)
    ask(session, {})
    assert session._process is not None
    session._process.kill()
    session._process.wait()
    assert isinstance(ask(session, {}), Outcome)
    assert session.losses == 1
    assert isinstance(ask(session, {}), dict)


def test_a_worker_without_torch_says_what_to_install(worker: Make) -> None:
    with pytest.raises(NoGpu, match="pip install torch") as caught:
        ask(worker("raise ModuleNotFoundError(\"No module named 'torch'\")"), {})
    assert "\n" not in str(caught.value)


def test_a_worker_that_cannot_start_says_its_last_words(worker: Make) -> None:
    with pytest.raises(MachineError, match="did not start: RuntimeError: no driver .exit code 1.") as caught:
        ask(worker("raise RuntimeError('no driver')"), {})
    assert "\n" not in str(caught.value)


def test_a_worker_that_greets_wrongly_has_not_started(worker: Make) -> None:
    with pytest.raises(MachineError, match="did not start; it said"):
        ask(worker("print('hello', flush=True)\nimport time; time.sleep(3600)"), {})


def test_a_worker_that_never_gets_ready_is_not_waited_for(worker: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_module, "START_SECONDS", 0.3)
    session = worker("import time; time.sleep(3600)")
    pid = pid_of(session)
    with pytest.raises(MachineError, match="did not start within 0.3 s"):
        ask(session, {})
    assert not alive(pid)


def test_a_flood_of_errors_does_not_block_the_worker(worker: Make) -> None:
    """stderr is read all the time: a full pipe would hang the worker, and a hang is blamed on a kernel."""
    session = worker(answering("for n in range(5000): print('x' * 79, file=sys.stderr)\nsay(done={})"))
    assert ask(session, {}, silence=PATIENCE) == {}


@pytest.mark.filterwarnings("error::ResourceWarning", "error::pytest.PytestUnraisableExceptionWarning")
def test_a_closed_session_leaves_no_open_files(worker: Make) -> None:
    before = set(os.listdir("/proc/self/fd"))
    session = worker(ECHO)
    ask(session, {})
    session.close()
    assert until(lambda: len(os.listdir("/proc/self/fd")) <= len(before))
