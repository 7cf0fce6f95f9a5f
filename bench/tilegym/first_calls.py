"""First calls of TileGym's public operations from empty caches: as they are, and under `tilewright run`.

    python bench/tilegym/first_calls.py [--only OPERATION …] [--out FILE.json]

Each phase is a fresh Python process; torch, TileGym and the GPU's context are there before the clock starts:

    unpatched   empty caches
    patched     empty caches, `tilewright run`
    second      another process after it, same caches
    widened     empty caches, `tilewright run --widen`, attention alone

Then unpatched, second and widened take turns: the time of a call once it is tuned, with a cold L2. Last their outputs
are compared. A phase that fails or takes too long is recorded as such, and the others go on.
"""

from __future__ import annotations

import argparse
import json
import os
import select
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

sys.path.append(str(Path(__file__).parent.parent))

SEED, EPSILON = 3, 1e-5
PHASES: Mapping[str, tuple[str, ...]] = {
    "unpatched": (),
    "patched": ("run", "--"),
    "second": ("run", "--"),
    "widened": ("run", "--widen", "--"),
}
"""Of each phase the words of Tilewright's command before the program."""
SAME_CACHES_AS = {"second": "patched"}
WIDENED = ("fmha",)
ROUNDS, TURNS = 10, 10
"""Samples in a turn, and turns of each process."""
FLUSHED = 16
"""Times the L2 that is written before a sample: 0.2 ms, so that a slow host too has launched before the GPU waits."""
START_SECONDS, CALL_SECONDS, ANSWER_SECONDS = 90.0, 120.0, 30.0
"""Of one process: until torch and TileGym are there; for one first call; for anything else."""
CACHES = ("CUDA_TILE_CACHE_DIR", "TILEWRIGHT_TUNED", "TILEWRIGHT_HOME")
UNSET = ("TILEWRIGHT_PATCH", "TILEWRIGHT_WIDEN", "TILEWRIGHT_TUNING", "DISABLE_AUTOTUNE", "TILEGYM_DISABLE_AUTOTUNE")


# The program: what a user of TileGym runs ---------------------------------------------------------


def _random(torch: Any, *shape: int) -> Any:
    return torch.randn(shape, dtype=torch.bfloat16, device="cuda")


def fmha(torch: Any, ops: Any) -> Callable[[], Any]:
    q, k, v = (_random(torch, 4, 32, 4096, 128) for _ in "qkv")
    return lambda: ops.fmha(q, k, v, is_causal=False)


def bmm(torch: Any, ops: Any) -> Callable[[], Any]:
    a, b = (_random(torch, 16, 2048, 2048) for _ in "ab")
    return lambda: ops.bmm(a, b)


def matmul(torch: Any, ops: Any) -> Callable[[], Any]:
    a, b = (_random(torch, 4096, 4096) for _ in "ab")
    return lambda: ops.matmul(a, b)


def group_gemm(torch: Any, ops: Any) -> Callable[[], Any]:
    a = [_random(torch, 4096, 4096) for _ in range(8)]
    b = [_random(torch, 4096, 2048) for _ in range(8)]
    return lambda: ops.group_gemm(a, b)


def layer_norm(torch: Any, ops: Any) -> Callable[[], Any]:
    """The one that searches: `persistent_layer_norm`."""
    x, weight, bias = _random(torch, 16384, 4096), _random(torch, 4096), _random(torch, 4096)
    return lambda: ops.persistent_layer_norm(x, None, weight, bias, EPSILON)


OPERATIONS: Mapping[str, Callable[[Any, Any], Callable[[], Any]]] = {
    one.__name__: one for one in (fmha, bmm, matmul, group_gemm, layer_norm)
}


class Program:
    """One process: an object whose methods answer the requests."""

    def __init__(self, names: Sequence[str]) -> None:
        import tilegym
        import torch

        self.torch = torch
        self.calls = {name: self._prepared(name, tilegym.ops) for name in names}
        l2 = torch.cuda.get_device_properties(0).L2_cache_size
        self.flush = torch.empty(FLUSHED * l2, dtype=torch.uint8, device="cuda")
        warm = _random(torch, 1024, 1024)
        (warm @ warm).sum().item()
        torch.cuda.synchronize()
        self.version = tilegym.__version__

    def _prepared(self, name: str, ops: Any) -> Callable[[], Any]:
        self.torch.manual_seed(SEED)  # the same inputs, whatever else this process calls
        return OPERATIONS[name](self.torch, ops)

    def about(self) -> dict[str, Any]:
        import cuda.tile as ct

        patched = hasattr(ct.tune.exhaustive_search, "__wrapped__")
        return {"tilegym": self.version, "torch": self.torch.__version__, "patched": patched}

    def first_call(self, name: str) -> dict[str, Any]:
        started = time.perf_counter()
        self.calls[name]()
        self.torch.cuda.synchronize()
        return {"seconds": time.perf_counter() - started, "picks": _picks()}

    def measure(self, name: str) -> dict[str, Any]:
        events = [[self.torch.cuda.Event(enable_timing=True) for _ in "ab"] for _ in range(ROUNDS)]
        for before, after in events:
            self.flush.zero_()
            before.record()
            self.calls[name]()
            after.record()
        self.torch.cuda.synchronize()
        return {"us": statistics.median(before.elapsed_time(after) * 1e3 for before, after in events)}

    def save(self, name: str, file: str) -> dict[str, Any]:
        self.torch.save(self._result(name), file)
        return {}

    def compare(self, name: str, file: str) -> dict[str, Any]:
        """This process's result against a saved one: the largest difference over the root mean square."""
        same, worst = True, 0.0
        for one, other in zip(self._result(name), self.torch.load(file, map_location="cuda"), strict=True):
            same = same and bool(self.torch.equal(one, other))
            scale = other.float().square().mean().sqrt().clamp(min=1e-30)
            worst = max(worst, float(((one.float() - other.float()).abs().max() / scale).item()))
        return {"same_bits": same, "largest_difference": worst}

    def _result(self, name: str) -> list[Any]:
        result = self.calls[name]()
        parts = result if isinstance(result, (tuple, list)) else (result,)
        return [one for one in parts if hasattr(one, "data_ptr")]


def _picks() -> list[dict[str, Any]]:
    """The configurations that TileGym's modules hold in their caches, in the order they came."""
    picks = []
    for module in [one for name, one in sys.modules.items() if name.startswith("tilegym.ops.cutile")]:
        for name, kept in vars(module).items():
            if name.endswith("_tune_cache") and isinstance(kept, dict):
                picks += [dict(vars(one[0])) for one in kept.values() if isinstance(one, tuple)]
    return [one for place, one in enumerate(picks) if one not in picks[:place]]


def program(names: Sequence[str]) -> None:
    from tilewright.worker.messages import private_stdout

    channel = private_stdout()
    serving = Program(names)
    for request in (json.loads(line) for line in sys.stdin):
        try:
            answer = getattr(serving, request.pop("do"))(**request)
        except Exception as error:
            answer = {"failed": f"{type(error).__name__}: {str(error)[:400]}"}
        channel.write(json.dumps(answer) + "\n")
        channel.flush()


# The benchmark ------------------------------------------------------------------------------------


class Process:
    """A running program, as a context manager. Every answer is a dictionary; ``failed`` says what went wrong."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], stderr: Path) -> None:
        self.stderr = stderr
        self.first_wait = START_SECONDS
        with stderr.open("w") as file:
            self.process = subprocess.Popen(
                command, env=dict(environment), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=file, text=True
            )

    def __enter__(self) -> Process:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.process.kill()
        self.process.wait()

    def ask(self, seconds: float = ANSWER_SECONDS, **request: Any) -> dict[str, Any]:
        assert self.process.stdin is not None and self.process.stdout is not None
        seconds, self.first_wait = seconds + self.first_wait, 0.0
        try:
            self.process.stdin.write(json.dumps(request) + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            return self._lost("its process has ended")
        if not select.select([self.process.stdout], [], [], seconds)[0]:
            self.process.kill()
            return self._lost(f"no answer in {seconds:.0f} s")
        line = self.process.stdout.readline()
        answer: dict[str, Any] = json.loads(line) if line else self._lost("its process has ended")
        return answer

    def _lost(self, why: str) -> dict[str, Any]:
        return {"failed": f"{why}: {self.stderr.read_text()[-400:].strip()}"}


def environment_of(phase: str, caches: Path) -> dict[str, str]:
    """The caller's, with caches of its own and none of its switches."""
    folder = caches / SAME_CACHES_AS.get(phase, phase)
    folder.mkdir(exist_ok=True)
    kept = {name: value for name, value in os.environ.items() if name not in UNSET}
    return {**kept, "DISABLE_FALLBACK": "1", **{name: str(folder / name.lower()) for name in CACHES}}


def command_of(phase: str, names: Sequence[str]) -> list[str]:
    started = [sys.executable, str(Path(__file__).resolve()), "--program", *names]
    words = PHASES[phase]
    return [sys.executable, "-m", "tilewright", *words, *started] if words else started


def first_calls(process: Process, names: Sequence[str]) -> dict[str, Any]:
    """One phase: the first call of each operation, in turn."""
    found: dict[str, Any] = {"about": process.ask(do="about"), "calls": {}}
    for name in names:
        found["calls"][name] = process.ask(CALL_SECONDS, do="first_call", name=name)
        print(f"  {name}: {_said(found['calls'][name])}", flush=True)
    found["stderr"] = process.stderr.read_text()[-2000:]
    return found


def _said(answer: Mapping[str, Any]) -> str:
    return str(answer.get("failed") or f"{answer['seconds']:.2f} s")


def stages(store: str) -> dict[str, Mapping[str, float]]:
    """By kernel: the seconds that its search waited for each stage, as the store has them."""
    from tilewright.runtime.store.winners import Winners

    return {one.kernel: one.machine["seconds"] for one in Winners(Path(store) / "tuned.db").all()}


def steady(processes: Mapping[str, Process], names: Sequence[str]) -> dict[str, Any]:
    """By operation and phase: the median of each turn in µs; the processes take turns."""
    found: dict[str, Any] = {}
    for name in names:
        able = {phase: one for phase, one in processes.items() if phase != "widened" or name in WIDENED}
        turns: dict[str, list[Any]] = {phase: [] for phase in able}
        for _ in range(TURNS):
            for phase, process in able.items():
                turns[phase].append(process.ask(do="measure", name=name))
        found[name] = {phase: [one.get("us") for one in given] for phase, given in turns.items()}
    return found


def outputs(processes: Mapping[str, Process], names: Sequence[str], folder: Path) -> dict[str, Any]:
    """By operation: how the results of the other processes differ from the unpatched one's."""
    found: dict[str, Any] = {}
    for name in names:
        file = str(folder / f"{name}.pt")
        saved = processes["unpatched"].ask(do="save", name=name, file=file)
        others = [one for one in processes if one != "unpatched" and (one != "widened" or name in WIDENED)]
        found[name] = {
            one: saved if "failed" in saved else processes[one].ask(do="compare", name=name, file=file)
            for one in others
        }
    return found


def measured(names: Sequence[str], folder: Path) -> dict[str, Any]:
    record: dict[str, Any] = {"operations": list(names), "phases": {}}
    running: dict[str, Process] = {}
    try:
        for phase in PHASES:
            wanted = [name for name in names if phase != "widened" or name in WIDENED]
            if not wanted:
                continue
            print(f"{phase}:", flush=True)
            process = Process(command_of(phase, wanted), environment_of(phase, folder), folder / f"{phase}.txt")
            record["phases"][phase] = first_calls(process, wanted)
            if phase == "patched":
                process.__exit__(None, None, None)
                record["stages_s"] = stages(environment_of(phase, folder)["TILEWRIGHT_TUNED"])
            else:
                running[phase] = process
        record["steady_us"] = steady(running, names)
        record["outputs"] = outputs(running, names, folder)
    finally:
        for process in running.values():
            process.__exit__(None, None, None)
    return record


def summary(record: Mapping[str, Any]) -> dict[str, Any]:
    """What the requirement asks for; None where a phase did not give it."""
    names = record["operations"]
    total = {phase: _total(found, names) for phase, found in record["phases"].items()}
    ratios = {name: _ratio(turns, "second") for name, turns in record.get("steady_us", {}).items()}
    widened = {name: _ratio(record.get("steady_us", {}).get(name, {}), "widened") for name in WIDENED}
    known = [ratio for ratio in ratios.values() if ratio is not None]
    return {
        "first_calls_s": total,
        "first_process_speedup": _over(total.get("unpatched"), total.get("patched")),
        "second_process_speedup": _over(total.get("unpatched"), total.get("second")),
        "steady_speedup": ratios,
        "worst_steady_speedup": min(known, default=None),
        "widened_speedup": widened,
        "same_bits": {
            name: {phase: one.get("same_bits") for phase, one in given.items()}
            for name, given in record.get("outputs", {}).items()
        },
    }


def _total(phase: Mapping[str, Any], names: Sequence[str]) -> float | None:
    seconds = [phase["calls"].get(name, {}).get("seconds") for name in names]
    return None if None in seconds else sum(seconds)


def _ratio(turns: Mapping[str, Sequence[float | None]], phase: str) -> float | None:
    """Median over the turns of unpatched / phase: drift common to a turn cancels."""
    before, after = turns.get("unpatched", ()), turns.get(phase, ())
    pairs = [(x, y) for x, y in zip(before, after, strict=False) if x and y]
    return statistics.median(x / y for x, y in pairs) if pairs else None


def _over(before: float | None, after: float | None) -> float | None:
    return before / after if before and after else None


def table(record: Mapping[str, Any]) -> str:
    """First calls in s by phase, then the tuned call of each against the unpatched one."""
    phases = list(record["phases"])
    lines = [f"{'first call, s':<16}" + "".join(f"{phase:>11}" for phase in phases) + "   tuned call, speedup"]
    for name in record["operations"]:
        cells = [record["phases"][phase]["calls"].get(name, {}).get("seconds") for phase in phases]
        shown = "".join(f"{'-' if cell is None else f'{cell:.2f}':>11}" for cell in cells)
        turns = record.get("steady_us", {}).get(name, {})
        ratios = [(phase, _ratio(turns, phase)) for phase in turns if phase != "unpatched"]
        lines.append(f"{name:<16}{shown}   " + ", ".join(f"{phase} {r:.3f}x" for phase, r in ratios if r))
    found = record["summary"]
    for what in ("first_process_speedup", "second_process_speedup", "worst_steady_speedup"):
        lines.append(f"{what}: {'not measured' if found[what] is None else f'{found[what]:.3g}'}")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=OPERATIONS, default=list(OPERATIONS), metavar="OPERATION")
    parser.add_argument("--out", metavar="FILE.json")
    parser.add_argument("--program", nargs="+", choices=OPERATIONS, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.program:
        program(given.program)
        return
    from common import made_here, need_gpu, write

    need_gpu()
    started = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="first-calls-") as folder:
        record = {**made_here(), **measured(given.only, Path(folder))}
    record["seconds"] = time.perf_counter() - started
    record["summary"] = summary(record)
    write(given.out, record)
    print(table(record))


if __name__ == "__main__":
    main()
