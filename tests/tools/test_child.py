"""The runner of tools: what it starts ends with it, and what fails says so in one line."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.processes import for_ever, gone, own_children, running, until

from tilewright.errors import CompilerMissing, ToolFailed
from tilewright.tools import child, keeper
from tilewright.tools.child import Finished, ToolPool, run, workplace


def tool(folder: Path, script: str) -> str:
    path = folder / "tool"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return str(path)


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
    other = for_ever()
    with pytest.raises(ToolFailed, match=r"tool did not end: it used .* s of processor time in 0\.5 s; fix: mend it"):
        run([tool(tmp_path, f"sleep {other} & wait")], 5, patience=0.1, fix="mend it")
    assert gone(other)


def test_a_tool_that_leaves_others_behind_takes_them_with_it(tmp_path: Path) -> None:
    other = for_ever()
    assert run([tool(tmp_path, f"sleep {other} & exit 0")], 5).returncode == 0
    assert gone(other)


def test_the_budget_is_processor_time(tmp_path: Path) -> None:
    assert run([tool(tmp_path, "sleep 1.5")], 1, patience=100).returncode == 0
    with pytest.raises(ToolFailed, match="longer than its budget of 1 s of processor time"):
        run([tool(tmp_path, "while :; do :; done")], 1, patience=100)


def test_what_prints_without_end_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child, "OUTPUT_BYTES", 1 << 16)
    limited = 'while [ "$(ulimit -f)" = unlimited ]; do :; done'  # the limit is set when the tool has started
    done = run([tool(tmp_path, f"{limited}; exec yes")], 60)
    assert done.returncode != 0 and len(done.stdout) == 1 << 16


def test_temporary_files_of_a_tool_are_removed(tmp_path: Path) -> None:
    with workplace() as folder:
        run([tool(tmp_path, 'echo left > "$TMPDIR/left"')], 5, folder)
        assert (folder / "left").read_text() == "left\n"
    assert not folder.exists()


def test_ctrl_c_ends_a_pool_at_once(tmp_path: Path) -> None:
    hangs = for_ever()
    path = tool(tmp_path, f"sleep {hangs}")
    pool = ToolPool(2, "tools")
    futures = [pool.submit(run, [path], 60) for _ in range(4)]
    assert until(lambda: running(hangs))

    def interrupted() -> None:
        with pool:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert gone(hangs)
    assert all(future.done() for future in futures)


def test_the_end_of_a_pool_leaves_the_tools_of_others(tmp_path: Path) -> None:
    """Such as compilers in another thread, when the time of a workload is over."""
    mine, other = for_ever(), for_ever()
    for folder in (tmp_path / "mine", tmp_path / "other"):
        folder.mkdir()
    with ToolPool(1, "other") as others:
        going_on = others.submit(run, [tool(tmp_path / "other", f"sleep {other}")], 60)
        pool = ToolPool(1, "mine")
        ended = pool.submit(run, [tool(tmp_path / "mine", f"sleep {mine}")], 60)
        assert until(lambda: running(mine) and running(other))
        pool.end()
        assert ended.result().returncode < 0 and gone(mine)
        assert running(other) and not going_on.done()
        others.end()
    assert gone(other)


PROGRAM = """
from tilewright.tools import child
limit = child._limit
def limited(*given):  # the keeper has its orders by now
    limit(*given)
    print(folder, flush=True)
child._limit = limited
with child.workplace() as folder:
    (folder / "input").write_text("x")
    child.run([{tool!r}], 3600, folder)
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_a_tool_ends_with_us(tmp_path: Path, number: signal.Signals) -> None:
    """With what the tool has started, and with its folder."""
    other = for_ever()
    code = PROGRAM.format(tool=tool(tmp_path, f"sleep {other} & wait"))
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    with process:
        assert process.stdout
        folder = Path(process.stdout.readline().strip())
        assert folder.is_dir() and until(lambda: running(other))
        process.send_signal(number)
        assert process.wait() != 0
    assert gone(other)
    assert until(lambda: not folder.exists())


ENDED = """
import os, shutil, signal, sys
from pathlib import Path
from tilewright.tools import child
class Interruption(BaseException): pass
def ended(*given, **options):
    if {number} == signal.SIGKILL:
        os.kill(os.getpid(), signal.SIGKILL)
    raise Interruption
if {at!r} == "made":
    make = Path.mkdir
    Path.mkdir = lambda *given, **options: (make(*given, **options), ended())
else:
    shutil.rmtree = ended
with child.workplace() as folder:
    (folder / "input").write_text("x")
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
@pytest.mark.parametrize("at", ["made", "removed"])
def test_no_moment_leaves_a_workplace(at: str, number: signal.Signals, tmp_path: Path) -> None:
    """Neither the moment at which it has just been made, nor the one at which it is about to be removed."""
    code = ENDED.format(number=int(number), at=at)
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert done.returncode != 0 and (number == signal.SIGKILL or "Interruption" in done.stderr), done.stderr
    assert until(lambda: not list(tmp_path.glob("tilewright-*")))


def test_the_keeper_removes_a_folder_that_a_tool_still_writes_into(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, remove, seen = tmp_path / "work", shutil.rmtree, []

    def late(path: str, **options: Any) -> None:
        remove(path, **options)
        if len(seen) < 3:  # git, which ends a moment after us
            folder.mkdir()
            (folder / "index").write_text("")
        seen.append(path)

    folder.mkdir()
    monkeypatch.setattr(keeper, "SECONDS", 0.0)
    monkeypatch.setattr(shutil, "rmtree", late)
    keeper._remove(str(folder))
    assert not folder.exists() and len(seen) == 4


IMPORTED = """
import os, signal
from tilewright.tools import child
child.name_folder_of_cutile()
with child.workplace():  # starts the keeper
    from cuda.tile import _context
    print(_context.get_temp_dir_from_env(), flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_killed_process_leaves_no_folder_of_cutile(tmp_path: Path) -> None:
    environment = {**os.environ, "TMPDIR": str(tmp_path), child.CUTILE_FOLDER: ""}
    done = subprocess.run([sys.executable, "-c", IMPORTED], env=environment, capture_output=True, text=True)
    assert done.stdout.startswith(f"{tmp_path}/tilewright-") and done.returncode == -signal.SIGKILL, done.stderr
    assert until(lambda: not list(tmp_path.iterdir()))


@pytest.mark.parametrize("named", [True, False])
def test_a_folder_of_cutile_that_the_user_names_is_kept(
    named: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(child, "_own_cutile_folder", [])
    monkeypatch.setenv(child.CUTILE_FOLDER, str(tmp_path) if named else "")
    child.name_folder_of_cutile()
    folder = Path(os.environ[child.CUTILE_FOLDER])
    folder.mkdir(exist_ok=True)
    child.remove_folder_of_cutile()
    assert folder.exists() == named and (folder == tmp_path) == named


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
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "none\n"


def test_a_program_that_ignores_its_children_still_gets_the_output(tmp_path: Path) -> None:
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        assert run([tool(tmp_path, "echo there")], 5).stdout == "there\n"
    finally:
        signal.signal(signal.SIGCHLD, before)


def test_a_forked_copy_runs_its_own_tools(tmp_path: Path) -> None:
    path = tool(tmp_path, f"touch {tmp_path}/started; sleep 0.5; exit 7")
    thread = threading.Thread(target=run, args=([path], 5))
    thread.start()
    assert until((tmp_path / "started").exists)
    if (pid := os.fork()) == 0:
        returncode = 1
        try:
            child.kill_all()  # none of the parent's
            returncode = run([path], 5).returncode
        finally:
            os._exit(returncode)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
    thread.join()


def test_processor_time_of_a_job_is_added_up(tmp_path: Path) -> None:
    """Of all tools of the job, and of no other."""
    burn = "import time\nwhile time.process_time() < 0.2: pass"
    with child.doing("a job") as spent:
        run([sys.executable, "-c", burn], 10)
        first = spent.seconds
        run([sys.executable, "-c", burn], 10)
    run([sys.executable, "-c", burn], 10)
    assert 0.2 <= first < spent.seconds and spent.seconds >= 0.4


def test_a_child_in_which_a_kernel_hangs_ends_with_its_parent() -> None:
    word = for_ever()
    hangs = "import time; from tilewright.tools import child; child.END_SECONDS = 0; child.end_with_parent(); "
    hangs += "print('there', flush=True); time.sleep(3600)"
    code = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {hangs!r}, {word!r}])"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None and parent.stdout.readline() == b"there\n" and running(word)
        parent.kill()
    assert until(lambda: not running(word))
