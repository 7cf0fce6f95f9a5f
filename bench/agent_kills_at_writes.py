"""kill -9 at drawn moments of `tilewright agent … --yes`: what is left of the user's tree, and whether it resumes.

    python bench/agent_kills_at_writes.py [--kills 100] [--minutes M] [--real] [--seed 0] [--out FILE.json]

Each kill has a fresh copy of a small program in a git repository (`PROGRAM`: two files with attention by hand, one of
them not committed). The command runs until its N-th write, and kills itself there with SIGKILL. A write is a file
opened for writing, a rename, a removal, a new folder, a changed mode, a connection to SQLite, or the start of a process
(git, the user's program); Python's audit events count them. N is drawn: half of the moments from all writes, half from
those below the journal and the ledger. Every second kill comes up to 30 ms after the write, so that it also falls into
what git and SQLite do. Every fourth resumed command is killed once more. Then the same command runs to its end.

After each kill: is each file of the user byte-identical, or as an entry of the journal recorded it, modes included;
are branch, index and stash untouched; is a process of the run left after 20 s. At the end: does the command end with 0;
are tree, kept changes and stop reason those of a run that nobody killed; is a lock or a file beside the user's left.

--real runs the program, which takes minutes a run. Without it, what the program's runs *measure* is stated here (the
changed code computes the same, and takes half the time); everything that writes is the real thing in both cases.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

from common import made_here, write

from tilewright.ledger.agent_runs import AgentLedger
from tilewright.optimize.versions.entries import EntryStore, FileState, folded, journal_runs
from tilewright.optimize.versions.repositories import place_of_tree
from tilewright.optimize.versions.user_tree import FileContent

QUESTION = "Enable FlashAttention for the attention layers in train.py"
ATTENTION = """import math

import torch
from torch import nn


class {name}(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.qkv = nn.Linear(width, 3 * width)

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = self.qkv(x).view(batch, length, 3, 4, -1).permute(2, 0, 3, 1, 4)
        scores = torch.matmul(q, k.transpose(-2, -1)) / math.sqrt(q.size(-1))
        weights = torch.softmax(scores, dim=-1)
        return torch.matmul(weights, v).transpose(1, 2).reshape(batch, length, width)
"""
PROGRAM: Mapping[str, str] = {
    "first.py": ATTENTION.format(name="First"),
    "second.py": ATTENTION.format(name="Second"),
    "notes.txt": "what the user wrote down\n",
    "train.py": """import torch
from torch import nn

from first import First
from second import Second

torch.manual_seed(0)
model = nn.Sequential(First(64), Second(64), nn.Linear(64, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(60):
    x, y = torch.randn(8, 256, 64), torch.randint(0, 8, (8, 256))
    loss = nn.functional.cross_entropy(model(x).flatten(0, 1), y.flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(f"loss {loss.item():.4f}")
""",
}
NOT_COMMITTED = ("second.py", "notes.txt")
MARK, PLAN = "AGENT_KILLS_MARK", "AGENT_KILLS_PLAN"
WRITES = {
    "os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.link", "os.symlink", "os.chmod", "os.truncate",
    "sqlite3.connect", "subprocess.Popen", "os.posix_spawn",
}  # fmt: skip
OURS = ("optimize/versions/", "ledger/")
"""Where half of the moments are drawn from."""
LEFT_SECONDS = 20.0


# In the process that is killed ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class KillPlan:
    """``at``: the write at which the process ends, from 1; 0: never. ``late``: seconds after it. ``log``: gets a
    line for each write, "ours" or "other". ``real``: whether the user's program runs."""

    at: int = 0
    late: float = 0.0
    log: str = ""
    real: bool = False


def child(words: list[str]) -> int:
    """Runs the command line in this process, which counts its writes and ends as planned."""
    plan = KillPlan(**json.loads(os.environ.pop(PLAN)))
    if not plan.real:
        _state_what_runs_measure()
    from tilewright.cli import main as cli

    sys.addaudithook(_counting(plan))
    return cli.main(words)


def _counting(plan: KillPlan) -> Callable[[str, tuple[Any, ...]], None]:
    seen, lock = [0], threading.Lock()
    log = os.open(plan.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND) if plan.log else -1

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event not in WRITES and not (event == "open" and _writes(arguments)):
            return
        with lock:
            seen[0] += 1
            number = seen[0]
        if log >= 0:
            os.write(log, b"ours\n" if _from_ours(sys._getframe(1)) else b"other\n")
        if number == plan.at and plan.late:
            threading.Timer(plan.late, os.kill, (os.getpid(), signal.SIGKILL)).start()
        elif number == plan.at:
            os.kill(os.getpid(), signal.SIGKILL)

    return hook


def _writes(arguments: tuple[Any, ...]) -> bool:
    path, _, flags = arguments
    if isinstance(path, str) and (path.startswith("/dev/") or path.endswith(".pyc") or "__pycache__" in path):
        return False
    return bool((flags or 0) & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND))


def _from_ours(frame: FrameType | None) -> bool:
    while frame is not None:
        if any(each in frame.f_code.co_filename for each in OURS):
            return True
        frame = frame.f_back
    return False


def _state_what_runs_measure() -> None:
    """Puts stated results in the place of the runs of the user's program."""
    from tilewright.program import checking, trying
    from tilewright.program.outputs import ComparedRuns
    from tilewright.program.race import ProgramRace
    from tilewright.program.run import ProgramRun
    from tilewright.race.stats import Interval

    def run_program(program: Any, meanwhile: Callable[[], None] | None = None, **_: Any) -> ProgramRun:
        if meanwhile is not None:
            meanwhile()
        fused = sum(path.read_text().count("scaled_dot_product_attention") for path in program.root.glob("*.py"))
        operations = {"aten::softmax": 40 - 20 * fused, "aten::scaled_dot_product_attention": 20 * fused, "aten::mm": 9}
        return ProgramRun(unit="optimizer step", steps=20, cut="steps", step_us=(900.0,) * 20, wall_s=1.0,
                          device="cpu", operations={name: n for name, n in operations.items() if n > 0})  # fmt: skip

    def race_programs(versions: Any, meanwhile: Callable[[], None] | None = None, **_: Any) -> ProgramRace:
        if meanwhile is not None:
            meanwhile()
        samples = {name: (1000.0 / (1 + n),) * 24 for n, name in enumerate(versions)}
        return ProgramRace(Interval(0.49, 0.5, 0.51, 0.95, 24), 1000.0, 500.0, samples, 24, "faster", "stated")

    trying.run_program, trying.race_programs = run_program, race_programs  # type: ignore[assignment]
    checking.compare = lambda *_: ComparedRuns("equal", "stated", 0.0)  # type: ignore[assignment]


# The user's tree ------------------------------------------------------------------------------------------------

Tree = dict[str, tuple[int, bytes]]
"""Path → mode and bytes of each file, without git's."""


def program_in(place: Path) -> Path:
    """A repository with a commit, a file that is staged, and one that git does not know."""
    tree = place / "program"
    tree.mkdir(parents=True)
    for name, text in PROGRAM.items():
        (tree / name).write_text(text)
    (tree / "second.py").chmod(0o750)
    committed = [name for name in PROGRAM if name not in NOT_COMMITTED]
    git = ("git", "-c", "user.name=bench", "-c", "user.email=bench@example.org")
    for words in (("init", "-q"), ("add", *committed), ("commit", "-q", "-m", "as it is"), ("add", "second.py")):
        subprocess.run([*git, *words], cwd=tree, check=True)
    return tree


def read_tree(tree: Path) -> Tree:
    files = (path for path in sorted(tree.rglob("*")) if path.is_file() and ".git" not in path.relative_to(tree).parts)
    return {str(path.relative_to(tree)): (path.stat().st_mode & 0o7777, path.read_bytes()) for path in files}


def git_state(tree: Path) -> str:
    """Branch, index and stash of the user."""
    asked = (("rev-parse", "HEAD"), ("ls-files", "--stage"), ("stash", "list"), ("branch", "--list", "-v"))
    return "".join(subprocess.run(["git", *a], cwd=tree, capture_output=True, text=True).stdout for a in asked)


def recorded_trees(tree: Path, home: Path, original: Tree) -> Iterator[Tree]:
    """The user's tree as it was, and as each entry of the journal recorded it, also the one that was being made."""
    yield original
    for run in journal_runs(tree, home):
        store = EntryStore(place_of_tree(tree.resolve(), home.absolute()).git, run)
        known: dict[str, Any] = {}
        begun = store.unfinished()
        for entry in (*store.entries(), *((begun,) if begun else ())):
            known = dict(folded(known, entry.record))
            yield {**original, **{name: _content(store, file.now) for name, file in known.items()}}


def _content(store: EntryStore, state: FileState) -> tuple[int, bytes]:
    content: FileContent = store.content_of(state)
    return content.mode, content.data


def processes_of(mark: str) -> list[int]:
    """The processes that were started under this mark and have not ended."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if mark.encode() in (folder / "environ").read_bytes():
                found.append(int(folder.name))
        except OSError:
            continue
    return found


# Kills ----------------------------------------------------------------------------------------------------------


@dataclass
class Killed:
    """What was seen after one kill. ``step``: 0 for the untouched tree, n for the n-th entry; -1 for neither, and
    ``between``: then each file by itself is as one of two entries in a row recorded it."""

    at: int
    late: float
    again: bool
    killed: bool = False
    step: int = -1
    between: bool = False
    git_untouched: bool = False
    beside: list[str] = field(default_factory=list)
    processes: int = 0
    finished: bool = False
    """The run had ended by then, so the same command begins another."""


@dataclass
class Resumed:
    """What was seen at the end."""

    code: int = -1
    same_tree: bool = False
    same_changes: bool = False
    runs: int = 0
    left: list[str] = field(default_factory=list)
    last_line: str = ""


class Kills:
    """Runs of one command on fresh copies below ``place``."""

    def __init__(self, place: Path, real: bool) -> None:
        self.place, self.real = place, real
        self.number = 0
        self.expected, self.changes, self.moments = self._without_a_kill()

    def _without_a_kill(self) -> tuple[Tree, list[Any], list[str]]:
        tree, home = self._fresh()
        log = self.place / "writes.log"
        done = self._start(tree, home, KillPlan(log=str(log), real=self.real), "")
        if done.returncode != 0:
            sys.exit(f"the command fails without a kill ({done.returncode}): {done.stderr.strip()[-800:]}")
        return read_tree(tree), _changes(home), log.read_text().split()

    def one(self, draw: random.Random) -> tuple[list[Killed], Resumed]:
        """A kill, sometimes a second one, and the end of the same command."""
        tree, home = self._fresh()
        original, git = read_tree(tree), git_state(tree)
        kills = []
        for again in (False, True)[: 1 + (draw.random() < 0.25)]:
            of = [n for n, who in enumerate(self.moments, 1) if who == "ours"]
            at = draw.choice(of) if draw.random() < 0.5 else draw.randint(1, len(self.moments))
            kill = Killed(at // 2 + 1 if again else at, draw.choice((0.0, draw.uniform(0.0, 0.03))), again)
            mark = uuid.uuid4().hex
            done = self._start(tree, home, KillPlan(kill.at, kill.late, real=self.real), mark)
            kill.killed = done.returncode == -signal.SIGKILL
            kill.processes = self._left(mark)
            now = read_tree(tree)
            kill.beside = sorted(name for name in now if name not in original)
            now = {name: file for name, file in now.items() if name in original}
            recorded = list(recorded_trees(tree, home, original))
            kill.step = max((n for n, each in enumerate(recorded) if each == now), default=-1)
            kill.between = kill.step < 0 and any(
                all(file in (one.get(name), other.get(name)) for name, file in now.items())
                for one, other in itertools.pairwise(recorded)
            )
            kill.git_untouched = git_state(tree) == git
            kill.finished = _finished(home)
            kills.append(kill)
        return kills, self._end(tree, home)

    def _end(self, tree: Path, home: Path) -> Resumed:
        done = self._start(tree, home, KillPlan(real=self.real), "")
        now = read_tree(tree)
        with AgentLedger(home / "ledger.db") as ledger:
            runs = len(ledger.runs())
        left = [name for name in now if name not in PROGRAM]
        left += [str(path.relative_to(tree)) for path in (tree / ".git").rglob("*.lock")]
        return Resumed(done.returncode, now == self.expected, _changes(home) == self.changes, runs, left,
                       (done.stderr.strip().splitlines() or [""])[-1])  # fmt: skip

    def _fresh(self) -> tuple[Path, Path]:
        self.number += 1
        place = self.place / str(self.number)
        if self.number > 2:
            shutil.rmtree(self.place / str(self.number - 1), ignore_errors=True)
        return program_in(place), place / "home"

    def _start(self, tree: Path, home: Path, plan: KillPlan, mark: str) -> subprocess.CompletedProcess[str]:
        words = [sys.executable, __file__, "--child", "agent", QUESTION, "--yes"]
        environment = {**os.environ, "TILEWRIGHT_HOME": str(home), MARK: mark, PLAN: json.dumps(asdict(plan))}
        with tempfile.TemporaryFile("w+") as said:  # a pipe would wait for processes that the killed one has left
            done = subprocess.run(words, cwd=tree, env=environment, stdin=subprocess.DEVNULL, stdout=said, stderr=said)
            said.seek(0)
            return subprocess.CompletedProcess(words, done.returncode, "", said.read())

    def _left(self, mark: str) -> int:
        until = time.monotonic() + LEFT_SECONDS
        while (left := processes_of(mark)) and time.monotonic() < until:
            time.sleep(0.05)
        for process in left:  # ours, by their mark
            os.kill(process, signal.SIGKILL)
        return len(left)


def _changes(home: Path) -> list[Any]:
    """What a run decided: each change once, by what it changes, and the reason why the run ended."""
    with AgentLedger(home / "ledger.db") as ledger:
        run, parts = ledger.load("latest")
    kept = {(c.name, Path(c.site).name) for c in parts.kept}
    ends = [(end.item, end.status, end.why) for end in parts.ends]
    return [sorted(kept), ends, run.stop_reason and run.stop_reason.replace(run.run, "")]


def _finished(home: Path) -> bool:
    with AgentLedger(home / "ledger.db") as ledger:
        return bool(ledger.runs()) and ledger.load("latest")[0].stop_reason is not None


def wrong(kills: list[Killed], end: Resumed) -> list[str]:
    """What is not as it must be, in a few words each."""
    found = []
    for kill in kills:
        found += [f"tree {'between two steps' if kill.between else 'at no step'}"] if kill.step < 0 else []
        found += [] if kill.git_untouched else ["branch, index or stash changed"]
        found += ["processes left"] if kill.processes else []
    found += [f"exit {end.code}: {end.last_line}"] if end.code else []
    found += [] if end.same_tree else ["another tree at the end"]
    finished = any(kill.finished for kill in kills)
    found += [] if end.same_changes or finished else ["other changes or stop reason at the end"]
    found += [f"left: {', '.join(end.left)}"] if end.left else []
    return found + ([f"{end.runs} runs in place of one"] if end.runs != 1 + finished else [])


def main() -> None:
    if sys.argv[1:2] == ["--child"]:
        sys.exit(child(sys.argv[2:]))
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--minutes", type=float, default=math.inf, help="after so many, begin no further kill")
    parser.add_argument("--real", action="store_true", help="run the program, too")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out")
    given = parser.parse_args()
    draw, rows, count = random.Random(given.seed), [], 0
    with tempfile.TemporaryDirectory(prefix="agent-kills-") as place:
        kills = Kills(Path(place), given.real)
        print(f"{len(kills.moments)} writes, {kills.moments.count('ours')} of them of the journal and the ledger")
        until = time.monotonic() + 60 * given.minutes
        while count < given.kills and time.monotonic() < until:
            killed, end = kills.one(draw)
            count += sum(each.killed for each in killed)
            faults = wrong(killed, end)
            rows.append({"kills": [asdict(each) for each in killed], "end": asdict(end), "wrong": faults})
            if faults:
                print(f"kill at {', '.join(str(each.at) for each in killed)}: {'; '.join(faults)}", flush=True)
    each_kill = [each for row in rows for each in row["kills"] if each["killed"]]
    steps = Counter(each["step"] for each in each_kill)
    beside = sum(bool(each["beside"]) for each in each_kill)
    bad = sum(bool(row["wrong"]) for row in rows)
    print(f"{count} kills in {len(rows)} runs; tree at step {dict(sorted(steps.items()))} (0: untouched)")
    print(f"{beside} times a file of the journal's lay beside the user's until the next command; {bad} runs not right")
    write(given.out, {**made_here(), "real": given.real, "seed": given.seed, "writes": Counter(kills.moments),
                      "killed": count, "not_right": bad, "beside": beside, "steps": steps, "runs": rows})  # fmt: skip
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
