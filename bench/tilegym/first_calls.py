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
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parent.parent))

from program_process import MeasuredCalls, Process, benchmark, environment_in, first_calls, over, ratio, totalled

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
TURNS = 10
"""Turns of each process."""
CACHES = ("CUDA_TILE_CACHE_DIR", "TILEWRIGHT_TUNED", "TILEWRIGHT_HOME")


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


class Program(MeasuredCalls):
    """One process: an object whose methods answer the requests."""

    def __init__(self, names: Sequence[str]) -> None:
        import tilegym
        import torch

        def prepared(name: str) -> Callable[[], Any]:
            torch.manual_seed(SEED)  # the same inputs, whatever else this process calls
            return OPERATIONS[name](torch, tilegym.ops)

        super().__init__({name: prepared(name) for name in names})
        self.version = tilegym.__version__

    def about(self) -> dict[str, Any]:
        import cuda.tile as ct

        patched = hasattr(ct.tune.exhaustive_search, "__wrapped__")
        return {"tilegym": self.version, "torch": self.torch.__version__, "patched": patched}

    def first_call(self, name: str) -> dict[str, Any]:
        return {**super().first_call(name), "picks": _picks()}


def _picks() -> list[dict[str, Any]]:
    """The configurations that TileGym's modules hold in their caches, in the order they came."""
    picks = []
    for module in [one for name, one in sys.modules.items() if name.startswith("tilegym.ops.cutile")]:
        for name, kept in vars(module).items():
            if name.endswith("_tune_cache") and isinstance(kept, dict):
                picks += [dict(vars(one[0])) for one in kept.values() if isinstance(one, tuple)]
    return [one for place, one in enumerate(picks) if one not in picks[:place]]


# The benchmark ------------------------------------------------------------------------------------


def environment_of(phase: str, caches: Path) -> dict[str, str]:
    return {**environment_in(caches / SAME_CACHES_AS.get(phase, phase), CACHES), "DISABLE_FALLBACK": "1"}


def command_of(phase: str, names: Sequence[str]) -> list[str]:
    started = [sys.executable, str(Path(__file__).resolve()), "--program", *names]
    words = PHASES[phase]
    return [sys.executable, "-m", "tilewright", *words, *started] if words else started


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
            record["phases"][phase] = first_calls(process, wanted, sys.stdout)
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
    total = {phase: totalled(found["calls"], names) for phase, found in record["phases"].items()}
    ratios = {name: ratio(turns, "second") for name, turns in record.get("steady_us", {}).items()}
    widened = {name: ratio(record.get("steady_us", {}).get(name, {}), "widened") for name in WIDENED}
    known = [ratio for ratio in ratios.values() if ratio is not None]
    return {
        "first_calls_s": total,
        "first_process_speedup": over(total.get("unpatched"), total.get("patched")),
        "second_process_speedup": over(total.get("unpatched"), total.get("second")),
        "steady_speedup": ratios,
        "worst_steady_speedup": min(known, default=None),
        "widened_speedup": widened,
        "same_bits": {
            name: {phase: one.get("same_bits") for phase, one in given.items()}
            for name, given in record.get("outputs", {}).items()
        },
    }


def table(record: Mapping[str, Any]) -> str:
    """First calls in s by phase, then the tuned call of each against the unpatched one."""
    phases = list(record["phases"])
    lines = [f"{'first call, s':<16}" + "".join(f"{phase:>11}" for phase in phases) + "   tuned call, speedup"]
    for name in record["operations"]:
        cells = [record["phases"][phase]["calls"].get(name, {}).get("seconds") for phase in phases]
        shown = "".join(f"{'-' if cell is None else f'{cell:.2f}':>11}" for cell in cells)
        turns = record.get("steady_us", {}).get(name, {})
        ratios = [(phase, ratio(turns, phase)) for phase in turns if phase != "unpatched"]
        lines.append(f"{name:<16}{shown}   " + ", ".join(f"{phase} {r:.3f}x" for phase, r in ratios if r))
    found = record["summary"]
    for what in ("first_process_speedup", "second_process_speedup", "worst_steady_speedup"):
        lines.append(f"{what}: {'not measured' if found[what] is None else f'{found[what]:.3g}'}")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    print(table(benchmark(parser, OPERATIONS, Program, lambda given, folder: measured(given.only, folder), summary)))


if __name__ == "__main__":
    main()
