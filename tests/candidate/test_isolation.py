"""What the code of a version may do to this process, to the files and to the machine: nothing.

Each case is a version of a task's file with a few more lines. It either loads without having done anything, or its
failure is one line; the next version loads as if nothing had happened.
"""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from threading import Timer
from types import SimpleNamespace
from typing import Any

import pytest
from tests.made_runs import run_record
from tests.processes import PATIENCE, ended, for_ever, gone, running, until

from tilewright.candidate import server
from tilewright.candidate.client import Candidates, VersionError
from tilewright.candidate.sandbox import unprotected
from tilewright.compile.compile import Unit, compile_all, launch_of
from tilewright.errors import MachineError
from tilewright.hardware.architectures import default_board
from tilewright.languages import language_of
from tilewright.languages.base import Lowered
from tilewright.languages.described import DescribedKernel
from tilewright.ledger.ledger import Ledger
from tilewright.optimize.time_limit import TimeUp, within
from tilewright.records import Built, Failed
from tilewright.task.loading import load_task
from tilewright.task.task import Task
from tilewright.tileir.run.launching import Launcher

BOARD = default_board("sm_90")
EXAMPLE = Path(__file__).parents[2] / "examples" / "rms_norm.py"

ENDS = {
    "leaves with code 0": ("import os; os._exit(0)", "its process ended with exit code 0"),
    "crashes": ("import ctypes; ctypes.string_at(0)", "its process was killed by SIGSEGV"),
    "interrupts": ("raise KeyboardInterrupt", "KeyboardInterrupt"),
    "exits": ("raise SystemExit(0)", "does not import: SystemExit"),
    "loops": ("while True: pass", "gave no answer in 1 s"),
    "ignores signals": (
        "import signal; signal.signal(signal.SIGALRM, signal.SIG_IGN)\n"
        "signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))\nwhile True: pass",
        "gave no answer in 1 s",
    ),
    "takes all memory": ("x = bytearray(20 << 30)", "MemoryError"),
    "forges an answer": ("import os; os.write(3, b'{\"message\": \"VersionOpened\"}\\n')", "sent an invalid answer"),
    "answers garbage": ("import os; os.write(3, b'\\xff\\n')", "sent an invalid answer"),
    "answers deep JSON": ("import os; os.write(3, b'[' * 100000 + b'\\n')", "sent an invalid answer"),
    "answers without end": ("import os\nwhile True: os.write(3, b'x' * 65536)", "more than 64 MiB"),
    "answers another thing": (
        "import os; os.write(3, b'{\"message\": \"VersionFailed\", \"stage\": \"race\", \"reason\": \"mine\"}\\n')",
        "mine",
    ),
}  # fmt: skip
"""Name → lines at the end of the version, and what is said of it."""

REFUSED = {
    "writes the user's file": "open(TASK, 'a').write('x')",
    "writes elsewhere": "open('/tmp/tilewright-was-here', 'w')",
    "removes a file": "import os; os.remove(TASK)",
    "renames a file": "import os; os.rename(TASK, TASK + '.old')",
    "makes a folder": "import os; os.mkdir(os.path.dirname(TASK) + '/new')",
    "changes a mode": "import os; os.chmod(TASK, 0o777)",
    "changes a time": "import os; os.utime(TASK, (0, 0))",
    "links over a file": "import os; os.symlink('/etc/passwd', TASK + '.link')",
    "writes through a child": "import subprocess; subprocess.run(['cp', '/dev/null', TASK], check=True)",
    "connects": "import socket; socket.create_connection(('127.0.0.1', 9), 1)",
    "sends a datagram": "import socket; socket.socket(socket.AF_INET, socket.SOCK_DGRAM)",
    "kills its parent": "import os; os.kill(os.getppid(), 9)",
    "kills all": "import os; os.kill(-1, 9)",
    "leaves its session": "import os\nif os.fork() == 0: os.setsid()\nos.setsid()",
    "writes its parent's memory": "import os; open(f'/proc/{os.getppid()}/mem', 'r+b')",
    "traces its parent": "import ctypes, os; l = ctypes.CDLL(None)\n"
    "if l.ptrace(16, os.getppid(), 0, 0): raise OSError('no')",
    "mounts": "import ctypes; l = ctypes.CDLL(None)\nif l.mount(b'n', b'/mnt', b'tmpfs', 0, 0): raise OSError('no')",
    "takes more memory back": (
        "import resource; resource.setrlimit(resource.RLIMIT_DATA, (resource.RLIM_INFINITY,) * 2)"
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def candidates() -> Iterator[Candidates]:
    with Candidates([EXAMPLE], seconds=PATIENCE) as started:
        yield started


@pytest.fixture
def file(tmp_path: Path) -> Path:
    file = tmp_path / "user" / "ops.py"
    file.parent.mkdir()
    file.write_text(EXAMPLE.read_text())
    return file


def version(candidates: Candidates, file: Path, lines: str = "") -> Task:
    """The version with ``lines`` at the end."""
    copy = file.parent.parent / "copy.py"
    copy.write_text(file.read_text() + f"\nTASK = {str(file)!r}\n{lines}\n")
    return candidates.task(load_task(str(file)), str(file), {str(file): str(copy)})


def lowered(task: Task) -> Lowered | Failed:
    unit = Unit(task.selected(None)[0], task.space.shipped, BOARD)
    launch, hints = launch_of(task, unit)
    return language_of(launch.kernel).lower(launch, hints, task.space.shipped, BOARD.arch)


def symbol(task: Task) -> str:
    found = lowered(task)
    assert isinstance(found, Lowered), found
    return found.symbol


def code(task: Task) -> bytes:
    found = lowered(task)
    assert isinstance(found, Lowered), found
    return found.code


@pytest.mark.parametrize("name", ENDS)
def test_what_a_version_does_to_its_process_is_its_failure(
    candidates: Candidates, file: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines, said = ENDS[name]
    seconds = 1 if "no answer" in said else PATIENCE
    with monkeypatch.context() as patched:
        patched.setattr(candidates, "seconds", seconds)
        with pytest.raises(VersionError) as caught:
            version(candidates, file, lines)
    assert said in str(caught.value) and "\n" not in str(caught.value)
    assert code(version(candidates, file))


@pytest.mark.parametrize("name", REFUSED)
def test_a_version_writes_and_reaches_nothing(candidates: Candidates, file: Path, name: str) -> None:
    assert not unprotected(), "this machine has landlock and seccomp"
    before = {path: path.stat() for path in file.parent.rglob("*")}
    with pytest.raises(VersionError, match="does not import: (PermissionError|OSError|CalledProcessError|ValueError)"):
        version(candidates, file, REFUSED[name])
    after = {path: path.stat() for path in file.parent.rglob("*") if path.name != "__pycache__"}
    assert {path: (s.st_size, s.st_mode, s.st_mtime_ns) for path, s in after.items()} == {
        path: (s.st_size, s.st_mode, s.st_mtime_ns) for path, s in before.items()
    }
    assert not Path("/tmp/tilewright-was-here").exists()


def test_a_version_may_use_its_scratch_folder(candidates: Candidates, file: Path) -> None:
    lines = """import subprocess, tempfile
with tempfile.TemporaryDirectory() as folder:
    open(folder + "/x", "w").write("1")
    subprocess.run(["cp", folder + "/x", folder + "/y"], check=True)
open("here", "w").write("1")"""
    assert code(version(candidates, file, lines))


def test_what_a_version_prints_goes_nowhere(
    candidates: Candidates, file: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    lines = "import os, sys; print('loud'); print('loud', file=sys.stderr); os.write(1, b'loud'); os.write(2, b'loud')"
    assert code(version(candidates, file, lines))
    assert "loud" not in "".join(capfd.readouterr())


def test_what_a_version_starts_ends_with_it(file: Path, tmp_path: Path) -> None:
    note = tmp_path / "copy.py"  # the name is in the child's command line
    sleeps = f"[sys.executable, '-c', 'import time; time.sleep(600)', {str(note)!r}]"
    lines = f"import subprocess, sys; subprocess.Popen({sleeps})"
    with Candidates([file]) as candidates:
        version(candidates, file, lines)
        assert until(lambda: running(str(note)))
    assert gone(str(note))


def test_the_server_ends_with_its_parent(tmp_path: Path) -> None:
    """Also where the parent is killed, and also the versions."""
    sleep = for_ever()
    program = f"""import os, sys
from pathlib import Path
from tilewright.candidate.client import Candidates
from tilewright.task.loading import load_task
file = {str(EXAMPLE)!r}
candidates = Candidates([Path(file)])
copy = {str(tmp_path)!r} + "/copy.py"
Path(copy).write_text(Path(file).read_text() + "\\nimport subprocess; subprocess.Popen(['sleep', '{sleep}'])")
candidates.task(load_task(file), file, {{file: copy}})
print(candidates._folder, candidates._server.pid, *(one.number for one in candidates._alive.values()), flush=True)
os.kill(os.getpid(), 9)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    folder, *numbers = done.stdout.split()
    assert len(numbers) == 2 and done.returncode == -9
    assert until(lambda: all(ended(int(number)) for number in numbers))
    assert until(lambda: not Path(folder).exists()), "nothing is left in the folder of temporary files"
    assert gone(sleep), "what the version started ends too"


# What comes back is data -------------------------------------------------------------------------


def test_a_versions_launch_is_data_and_equals_its_own(candidates: Candidates, file: Path) -> None:
    """The same bytecode, symbol, grid and arguments as the launch in the user's own process."""
    own, other = load_task(str(file)), candidates.task(load_task(str(file)), str(file), {})
    for workload in own.selected(None):
        for config in own.space.configurations(90, workload.dims)[:3]:
            (a, hints), (b, same) = (launch_of(task, Unit(workload, config, BOARD)) for task in (own, other))
            assert isinstance(b.kernel, DescribedKernel) and hints == same
            assert (a.grid, a.args) == (b.grid, b.args)
            mine, theirs = language_of(a.kernel), language_of(b.kernel)
            assert mine.arguments(a) == theirs.arguments(b)
            code, described = mine.lower(a, hints, config, "sm_90"), theirs.lower(b, hints, config, "sm_90")
            assert code == described and isinstance(code, Lowered)
            assert mine.cache_key(code) == theirs.cache_key(code) is not None
            assert mine.kernel_name(a.kernel) == theirs.kernel_name(b.kernel)
            assert mine.decorated_hints(a.kernel, "sm_90") == theirs.decorated_hints(b.kernel, "sm_90")
            assert mine.constant_parameters(a.kernel) == theirs.constant_parameters(b.kernel)


def test_a_version_compiles_and_runs_like_the_users_own(candidates: Candidates, file: Path) -> None:
    task = version(candidates, file)
    (compiled,) = compile_all(task, [Unit(task.selected(None)[0], task.space.shipped, BOARD)])
    assert isinstance(compiled.built, Built)
    dims = task.selected(None)[0].dims
    runnable = Launcher(task, BOARD).runnable(task.space.shipped, dims, task.arrays(dims))
    assert not isinstance(runnable, Failed) and runnable.module.entry().name


def test_a_launch_is_asked_for_once(candidates: Candidates, file: Path) -> None:
    """A launch that changes its answer at each call gives one answer: what is compiled is what is interpreted."""
    changing = version(
        candidates, file, lines="CALLS = []\nreal = task.launch\n"
        "def launch(**given):\n    from dataclasses import replace\n    CALLS.append(1)\n"
        "    return replace(real(**given), grid=(len(CALLS),))\n"
        "from dataclasses import replace\ntask = replace(task, launch=lambda **given: launch(**given))",
    )  # fmt: skip
    unit = Unit(changing.selected(None)[0], changing.space.shipped, BOARD)
    assert {launch_of(changing, unit)[0].grid for _ in range(3)} == {(1,)}


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ("def launch(config): raise RuntimeError('odd')", "RuntimeError: odd"),
        ("def launch(config): import os; os._exit(3)", "its process ended with exit code 3"),
        ("def launch(config): raise KeyboardInterrupt", "KeyboardInterrupt"),
        ("def launch(config): return 1", "returned int; return tilewright.Launch"),
        ("def launch(config): return tw.Launch(print, (1,), ())", "not a kernel of a known language"),
    ],
)
def test_what_is_wrong_with_a_launch_is_the_versions_failure(
    candidates: Candidates, file: Path, lines: str, said: str
) -> None:
    changed = "\nfrom dataclasses import replace\ntask = replace(task, launch=launch)"
    task = version(candidates, file, lines + changed)
    with pytest.raises(VersionError) as caught:
        lowered(task)
    assert said in str(caught.value) and "\n" not in str(caught.value)


def test_an_array_that_nobody_gave_is_refused(candidates: Candidates, file: Path) -> None:
    lines = """from dataclasses import replace
own = task.launch
def launch(**given):
    made = own(**given)
    return replace(made, args=tuple(replace(a, shape=(a.shape[0] * 2, *a.shape[1:])) if hasattr(a, "shape") else a
                                    for a in made.args))
task = replace(task, launch=lambda **given: launch(**given))"""
    with pytest.raises(VersionError, match="its launch passes an array that is no tensor of the task"):
        lowered(version(candidates, file, lines))


@pytest.mark.parametrize(("shape", "fits"), [("a.shape[::-1], strides_=(1, a.shape[1])", True),
                                             ("a.shape, strides_=(a.shape[1], 2)", False),
                                             ("a.shape, strides_=(-a.shape[1], 1)", False)])  # fmt: skip
def test_a_view_of_an_array_is_that_array(candidates: Candidates, file: Path, shape: str, fits: bool) -> None:
    """As captured launches have it for a transposed matrix. It must lie in the array's memory."""
    lines = f"""from dataclasses import replace
own = task.launch
def launch(**given):
    made = own(**given)
    return replace(made, args=tuple(replace(a, shape={shape}) if getattr(a, "ndim", 0) == 2 else a for a in made.args))
task = replace(task, launch=lambda **given: launch(**given))"""
    task = version(candidates, file, lines)
    dims = task.selected(None)[0].dims
    given = task.arrays(dims)
    made = lambda: task.launched(task.space.shipped, dims, given, default_board("sm_90"))  # noqa: E731
    if fits:
        assert made().args[0].shape == next(iter(given.values())).shape[::-1]
    else:
        with pytest.raises(VersionError, match="its launch passes an array that is no tensor of the task"):
            made()


# The judge's own things --------------------------------------------------------------------------


def test_a_version_cannot_reach_the_judge(candidates: Candidates, file: Path) -> None:
    """It replaces what it finds of the judge in its own process: here nothing of that changes."""
    import tilewright.tileir.run.interpreter as interpreter
    import tilewright.verify.judge as judge

    before = interpreter.run.__code__, judge.judge_values.__code__
    lines = """import gc, types
import tilewright.tileir.run.interpreter as interpreter, tilewright.verify.judge as judge
for thing in gc.get_objects():
    if isinstance(thing, types.FunctionType) and thing.__name__ in ("reference", "judge_values", "run"):
        thing.__code__ = (lambda *a, **k: None).__code__"""
    task = version(candidates, file, lines)
    assert (interpreter.run.__code__, judge.judge_values.__code__) == before
    assert task.reference.__code__ == load_task(str(file)).reference.__code__


def test_a_version_cannot_drop_the_triggers_of_the_ledger(candidates: Candidates, file: Path) -> None:
    """Nor rewrite it: SQLite opens the file for reading only, or not at all."""
    ledger = file.parent / "ledger.db"
    with Ledger(ledger) as store:
        store.begin(run_record())
    connection = sqlite3.connect(ledger)
    ((trigger,), *_) = connection.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'")
    connection.close()
    before = ledger.read_bytes()
    drop = f"connection = sqlite3.connect({str(ledger)!r})\nconnection.execute('DROP TRIGGER {trigger}')"
    with pytest.raises(VersionError, match="does not import: OperationalError"):
        version(candidates, file, f"import sqlite3\n{drop}\nconnection.commit()")
    assert ledger.read_bytes() == before and [path.name for path in file.parent.glob("ledger*")] == ["ledger.db"]
    allowed: dict[str, Any] = {"sqlite3": sqlite3}
    exec(drop, allowed)  # the same words from a process that may write: the trigger was there
    allowed["connection"].close()


def test_versions_do_not_see_each_other(candidates: Candidates, file: Path) -> None:
    version(candidates, file, "import builtins, sys; builtins.shared = 1; sys.path.append('/nowhere')")
    assert code(version(candidates, file, "import builtins, sys; assert not hasattr(builtins, 'shared')"))


def test_the_package_of_a_version_is_imported_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where it is not installed, but found by PYTHONPATH. An edited module of it is the version's own."""
    inner = tmp_path / "here" / "kernels_kept_here" / "rows"
    inner.mkdir(parents=True)
    (inner.parent / "__init__.py").touch()
    (inner / "__init__.py").write_text(f"open({str(tmp_path / 'imports')!r}, 'a').write('x')")
    (inner / "norms.py").write_text(EXAMPLE.read_text())
    monkeypatch.syspath_prepend(inner.parents[1])
    file = tmp_path / "ops.py"
    file.write_text(
        "from dataclasses import replace\nimport tilewright as tw\n"
        "norms = tw.editable('kernels_kept_here.rows.norms')\ntask = replace(norms.task, file=None)\n"
    )
    try:
        task = load_task(str(file))
        with Candidates([inner / "norms.py"], seconds=PATIENCE) as started:
            for number in range(2):
                copy = tmp_path / f"version-{number}.py"
                copy.write_text(f"{EXAMPLE.read_text()}\n# {number}\n")
                made = started.task(task, str(file), {str(inner / "norms.py"): str(copy)})
                assert isinstance(lowered(made), Lowered)
    finally:
        for name in [name for name in sys.modules if name.startswith("kernels_kept_here")]:
            del sys.modules[name]
    assert (tmp_path / "imports").read_text() == "xx", "once here, and once for all versions"


def test_the_front_end_is_loaded_once_also_where_the_task_imports_torch() -> None:
    """Before, each version imported 47 modules of cuda.tile's compiler."""
    lines = """import sys
sys.modules["torch"] = None  # as good as the real one: only its name is looked for
from tilewright.languages import load_front_ends
load_front_ends()
assert "cuda.tile._compile" in sys.modules
"""
    subprocess.run([sys.executable, "-c", lines], check=True)


def test_more_versions_than_processes_answer_in_several_threads(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tilewright.candidate.client.ALIVE", 3)
    own, names = load_task(str(file)), [f"rms_norm_{number}" for number in range(6)]

    def asked(name: str) -> tuple[Task, str]:
        copy = file.parent.parent / f"{name}.py"
        text = file.read_text().replace("def rms_norm(", f"def {name}(").replace("Launch(rms_norm,", f"Launch({name},")
        copy.write_text(text)
        task = candidates.task(own, str(file), {str(file): str(copy)})
        return task, symbol(task)

    with Candidates([file]) as candidates, ThreadPoolExecutor(candidates.at_once) as threads:
        answers = list(threads.map(asked, names))
        assert candidates.at_once == 2 and len(candidates._alive) == 3
        assert [name in found for name, (_, found) in zip(names, answers, strict=True)] == [True] * len(names)
        assert [symbol(task) for task, _ in answers] == [found for _, found in answers]


def test_an_order_that_is_interrupted_leaves_no_answer_for_the_next(file: Path) -> None:
    with Candidates([file]) as candidates:
        assert code(version(candidates, file))
        for lines in ("", "# another"):  # a start that is interrupted, and an end
            os.kill(candidates._server.pid, signal.SIGSTOP)
            try:
                with pytest.raises(TimeUp), within(0.2):
                    version(candidates, file, "# new") if lines else candidates._end(next(iter(candidates._alive)))
            finally:
                os.kill(candidates._server.pid, signal.SIGCONT)
            assert code(version(candidates, file, lines))


def test_an_interrupt_ends_a_server_that_hangs(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tilewright.candidate.client.HANGS", 0.2)
    with Candidates([file]) as candidates, ThreadPoolExecutor(1) as thread:
        os.kill(candidates._server.pid, signal.SIGSTOP)
        asked = thread.submit(version, candidates, file)
        assert until(lambda: candidates._orders == 2)
        candidates.interrupt()
        with pytest.raises(MachineError, match="the process that loads versions ended"):
            asked.result(PATIENCE)


def test_a_process_without_its_own_group_is_ended() -> None:
    process = subprocess.Popen(["sleep", for_ever()])
    (late := Timer(PATIENCE, process.kill)).start()
    began = time.monotonic()
    assert server._ended(process.pid) == -signal.SIGKILL
    late.cancel()
    assert time.monotonic() - began < PATIENCE / 4


def test_a_server_that_is_gone_is_the_machines_fault(file: Path) -> None:
    with Candidates([file]) as candidates:
        candidates._server.kill()
        candidates._server.wait()
        with pytest.raises(MachineError, match="the process that loads versions ended"):
            version(candidates, file)


def test_closing_leaves_nothing(file: Path) -> None:
    with Candidates([file]) as candidates:
        version(candidates, file)
        folder = candidates._folder
        assert os.listdir(folder)
    assert not folder.exists()


# A kernel without landlock ------------------------------------------------------------------------


@pytest.fixture
def unconfined(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a kernel that keeps no process from writing."""
    monkeypatch.setattr("tilewright.candidate.client.unprotected", lambda: ("writing to your files",))


def test_where_writing_cannot_be_prevented_it_is_found(
    file: Path, unconfined: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    neighbour = file.parent / "helper.py"
    neighbour.write_text("A = 1\n")
    with Candidates([file]) as candidates:
        assert code(version(candidates, file))
        deeds = {"open(TASK, 'a').write('# x')": file, f"import os; os.remove('{neighbour}')": neighbour}
        for lines, changed in deeds.items():
            with monkeypatch.context() as patched:
                patched.setattr(candidates, "_process", _writing(file, lines))
                with pytest.raises(VersionError, match=f"{changed} was changed while the version ran"):
                    version(candidates, file)
        assert code(version(candidates, file)), "the next version is not blamed"


def _writing(file: Path, lines: str) -> Callable[[object], object]:
    """A version's process that does what ``lines`` say before it answers. Here, since the sandbox would refuse it."""

    @contextmanager
    def process(source: object) -> Iterator[object]:
        exec(lines, {"TASK": str(file)})
        yield SimpleNamespace(opened=None)

    return process
