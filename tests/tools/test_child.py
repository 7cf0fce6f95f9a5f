"""The runner of tools: what it starts ends with it, and what fails says so in one line."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.processes import running

from tilewright.errors import CompilerMissing, ToolFailed
from tilewright.tools import child
from tilewright.tools.child import Finished, ToolPool, run, workplace


def tool(folder: Path, script: str) -> str:
    path = folder / "tool"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return str(path)


def gone(word: str, seconds: float = 10) -> bool:
    until = time.monotonic() + seconds
    while running(word) and time.monotonic() < until:
        time.sleep(0.02)
    return not running(word)


def own_children() -> set[int]:
    found: set[int] = set()
    for thread in Path("/proc/self/task").iterdir():
        found |= {int(pid) for pid in (thread / "children").read_text().split()}
    return found


@pytest.fixture(autouse=True)
def _no_children_left() -> Iterator[None]:
    before = own_children()
    yield
    assert own_children() <= before, "also no keeper, for which a user's program could wait for ever"


def test_what_a_tool_prints_is_returned(tmp_path: Path) -> None:
    assert run([tool(tmp_path, "echo out; echo err >&2; exit 3")], 5) == Finished(3, "out\n", "err\n")


def test_bytes_that_are_no_text_are_kept_readable(tmp_path: Path) -> None:
    assert run([tool(tmp_path, "printf '\\377x'")], 5).stdout == "\\xffx"


def test_a_signal_is_the_return_code(tmp_path: Path) -> None:
    done = run([tool(tmp_path, "kill -SEGV $$")], 5)
    assert done.returncode == -signal.SIGSEGV
    assert done.complaint("tool") == "tool was killed by signal 11 (Segmentation fault)"


def test_a_tool_that_cannot_be_started_says_why_and_what_to_do(tmp_path: Path) -> None:
    path = tool(tmp_path, "exit 0")
    Path(path).chmod(0o644)
    with pytest.raises(CompilerMissing) as caught:
        run([path], 5, fix="pip install it")
    assert str(caught.value) == f"tool cannot be started (permission denied); fix: chmod +x {path}"
    Path(path).unlink()
    with pytest.raises(CompilerMissing, match=r"tool cannot be started \(.*: No such file or dir.*; fix: pip install"):
        run([path], 5, fix="pip install it")
    Path(path).write_text("no program")
    Path(path).chmod(0o755)
    with pytest.raises(CompilerMissing, match="Exec format error"):
        run([path], 5)


def test_a_tool_that_hangs_is_ended_with_what_it_started(tmp_path: Path) -> None:
    begun = time.monotonic()
    with pytest.raises(ToolFailed, match=r"tool did not end: it used .* s of processor time in 0\.4 s; fix: mend it"):
        run([tool(tmp_path, "sleep 71.5 & wait")], 0.05, fix="mend it")
    assert time.monotonic() - begun < 5 and gone("71.5")


def test_a_tool_that_leaves_others_behind_takes_them_with_it(tmp_path: Path) -> None:
    assert run([tool(tmp_path, "sleep 72.5 & exit 0")], 5).returncode == 0
    assert gone("72.5")


def test_the_budget_is_processor_time(tmp_path: Path) -> None:
    assert run([tool(tmp_path, "sleep 1.5")], 1).returncode == 0
    with pytest.raises(ToolFailed, match="longer than its budget of 1 s of processor time"):
        run([tool(tmp_path, "while :; do :; done")], 1)


def test_what_prints_without_end_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child, "OUTPUT_BYTES", 1 << 16)
    done = run([tool(tmp_path, "exec yes")], 60)
    assert done.returncode != 0 and 1 << 16 <= len(done.stdout) < 1 << 28  # it writes until the limit is set


def test_temporary_files_of_a_tool_are_removed(tmp_path: Path) -> None:
    with workplace() as folder:
        run([tool(tmp_path, 'echo left > "$TMPDIR/left"')], 5, folder)
        assert (folder / "left").read_text() == "left\n"
    assert not folder.exists()


def test_ctrl_c_ends_a_pool_at_once(tmp_path: Path) -> None:
    path, begun = tool(tmp_path, "sleep 73.5"), time.monotonic()
    pool = ToolPool(2, "tools")
    futures = [pool.submit(run, [path], 60) for _ in range(4)]
    while not running("73.5"):
        time.sleep(0.01)

    def interrupted() -> None:
        with pool:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert time.monotonic() - begun < 10 and gone("73.5")
    assert all(future.done() for future in futures)


PROGRAM = """
import sys, time
from tilewright.tools.child import run, workplace
with workplace() as folder:
    (folder / "input").write_text("x")
    print(folder, flush=True)
    run([{tool!r}], 60, folder)
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_a_tool_ends_with_us(tmp_path: Path, number: signal.Signals) -> None:
    """With what the tool has started, and with its folder."""
    code = PROGRAM.format(tool=tool(tmp_path, "sleep 74.5 & wait"))
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    with process:
        assert process.stdout
        folder = Path(process.stdout.readline().strip())
        while not running("74.5"):
            time.sleep(0.01)
        time.sleep(0.3)  # the keeper has read its orders
        process.send_signal(number)
        assert process.wait(20) != 0
    assert gone("74.5")
    until = time.monotonic() + 10
    while folder.exists() and time.monotonic() < until:
        time.sleep(0.02)
    assert not folder.exists()


def test_a_program_that_waits_for_all_its_children_is_not_held_up(tmp_path: Path) -> None:
    code = textwrap.dedent(f"""
        import os
        from tilewright.tools.child import run
        run([{tool(tmp_path, "exit 0")!r}], 5)
        try:
            os.wait()
        except ChildProcessError:
            print("none")
    """)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "none\n"


def test_a_program_that_ignores_its_children_still_gets_the_output(tmp_path: Path) -> None:
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        assert run([tool(tmp_path, "echo there")], 5).stdout == "there\n"
    finally:
        signal.signal(signal.SIGCHLD, before)


def test_a_forked_copy_runs_its_own_tools(tmp_path: Path) -> None:
    path = tool(tmp_path, "sleep 0.5; exit 7")
    thread = threading.Thread(target=run, args=([path], 5))
    thread.start()
    time.sleep(0.1)
    if (pid := os.fork()) == 0:
        child.kill_all()  # none of the parent's
        os._exit(run([path], 5).returncode)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
    thread.join()
