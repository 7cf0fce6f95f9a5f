"""Ctrl-C and SIGTERM wherever they reach a command: its end is one line and the exit code, always the same."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest

SRC = Path(__file__).parents[2] / "src"

INTERRUPTED = {
    "code that is done later": """
        async def never(): ...

        def work():
            made = never()
            interrupt()

        work()
    """,
    "code that Python collects at its end": """
        async def never(): ...

        with warnings.catch_warnings():
            made = [never()]
            made.append(made)
            interrupt()
    """,
    "an error that Python ignores": """
        def work():
            try:
                yield
            finally:
                raise ValueError("in the clean-up")

        made = work()
        next(made)
        interrupt()
    """,
    "a destructor": """
        class Gone:
            def __del__(self):
                interrupt()

        Gone()
        time.sleep(600)
    """,
    "a callback": """
        class Thing: ...

        thing = Thing()
        reference = weakref.ref(thing, lambda _: interrupt())
        del thing
        while True: pass
    """,
    "code that swallows it": """
        try:
            interrupt()
        except BaseException:
            pass
        time.sleep(600)
    """,
    "code that cleans up for long": """
        try:
            interrupt()
        finally:
            for _ in range(5):
                try:
                    time.sleep(0.1)
                except BaseException:
                    print("stopped while it cleans up", file=sys.stderr)
    """,
    "text that is executed": "exec('interrupt()')",
    "code that makes another error of it": """
        try:
            interrupt()
        except BaseException:
            raise ImportError("a module in C says so") from None
    """,
}
"""What is interrupted → lines of a task file, which the command executes."""

SIGNALS = pytest.mark.parametrize(
    ("number", "said"), [(signal.SIGINT, "interrupted\n"), (signal.SIGTERM, "terminated\n")], ids=["Ctrl-C", "SIGTERM"]
)


def ended(file: Path, lines: str, *command: str) -> subprocess.CompletedProcess[str]:
    """How a command ends that imports ``file`` with the given lines. Python shows every warning."""
    file.write_text("import os, sys, time, warnings, weakref\n" + dedent(lines))
    environment = {
        **os.environ, "PYTHONPATH": os.pathsep.join((str(file.parent), str(SRC))),
        "PYTHONWARNINGS": "always::RuntimeWarning",
    }  # fmt: skip
    return subprocess.run(
        [sys.executable, "-m", "tilewright", *command], env=environment, capture_output=True, text=True
    )


@SIGNALS
@pytest.mark.parametrize("what", INTERRUPTED)
def test_an_interruption_is_one_line(what: str, number: int, said: str, tmp_path: Path) -> None:
    lines = f"def interrupt(): os.kill(os.getpid(), {int(number)})\n" + dedent(INTERRUPTED[what])
    done = ended(tmp_path / "ops.py", lines, "inspect", str(tmp_path / "ops.py"), "--arch", "sm_90")
    assert (done.returncode, done.stdout, done.stderr) == (128 + number, "", said)


@SIGNALS
def test_a_signal_while_the_command_line_is_imported_is_one_line(number: int, said: str, tmp_path: Path) -> None:
    """Its first import is of a file that executes text, which interrupts it."""
    done = ended(tmp_path / "typer.py", f"exec('os.kill(os.getpid(), {int(number)})')\ntime.sleep(600)", "--version")
    assert (done.returncode, done.stdout, done.stderr) == (128 + number, "", said)


def test_sigterm_ends_a_command_also_where_sigint_is_ignored(tmp_path: Path) -> None:
    """As in a job that a shell starts in the background."""
    file = tmp_path / "ops.py"
    file.write_text(f"import os, signal, time\nos.kill(os.getpid(), {int(signal.SIGTERM)})\ntime.sleep(600)\n")
    code = (
        "import signal, sys; signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
        "from tilewright.__main__ import main; sys.exit(main())"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "inspect", str(file), "--arch", "sm_90"],
        env={**os.environ, "PYTHONPATH": str(SRC)}, capture_output=True, text=True,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (128 + signal.SIGTERM, "", "terminated\n")


def test_a_late_look_ends_nothing() -> None:
    """The thread looks once more after the end of its block, and of the block around it."""
    code = """
import os, signal, time
from tilewright.cli.interruption import Signalled, interruptible
try:
    with interruptible([]), interruptible([]):
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(600)
except Signalled:
    os.kill(os.getpid(), signal.SIGTERM)
    print("still here")
"""
    environment = {**os.environ, "PYTHONPATH": str(SRC)}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout) == (0, "still here\n"), done.stderr


NOEXCEPT = 'extern "C" void work(void (*step)()) noexcept { for (;;) step(); }'
"""C++ that must not throw and calls Python again and again. Python's shutdown throws in such a thread."""
TASK = """
import ctypes, threading

work = ctypes.CDLL({library!r}).work
threading.Thread(target=work, args=(ctypes.CFUNCTYPE(None)(lambda: None),), daemon=True).start()
{then}
"""


@pytest.mark.skipif(shutil.which("g++") is None, reason="compiles C++")
@pytest.mark.parametrize(
    ("then", "code"),
    [("", 2), (f"import os, time\nos.kill(os.getpid(), {int(signal.SIGTERM)})\ntime.sleep(600)", 143)],
    ids=["a wrong request", "SIGTERM"],
)
def test_a_daemon_thread_in_cpp_does_not_abort_the_command(then: str, code: int, tmp_path: Path) -> None:
    """It happened once to `tune`: one line was printed, and the exit code was that of an abort."""
    source, library, task = (tmp_path / name for name in ("work.cpp", "work.so", "task.py"))
    source.write_text(NOEXCEPT)
    subprocess.run(["g++", "-shared", "-fPIC", "-o", library, source], check=True)
    task.write_text(TASK.format(library=str(library), then=then))
    done = subprocess.run(
        [sys.executable, "-m", "tilewright", "inspect", str(task), "--arch", "sm_90"],
        env={**os.environ, "PYTHONPATH": str(SRC)}, capture_output=True, text=True,
    )  # fmt: skip
    assert (done.returncode, "terminate called" in done.stderr) == (code, False), done.stderr
