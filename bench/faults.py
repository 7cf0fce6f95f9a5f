"""Injects faults into everything of Tilewright that writes, and counts what is lost and what is left.

    python bench/faults.py [--count 1000] [--start N] [--only KIND]… [--seconds S] [--set-aside] [--out FILE.json]

Each fault has a folder of its own: a git repository, a store, a ledger, a temporary folder. A part of Tilewright works
in it (`WORK`): it stores winners as a program does; saves workloads of `tune`; commits, keeps and reverts versions of
`optimize`; edits files through the journal of `agent`. Each part prints a line when a step is done. The fault comes at
a drawn moment. Then the same part runs again without a fault, and `tilewright tuned list`, `report --list` and `clean`.
Of the signals, each twelfth comes to a whole command, `tilewright tune` on an example, which then goes on.

* lost: a step whose line was printed before the fault, and that is not there afterwards. If the fault itself destroyed
  the file (damaged and removed ones), its rows count as destroyed, not as lost, and are reported apart.
* traceback: any in the output of any process, and exit code 70.
* left: after the next command, a process with this fault's mark in its environment (waited for 10 s), a lock, a
  worktree, a ref or branch that an undisturbed run does not leave, a journal of SQLite, or a file in the temporary
  folder.
* touched: a file of the user's checkout that changed, other than by the journal's last finished step.

The work runs in a process that is forked from this one, which has the imports; the commands do, too. A run goes on
where its FILE ends. A full disk is a file system of its own (tmpfs), which is full except for a drawn number of bytes,
and gets room again after the fault; one that may not mount it, and half of the others, limit the size of each file. A
read-only folder is one in which even root cannot write.
"""

from __future__ import annotations

import argparse
import atexit
import datetime
import json
import os
import random
import re
import resource
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
import traceback
import uuid
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import faults_damage
from common import made_here, write

from tilewright import __main__ as entry
from tilewright.cli import clean, report, tuned, tuned_table  # noqa: F401  (the commands load them)
from tilewright.cli import main as cli
from tilewright.ledger.ledger import Ledger
from tilewright.ledger.records import Iteration, RunRecord
from tilewright.ledger.tunings import TuneLedger
from tilewright.optimize.versions import leftovers
from tilewright.optimize.versions.journal import Journal
from tilewright.optimize.versions.workspace import Workspace
from tilewright.records import Machine
from tilewright.report import report as reports  # noqa: F401
from tilewright.runtime.key import digest
from tilewright.runtime.store import exporting, unchanged  # noqa: F401
from tilewright.runtime.store.search_locks import search_lock
from tilewright.runtime.store.winners import Winner, Winners
from tilewright.task.loading import load_task

KINDS = ("kill", "TERM", "INT", "double INT", "full disk", "read-only", "damaged files", "fake tools",
         "hostile versions", "concurrent runs", "removed folders")  # fmt: skip
SIGNALS = KINDS[:4]
WHOLE = 12
"""Each so manieth fault is in a whole command, if its kind is a signal."""
MARK = "TILEWRIGHT_FAULT_MARK"
STEPS = 12
LEFT_SECONDS = 10.0
TASK = """import tilewright as tw

FACTOR = 1

task = tw.Task(
    name="scale", tensors={"x": tw.Tensor(("M",), "float32"), "y": tw.Output(("M",), "float32")},
    reference=lambda x: 2 * x, launch=lambda x, y, config: tw.Launch(None, (1,), (x, y)), flops=lambda M: M,
    space=tw.Space(constants={"TILE": (1,)}, shipped={"TILE": 1}), workloads={"small": {"M": 8}},
)
"""


# What works ---------------------------------------------------------------------------------------------------------


def done(what: str) -> None:
    os.write(1, f"done {what}\n".encode())


def winner(name: str) -> Winner:
    parts: dict[str, Any] = {"kernel": "scale", "name": name, "board": "NVIDIA H200 sm_90"}
    outcomes = tuple({"label": f"TILE={size}", "status": "timed", "us": 9.0} for size in (1, 2))
    return Winner(digest(parts), "scale", parts, {"TILE": 2}, 1, "TILE=2", {"TILE": 1}, "wrapper", {}, None, outcomes)


def store(place: Path, who: str) -> None:
    for step in range(STEPS):
        new = winner(f"{who} {step}")
        with search_lock(new.key, wait=True, seconds=20):
            if Winners().get(new.key) is None:
                Winners().put(new)
        if Winners().get(new.key) == Winners().put(new):
            done(f"winner {new.key}")


def ledger(place: Path, who: str) -> None:
    machine = Machine("sm_90", None, None, "here", {})
    key = f"key of {who}"
    with Ledger() as opened:
        found = opened.resume(key)
        record = RunRecord(key=key, task="task", machine=machine, measured=False, kernel="scale", baseline=())
        run = found[0].run if found else opened.begin(record).run
        for step in range(len(found[1]) if found else 0, STEPS):
            opened.append(run, Iteration(n=step, optimization=f"step {step}", correctness="PASS", status="revert",
                                         reason="no gain"))  # fmt: skip
            done(f"iteration {run} {step}")


def versions(place: Path, who: str) -> None:
    """The commits of `optimize`. The ledger has the run's row, as in the command."""
    key, file = f"versions of {who}", (place / "program" / "ops.py").resolve()
    machine = Machine("sm_90", None, None, "here", {})
    with Ledger() as opened:
        found = opened.resume(key)
        run = found[0].run if found else opened.new_name()
        leftovers.prune_killed(file.parent, opened.path.parent)
        with Workspace.open(load_task(str(file)), run, opened.path.parent, datetime.date(2026, 11, 28)) as workspace:
            if not found:
                row = RunRecord(run=run, key=key, task="scale", machine=machine, measured=False, kernel="", baseline=())
                try:
                    opened.begin(row)
                except BaseException:
                    workspace.forget()
                    raise
            for step in range(4):
                commit = workspace.write_and_commit(step, {file: TASK.replace("= 1\n", f"= {step + 2}\n", 1)}, "step")
                workspace.keep(commit) if step % 2 else workspace.revert(step, commit)
                done(f"commit {commit}")


def journal(place: Path, who: str) -> None:
    """The edits of `agent`, each undone at the end."""
    root = place / "program"
    with Journal.open(root, f"journal-{who}", Path(os.environ["TILEWRIGHT_HOME"])) as opened:
        if opened.entries:  # as a resumed run of `agent` does; a backup of an edited file would be of the edit
            opened.revert_all()
        opened.backup_file("notes.txt")
        for step in range(2):
            opened.edit_file("notes.txt", f"edited {step}\n")
            opened.revert_file("notes.txt")
            done(f"edit {step}")


WORK: dict[str, Callable[[Path, str], None]] = {
    "store": store, "ledger": ledger, "versions": versions, "journal": journal,
}  # fmt: skip


# One process of it ----------------------------------------------------------------------------------------------------


class Forked:
    """A process forked from this one that runs ``work`` in ``place``, with its output in a file."""

    def __init__(self, place: Path, work: Callable[[], int | None], changes: Callable[[], None] | None = None) -> None:
        self.output = place / f"output-{uuid.uuid4().hex[:8]}"
        self.began = time.monotonic()
        self.pid = os.fork()
        if self.pid:
            return
        code = 70
        try:
            opened = os.open(self.output, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            os.dup2(opened, 1)
            os.dup2(opened, 2)
            sys.stdout, sys.stderr = (os.fdopen(os.dup(number), "w") for number in (1, 2))
            os.setsid()
            os.environ.update(environment(place))
            os.chdir(place / "program")
            tempfile.tempdir = str(place / "tmp")
            if changes is not None:
                changes()
            code = work() or 0
        except SystemExit as error:
            code = int(error.code or 0)
        except BaseException:
            traceback.print_exc()
        finally:
            with suppress(BaseException):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(code)

    def wait(self, seconds: float = 120.0) -> int:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                return os.waitstatus_to_exitcode(status)
            time.sleep(0.003)
        os.killpg(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        return 99  # it hung

    @property
    def text(self) -> str:
        return self.output.read_text(errors="replace") if self.output.exists() else ""


def environment(place: Path) -> dict[str, str]:
    own = {"TILEWRIGHT_TUNED": str(place / "tuned"), "TILEWRIGHT_HOME": str(place / "home"),
           "TMPDIR": str(place / "tmp"), MARK: place.name}  # fmt: skip
    return {**own, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}


def interrupted(work: Callable[[], None]) -> int:
    """Runs the work as a command does: a signal is one line and an exit code."""
    from tilewright.cli.interruption import Signalled, interruptible
    from tilewright.errors import TilewrightError

    try:
        with interruptible([]):
            work()
    except Signalled as signalled:
        print(signalled, file=sys.stderr)
        return signalled.code
    except (TilewrightError, OSError) as error:
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        return 3
    return 0


# One fault ------------------------------------------------------------------------------------------------------------


def git(place: Path, *words: str) -> str:
    ran = subprocess.run(["git", "-c", "user.name=U", "-c", "user.email=u@example.org", *words], cwd=place / "program",
                         env={**os.environ, **environment(place)}, capture_output=True, text=True)  # fmt: skip
    return ran.stdout


def made(place: Path) -> None:
    for name in ("program", "tmp"):
        (place / name).mkdir(parents=True)
    (place / "program" / "ops.py").write_text(TASK)
    (place / "program" / "notes.txt").write_text("what the user wrote\n")
    git(place, "init", "-q")
    git(place, "add", "-A")
    git(place, "commit", "-qm", "first")


DISK_BYTES = 1 << 26


def own_disk(place: Path) -> Path | None:
    """Moves all folders of a fault to a file system of their own. Returns None if this process may not mount one."""
    disk = place / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(disk)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True).returncode != 0:
        return None
    for name in ("program", "tmp", "home", "tuned"):
        if (place / name).exists():
            shutil.move(place / name, disk / name)
        else:
            (disk / name).mkdir()
        (place / name).symlink_to(disk / name)
    return disk


def filled(disk: Path, free: int) -> Path:
    """Fills the disk with one file, except for ``free`` bytes. Returns the file."""
    filler = disk / "filler"
    with filler.open("wb") as file, suppress(OSError):
        while True:
            file.write(bytes(1 << 20))
    status = os.statvfs(disk)
    os.truncate(filler, max(0, filler.stat().st_size - max(0, free - status.f_bavail * status.f_frsize)))
    return filler


def inject(kind: str, part: str, place: Path, rng: random.Random, aside: bool) -> dict[str, Any]:
    """Injects one fault of ``kind`` into a ``part`` of `WORK`, and returns its record."""
    disk = own_disk(place) if kind == "full disk" and rng.random() < 0.5 else None
    try:
        return injected(kind, part, place, rng, aside, disk)
    finally:
        if disk is not None:
            subprocess.run(["umount", "--lazy", str(disk)], check=True)


def injected(
    kind: str, part: str, place: Path, rng: random.Random, aside: bool, disk: Path | None
) -> dict[str, Any]:  # fmt: skip
    work = WORK[part]
    run = lambda who="a": Forked(place, lambda: interrupted(lambda: work(place, who)))  # noqa: E731
    said: list[tuple[str, int]] = []
    destroyed, detail = False, ""
    if kind in SIGNALS:
        process = run()
        time.sleep(rng.uniform(0.0, 0.35 if part in ("store", "ledger") else 0.9))
        numbers = {"kill": (signal.SIGKILL,), "TERM": (signal.SIGTERM,), "INT": (signal.SIGINT,),
                   "double INT": (signal.SIGINT, signal.SIGINT)}[kind]  # fmt: skip
        for number in numbers:
            with suppress(ProcessLookupError):
                os.kill(process.pid, number)
            time.sleep(rng.uniform(0.0, 0.02))
        said.append((process.text, process.wait()))
        said[-1] = (process.text, said[-1][1])
    elif kind == "full disk" and disk is not None:
        free = rng.choice((0, 4096, 16_384, 65_536, 131_072, 262_144, 400_000))
        detail = f"{free} bytes left of the disk"
        filler = filled(disk, free)
        process = run()
        said.append((process.text, process.wait()))
        said[-1] = (process.text, said[-1][1])
        filler.unlink()
    elif kind == "full disk":
        limit = rng.choice((0, 512, 4096, 8192, 20_000, 60_000, 100_000))
        detail = f"{limit} bytes a file"

        def full() -> None:
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

        process = Forked(place, lambda: interrupted(lambda: work(place, "a")), full)
        said.append((process.text, process.wait()))
        said[-1] = (process.text, said[-1][1])
    elif kind == "read-only":
        detail = rng.choice(("/proc/tilewright", "/sys/kernel/tilewright", "/dev/null/tilewright", "/proc/1/task"))

        def elsewhere() -> None:
            os.environ.update(TILEWRIGHT_TUNED=detail, TILEWRIGHT_HOME=detail)

        process = Forked(place, lambda: interrupted(lambda: work(place, "a")), elsewhere)
        code = process.wait()
        said.append((process.text, code))
    elif kind == "damaged files":
        first = [run(), Forked(place, lambda: interrupted(lambda: store(place, "s"))),
                 Forked(place, lambda: interrupted(lambda: ledger(place, "l")))]  # fmt: skip
        said += [(each.text, code) for each in first for code in [each.wait()]]
        said = [(each.text, code) for each, (_, code) in zip(first, said, strict=True)]
        path = place / rng.choice(("tuned/tuned.db", "home/ledger.db"))
        with closing(sqlite3.connect(path)) as connection:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            connection.execute("PRAGMA journal_mode = DELETE")
        cells, files = faults_damage.names(aside=aside)
        detail = rng.choice([*cells, *files])
        if detail in files:
            faults_damage.FILES[detail](path, rng)
        else:
            table, column = rng.choice(list(faults_damage.columns(path)))
            faults_damage.damage_cell(path, table, column, detail, rng)
            detail = f"{detail} in {table}.{column}"
        destroyed = True
    elif kind == "fake tools":
        detail = rng.choice(("garbage", "nothing", "failure", "not utf-8", "hang up"))
        body = {"garbage": "echo '\x1b[31m{'", "nothing": "exit 0", "failure": "echo fatal: no >&2; exit 128",
                "not utf-8": "printf '\\377\\376'", "hang up": "kill -9 $$"}[detail]  # fmt: skip
        tools = place / "tools"
        tools.mkdir()
        for name in ("git", "nvidia-smi", "nvdisasm", "tileiras", "cuobjdump"):
            (tools / name).write_text(f"#!/bin/sh\n{body}\n")
            (tools / name).chmod(0o755)
        process = Forked(place, lambda: interrupted(lambda: work(place, "a")),
                         lambda: os.environ.update(PATH=f"{tools}:{os.environ['PATH']}"))  # fmt: skip
        code = process.wait()
        said.append((process.text, code))
    elif kind == "hostile versions":
        detail = rng.choice(("import os; os._exit(0)", "raise SystemExit", "raise KeyboardInterrupt", "x = (", "\0",
                             "import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "raise OSError('\\x1b[2J')",
                             "(" * 5000, "task = 1"))  # fmt: skip
        hostile = place / "tmp-hostile.py"
        hostile.write_text(detail + "\n")
        words = rng.choice((["check"], ["inspect"], ["lint"], ["transfer"]))
        process = Forked(place, lambda: cli.main([*words, str(hostile)]))
        code = process.wait()
        ends = "_exit" in detail or "SIGKILL" in detail  # a task is trusted code: it ends its own process
        said.append((process.text, 0 if ends and code in (0, -9) else code))
        hostile.unlink()
    elif kind == "concurrent runs":
        processes = [run(str(number)) for number in range(4)]
        processes.append(Forked(place, lambda: cli.main(["tuned", "list"])))
        processes.append(Forked(place, lambda: cli.main(["report", "--list"])))
        codes = [each.wait() for each in processes]
        said += [(each.text, code) for each, code in zip(processes, codes, strict=True)]
    elif kind == "removed folders":
        process = run()
        time.sleep(rng.uniform(0.02, 0.35))
        detail = rng.choice(("tuned", "home", "tmp", "home/worktrees"))
        shutil.rmtree(place / detail, ignore_errors=True)
        code = process.wait()
        said.append((process.text, code))
        (place / "tmp").mkdir(exist_ok=True)
        destroyed = True
    return judged(kind, part, place, run, said, destroyed, detail)


def judged(
    kind: str, part: str, place: Path, run: Callable[[], Forked], said: list[tuple[str, int]], destroyed: bool,
    detail: str,
) -> dict[str, Any]:  # fmt: skip
    steps = [line.split(" ", 1)[1] for text, _ in said for line in text.splitlines() if line.startswith("done ")]
    again = run()
    codes = [again.wait()]
    texts = [*(text for text, _ in said), again.text]
    for words in (["tuned", "list"], ["report", "--list"], ["clean"]):
        command = Forked(place, lambda words=words: cli.main(words))  # type: ignore[misc]
        codes.append(command.wait())
        texts.append(command.text)
    output = "\n".join(texts)
    missing = [step for step in steps if not there(place, step)]
    problems = {
        "lost": [] if destroyed else missing,
        "destroyed": missing if destroyed else [],
        "traceback": ["traceback"] * ("Traceback" in output) + [f"code {c}" for c in (*codes, *(c for _, c in said))
                                                                if c in (70, 99)],
        "left": left(place), "touched": touched(place),
        "escapes": ["escape"] * any(control in output for control in "\x1b\x9b\x07"),
        "next command failed": [str(codes)] * (not destroyed and any(code not in (0, 2) for code in codes)),
    }  # fmt: skip
    return {
        "kind": kind,
        "part": part,
        "detail": detail,
        "codes": [c for _, c in said],
        "steps": len(steps),
        **problems,
        "output": output[-1500:] if any(v for k, v in problems.items() if k != "destroyed") else "",
    }


def there(place: Path, step: str) -> bool:
    what, *words = step.split()
    try:
        if what == "winner":
            return Winners(place / "tuned" / "tuned.db", strict=True).get(words[0]) is not None
        if what == "iteration":
            with Ledger(place / "home" / "ledger.db") as opened:
                return any(str(each.n) == words[1] for each in opened.iterations(words[0]))
        if what == "workload":
            return step in stored_workloads(place)
        if what == "commit":
            return git(place, "cat-file", "-t", words[0]).strip() == "commit"
    except Exception:
        return False
    return True


def left(place: Path) -> list[str]:
    until = time.monotonic() + LEFT_SECONDS
    while (processes := marked(place.name)) and time.monotonic() < until:
        time.sleep(0.05)
    found = [f"process {name}" for name in processes]
    found += [f"temporary {path.name}" for path in (place / "tmp").iterdir()]
    found += [str(path.relative_to(place)) for path in place.rglob("*.lock")]
    found += [str(path.relative_to(place)) for path in place.rglob("*-journal") if path.is_file()]
    found += git(place, "worktree", "list").splitlines()[1:]
    runs = {ref.split("/")[2] for ref in git(place, "for-each-ref", "--format=%(refname)", "refs/tilewright").split()}
    with suppress(Exception), Ledger(place / "home" / "ledger.db") as opened:
        found += [f"refs of {run}" for run in runs - {each.run for each in opened.runs()} if "journal" not in run]
    return found


def marked(mark: str) -> list[str]:
    found = []
    for folder in Path("/proc").iterdir():
        with suppress(OSError):
            if folder.name.isdigit() and f"{MARK}={mark}".encode() in (folder / "environ").read_bytes():
                found.append((folder / "comm").read_text().strip())
    return found


def touched(place: Path) -> list[str]:
    status = git(place, "status", "--porcelain").splitlines()
    notes = (place / "program" / "notes.txt").read_text()
    return status + [notes] * (notes != "what the user wrote\n")


EXAMPLE = Path(__file__).parent.parent / "examples" / "rms_norm.py"
TUNE = ("tune", str(EXAMPLE), "--candidates", "1", "--arch", "sm_90", "--jobs", "1")
TUNE_SECONDS = 6.0


def tune_fault(kind: str, place: Path, rng: random.Random) -> dict[str, Any]:
    """Ends a whole `tilewright tune` at a drawn moment. The workloads that were stored then must still be there."""

    def whole() -> int:
        sys.argv = ["tilewright", *TUNE]
        atexit._clear()  # what this benchmark would do at its own end
        try:
            return entry.main()
        finally:
            atexit._run_exitfuncs()  # a forked process ends without them

    def tune() -> Forked:
        return Forked(place, whole)

    process = tune()
    time.sleep(rng.uniform(0.0, TUNE_SECONDS))
    with suppress(ProcessLookupError):
        for _ in range(2 if kind == "double INT" else 1):
            os.kill(process.pid, {"kill": signal.SIGKILL, "TERM": signal.SIGTERM}.get(kind, signal.SIGINT))
            time.sleep(rng.uniform(0.0, 0.02))
    code = process.wait()
    text, stored = process.text, stored_workloads(place)
    claimed = re.search(r"(\d+) finished workloads? (?:is|are) stored", text)
    if claimed and int(claimed[1]) != len(stored):
        stored.append(f"workload {claimed[1]} claimed")  # is not there, so it counts as lost
    said = "".join(f"done {each}\n" for each in stored)
    return judged(kind, "tune", place, tune, [(text + "\n" + said, code)], False, f"{len(stored)} workloads stored")


def stored_workloads(place: Path) -> list[str]:
    if not (place / "home" / "ledger.db").exists():
        return []
    with TuneLedger(place / "home" / "ledger.db") as opened:
        return [f"workload {run.run} {name}" for run in opened.runs() for name in run.workloads]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--start", type=int, default=0, help="the number of the first fault, to share a run")
    parser.add_argument("--only", action="append", choices=KINDS)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop after this time")
    parser.add_argument("--set-aside", action="store_true", help="the damages of faults_set_aside.txt")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    records: list[dict[str, Any]] = []
    if asked.out and asked.out.exists():
        records = json.loads(asked.out.read_text())["faults"]
    ends = time.monotonic() + asked.seconds
    kinds = asked.only or KINDS
    for number in range(asked.start + len(records), asked.count):
        if time.monotonic() > ends:
            break
        rng = random.Random(f"{asked.seed} {number}")
        with tempfile.TemporaryDirectory(prefix="faults-") as name:
            place = Path(name)
            made(place)
            kind = kinds[number % len(kinds)]
            if number % WHOLE == WHOLE - 1 and kind in SIGNALS:
                record = tune_fault(kind, place, rng)
            else:
                record = inject(kind, rng.choice(sorted(WORK)), place, rng, asked.set_aside)
        records.append({"number": number, **record})
        if number % 10 == 9 or number == asked.count - 1:
            save(asked, records)
    save(asked, records)


FOUND = ("lost", "destroyed", "traceback", "left", "touched", "escapes", "next command failed")


def save(asked: argparse.Namespace, records: Sequence[dict[str, Any]]) -> None:
    counts = {name: sum(bool(record[name]) for record in records) for name in FOUND}
    print(f"{len(records)} of {asked.count} faults: "
          + ", ".join(f"{name} {count}" for name, count in counts.items()), flush=True)  # fmt: skip
    kinds = Counter(record["kind"] for record in records)
    about = {"asked": asked.count, "injected": len(records), "set_aside": asked.set_aside}
    write(
        asked.out and str(asked.out), {**made_here(), **about, "kinds": kinds, "found": counts, "faults": list(records)}
    )


if __name__ == "__main__":
    main()
