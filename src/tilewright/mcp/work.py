"""The process of a job: calls the function of its command, and writes progress and outcome into the job's folder.

The functions are those that the command line calls, with the same defaults. A wrong request, a machine that cannot do
it and a mistake in Tilewright end a job as ``failed``, each with one line. A SIGTERM ends it as ``cancelled``; the
ledger keeps what was finished.
"""

from __future__ import annotations

import math
import os
import subprocess
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from tilewright.compile.compile import refuse_broken_task
from tilewright.errors import RequestError, TilewrightError, in_one_line, in_task, place_in_task
from tilewright.hardware.gpu import detect
from tilewright.hardware.machine import target_of
from tilewright.languages import load
from tilewright.ledger.codec import Encodable, to_json
from tilewright.mcp import results
from tilewright.mcp.jobs import read, turn, write
from tilewright.mcp.replies import JobReply, Verb
from tilewright.progress import BEST, Progress
from tilewright.tools import child

if TYPE_CHECKING:
    from tilewright.profile.figures import Profile

Done: TypeAlias = "tuple[Encodable, JobReply]"
"""The whole result, as ``--json`` prints it, and the typed reply."""

EVERY_SECONDS = 0.2
"""The least time between two writes of the progress."""
MEASURES: frozenset[Verb] = frozenset(("check", "tune", "optimize", "profile"))
"""The commands whose jobs run one after another, because they measure or use all cores."""
PROGRAM_STEPS = (10, 15)


def work(folder: Path) -> None:
    """Does the job in ``folder``, and writes its outcome."""
    request = read(folder / "request.json")
    if not request:
        raise RequestError(f"{folder} has no request.json, so it is not the folder of a job; job_start starts a job")
    verb: Verb = request["verb"]
    shown = ProgressFile(folder / "progress.json")

    def ended(outcome: Mapping[str, Encodable]) -> None:
        write(folder / "outcome.json", {**outcome, "ended": time.time()})

    try:
        with turn(folder, partial(shown, "waiting for other jobs", 0, None)) if verb in MEASURES else nullcontext():
            whole, reply = VERBS[verb](shown, **request["arguments"])
        write(folder / "result.json", to_json(whole))
        ended({"state": "done", "reply": to_json(reply)})
    except KeyboardInterrupt:  # it is handled until the file is written: a signal that got lost is raised again
        ended({"state": "cancelled"})
    except TilewrightError as error:
        ended({"state": "failed", "error": " ".join(str(error).split())})
    except (Exception, SystemExit) as error:
        traceback.print_exception(error)
        ours = f"{in_one_line(error)}: a mistake in Tilewright; its traceback is in {folder / 'log'}"
        ended({"state": "failed", "error": in_task(error) if place_in_task(error) else ours})


@dataclass
class ProgressFile:
    """A `Progress` that writes the latest progress into a file. May be called from several threads."""

    file: Path
    _best: str = ""
    _written: float = -math.inf
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __call__(self, stage: str, done: int, total: int | None, note: str = "") -> None:
        with self._lock:
            if stage == BEST:
                self._best = note
            elif time.monotonic() > self._written + EVERY_SECONDS:
                of = f"{done} of {total}" if total else str(done or "")
                text = " ".join(filter(None, (stage, of)))
                write(self.file, {"text": f"{text}: {note}" if note else text, "best": self._best})
                self._written = time.monotonic()


# One function for each command --------------------------------------------------------------------


def doctor(progress: Progress) -> Done:
    from tilewright.doctor.probes import examine, to_json

    whole = to_json(examine())
    return whole, results.examined(whole)


def inspect(
    progress: Progress, task: str, arch: Sequence[str] = (), config: Sequence[str] = (), workload: str | None = None
) -> Done:  # fmt: skip
    from tilewright.inspect.inspect import inspect

    rows = inspect(load(task), arch, config=config, workload=workload, progress=progress)
    whole = [row.to_json() for row in rows]
    return whole, results.inspected(whole)


def check(
    progress: Progress, task: str, workloads: Sequence[str] = (), config: Sequence[str] = (), arch: str | None = None,
    engine: str | None = None, seed: int | None = None, case: str | None = None, quick: bool = False,
    seconds: float | None = None,
) -> Done:  # fmt: skip
    """Checks a task. The arguments are those of `tilewright check`; ``seconds`` None: its default."""
    from tilewright.hardware.architectures import architecture
    from tilewright.verify.cases import requested
    from tilewright.verify.check import check
    from tilewright.verify.planning import SECONDS
    from tilewright.verify.schedule import board_here, engine_name
    from tilewright.verify.verdict import all_to_json, beside, to_json, worst

    loaded, name = load(task), engine_name(engine)
    board = board_here(name, architecture(arch).name if arch else target_of(None, detect()).board.arch)
    only, seed = requested(loaded, workloads, case, seed, quick)
    configurations = loaded.space.chosen(config)
    refuse_broken_task(loaded, board, loaded.selected(workloads), configurations or loaded.space.every_shipped)
    verdicts = check(
        loaded, engine=name, arch=board.arch, configurations=configurations, workloads=workloads, case=only,
        seed=seed, quick=quick, seconds=seconds or SECONDS, progress=progress,
    )  # fmt: skip
    each = [to_json(verdict, beside(task, verdict) if n else task) for n, verdict in enumerate(verdicts)]
    return all_to_json(verdicts, task), results.checked(each, worst(verdicts))


def tune(
    progress: Progress, task: str, arch: str | None = None, workloads: Sequence[str] = (),
    l2: Literal["cold", "warm"] = "cold", launch: Literal["graph", "eager"] = "graph", into: str | None = None,
    **options: Any,
) -> Done:  # fmt: skip
    """``into``: the folder of the task's config file. ``options``: other arguments of `tune.tune`."""
    from tilewright.race.rules import Policy
    from tilewright.runtime.dispatch.table import prepare_table, write_table
    from tilewright.tune.advice import advice
    from tilewright.tune.as_json import to_json
    from tilewright.tune.tune import refuse_without_code, tune

    board = target_of(arch, detect()).board
    loaded, policy = load(task).on(board.arch), Policy(l2=l2, launch=launch, seed=options.get("seed") or 0)
    selected = loaded.selected(workloads)
    if into:
        prepare_table(loaded, Path(into))
    refuse_broken_task(loaded, board, selected)
    result = tune(loaded, arch=arch, workloads=workloads or None, policy=policy, progress=progress, **options)
    refuse_without_code(result)
    known = advice(loaded, selected[0], board)
    whole = to_json(result) | {"advice": known.to_json() if known else None}
    if into:
        whole["file"] = write_table(loaded, result, board, Path(into)).file
    return whole, results.tuned(whole)


def optimize(
    progress: Progress, task: str, arch: str | None = None, workloads: Sequence[str] = (),
    l2: Literal["cold", "warm"] = "cold", launch: Literal["graph", "eager"] = "graph", seed: int | None = None,
    fresh: bool = False, changes: Sequence[str] = (), stop_after: float | None = None, propose: str | None = None,
    propose_only: bool = False, propose_seconds: float = 300.0, propose_attempts: int = 10, **limits: Any,
) -> Done:  # fmt: skip
    """``stop_after``: minutes; None: no limit. ``limits``: other fields of `optimize.options.Options`."""
    from tilewright.ledger.file import home
    from tilewright.mcp.mailbox import AGENT, Mailbox
    from tilewright.optimize.broken_code import refuse_broken_code
    from tilewright.optimize.loop import optimize
    from tilewright.optimize.optimized import to_json
    from tilewright.optimize.options import Options
    from tilewright.optimize.proposing.asked import Propose
    from tilewright.race.rules import Policy

    proposer = Propose(propose, propose_seconds, propose_attempts, only=propose_only) if propose else None
    mailbox = Mailbox(progress.file.parent) if propose == AGENT and isinstance(progress, ProgressFile) else None
    board = target_of(arch, detect()).board
    loaded, policy = load(task).on(board.arch), Policy(l2=l2, launch=launch)
    options = Options(
        changes=tuple(Path(path).absolute() for path in changes),
        stop_after=math.inf if stop_after is None else stop_after, propose=proposer, **limits,
    )  # fmt: skip
    refuse_broken_code(loaded, board, workloads, home())
    result = optimize(
        loaded, arch=arch, workloads=workloads or None, options=options, policy=policy, seed=seed, fresh=fresh,
        ask=mailbox, progress=progress,
    )  # fmt: skip
    whole = to_json(result)
    return whole, results.optimized(whole, result.patch)


def profile(
    progress: Progress, traces: Sequence[str] = (), command: Sequence[str] = (), steps: Sequence[int] = (),
    seconds: float = 60.0, counters: bool = False,
) -> Done:  # fmt: skip
    from tilewright.profile.nsight import with_counters
    from tilewright.profile.profile import profile

    chosen = (steps[0], steps[1]) if steps else None
    if traces:
        found = profile(*traces, steps=chosen, progress=progress)
    else:
        found = _traced(command, chosen or PROGRAM_STEPS, seconds, progress)
    if counters:
        found = with_counters(found)
    return to_json(found), results.profiled(found)


def _traced(command: Sequence[str], steps: tuple[int, int], seconds: float, progress: Progress) -> Profile:
    """Runs a program with the recorder, and returns its profile. The program ends with the job."""
    from tilewright.profile.profile import profile
    from tilewright.program.command import ProgramCommand
    from tilewright.program.places import located
    from tilewright.runtime.started import recorded, trace_folder, traced

    program, folder = ProgramCommand.of(command), trace_folder()
    environment = traced(os.environ, folder, steps[1], seconds)
    progress("the program runs", 0, None)
    process = subprocess.Popen(program.words, env=environment, stdin=subprocess.DEVNULL, start_new_session=True)
    with child.running(process.pid):
        code = process.wait()
    traces, times = recorded(folder, code)
    found = profile(*traces, steps=steps, command=program.words, steps_us=times, progress=progress)
    return located(found, program.script)


VERBS: Mapping[Verb, Callable[..., Done]] = {
    "doctor": doctor, "inspect": inspect, "check": check, "tune": tune, "optimize": optimize, "profile": profile,
}  # fmt: skip
