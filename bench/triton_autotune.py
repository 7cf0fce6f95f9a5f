"""Programs with kernels under `triton.autotune`, from empty caches: as they are, and under `tilewright run`.

    python bench/triton_autotune.py [--only OPERATION …] [--seconds 150] [--out FILE.json]

Each phase is a fresh Python process that calls the kernels of bench/triton_autotune_kernels.py once each:

    unpatched   empty caches
    patched     empty caches, `tilewright run`
    second      another process after it, same caches

A first call is timed from the call to the end of its work on the GPU; torch and the GPU's context are there before. The
seconds of the whole process, from its start to the end of the last first call, are recorded too. Then unpatched and
second take turns: the time of a call once it is tuned, with a cold L2. Last their outputs are compared, by the rules
with which a search compares configurations. Everything ends after about --seconds. Prints the result as one line of
JSON, then a table; --out gets every sample and the outcome of every configuration.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from program_process import MeasuredCalls, Process, benchmark, environment_in, first_calls, over, ratio, totalled

SEED = 3
PHASES = ("unpatched", "patched", "second")
CACHES = ("TRITON_CACHE_DIR", "CUDA_TILE_CACHE_DIR", "TILEWRIGHT_TUNED", "TILEWRIGHT_HOME")
NAMES = ("matmul", "persistent_matmul", "chunk_output", "head_norm", "weight_gradient", "optimizer_step")
FEWEST, TURNS = 3, 12
"""Turns of each operation; fewer than `TURNS` if the time is over."""
KEPT_SECONDS = 6.0
"""Of --seconds, what the comparison of the outputs gets."""
SLOWER = 0.99
"""A tuned call may have this share of the speed without Tilewright."""


class Program(MeasuredCalls):
    """One process: an object whose methods answer the requests."""

    def __init__(self, names: Sequence[str]) -> None:
        import torch
        import triton_autotune_kernels as kernels

        calls = {}
        for name in names:
            torch.manual_seed(SEED)
            calls[name] = kernels.OPERATIONS[name]()
        super().__init__(calls)
        self.kernels = kernels

    def about(self) -> dict[str, Any]:
        import triton
        from triton.runtime.autotuner import Autotuner

        patched = hasattr(Autotuner._bench, "__wrapped__")
        return {"triton": triton.__version__, "torch": self.torch.__version__, "patched": patched}

    def first_call(self, name: str) -> dict[str, Any]:
        timed, autotuner = super().first_call(name), self.kernels.KERNELS[name]
        return {**timed, "configurations": len(autotuner.configs), "pick": str(autotuner.best_config)}


def environment_of(phase: str, caches: Path) -> dict[str, str]:
    return environment_in(caches / ("patched" if phase == "second" else phase), CACHES)


def command_of(phase: str, names: Sequence[str]) -> list[str]:
    started = [sys.executable, str(Path(__file__).resolve()), "--program", *names]
    return started if phase == "unpatched" else [sys.executable, "-m", "tilewright", "run", "--", *started]


def stages(store: str) -> dict[str, Mapping[str, Any]]:
    """By kernel: the seconds that its search waited for each stage, and how each configuration fared."""
    from tilewright.runtime.store.winners import Winners

    winners = Winners(Path(store) / "tuned.db").all()
    return {
        each.kernel: {
            "seconds": each.machine["seconds"],
            "outcomes": [[row["label"], row["status"], row["us"], row["reason"]] for row in each.outcomes],
        }
        for each in winners
    }


def steady(processes: Mapping[str, Process], names: Sequence[str], until: float) -> dict[str, Any]:
    """By operation and phase: the median of each turn in µs; the processes take turns."""
    found: dict[str, Any] = {name: {phase: [] for phase in processes} for name in names}
    for turn in range(TURNS):
        if turn >= FEWEST and time.perf_counter() > until:
            break
        for name in names:
            for phase, process in processes.items():
                found[name][phase].append(process.ask(do="measure", name=name).get("us"))
    return found


def compared(processes: Mapping[str, Process], names: Sequence[str], folder: Path) -> dict[str, Any]:
    """By operation: how the results of the second process differ from the unpatched one's."""
    found: dict[str, Any] = {}
    for name in names:
        file = str(folder / f"{name}.pt")
        saved = processes["unpatched"].ask(do="save", name=name, file=file)
        found[name] = saved if "failed" in saved else processes["second"].ask(do="compare", name=name, file=file)
    return found


def measured(names: Sequence[str], folder: Path, until: float) -> dict[str, Any]:
    record: dict[str, Any] = {"operations": list(names), "phases": {}}
    running: dict[str, Process] = {}
    try:
        for phase in PHASES:
            print(f"{phase}:", file=sys.stderr, flush=True)
            started = time.perf_counter()
            process = Process(command_of(phase, names), environment_of(phase, folder), folder / f"{phase}.txt")
            calls = first_calls(process, names, sys.stderr)
            record["phases"][phase] = {**calls, "whole_seconds": time.perf_counter() - started}
            if phase == "patched":
                process.__exit__(None, None, None)
                record["searches"] = stages(environment_of(phase, folder)["TILEWRIGHT_TUNED"])
            else:
                running[phase] = process
        record["steady_us"] = steady(running, names, until - KEPT_SECONDS)
        record["outputs"] = compared(running, names, folder)
    finally:
        for process in running.values():
            process.__exit__(None, None, None)
    return record


def summary(record: Mapping[str, Any]) -> dict[str, Any]:
    """What is asked for; None where a phase did not give it."""
    names, phases = record["operations"], record["phases"]
    calls = {phase: totalled(found["calls"], names) for phase, found in phases.items()}
    whole = {phase: found["whole_seconds"] for phase, found in phases.items()}
    ratios = {name: ratio(turns, "second") for name, turns in record.get("steady_us", {}).items()}
    known = [each for each in ratios.values() if each is not None]
    outputs = record.get("outputs", {})
    return {
        "first_calls_s": calls,
        "first_process_speedup": over(calls.get("unpatched"), calls.get("patched")),
        "second_process_speedup": over(calls.get("unpatched"), calls.get("second")),
        "whole_processes_s": whole,
        "whole_first_speedup": over(whole.get("unpatched"), whole.get("patched")),
        "whole_second_speedup": over(whole.get("unpatched"), whole.get("second")),
        "steady_speedup": ratios,
        "worst_steady_speedup": min(known, default=None),
        "slower": [name for name, each in ratios.items() if each is not None and each < SLOWER],
        "outputs_equal": [name for name in names if outputs.get(name, {}).get("wrong", "unknown") is None],
    }


def result(record: Mapping[str, Any]) -> dict[str, Any]:
    """The summary, and what it needs to be understood."""
    picks = {phase: {name: call.get("pick") for name, call in found["calls"].items()}
             for phase, found in record["phases"].items()}  # fmt: skip
    return {
        "gpu": record["machine"]["gpu"], "date": record["date"], "about": record["phases"]["unpatched"]["about"],
        "seconds": record["seconds"], "summary": record["summary"], "picks": picks,
        "search_seconds": {kernel: found["seconds"] for kernel, found in record.get("searches", {}).items()},
    }  # fmt: skip


def table(record: Mapping[str, Any]) -> str:
    """First calls in s by phase, and the tuned call against the unpatched one's."""
    lines = [
        f"{'first call, s':<18}{'configs':>8}" + "".join(f"{phase:>11}" for phase in PHASES) + "  tuned call  outputs"
    ]
    found = record["summary"]
    for name in record["operations"]:
        answers = [record["phases"].get(phase, {}).get("calls", {}).get(name, {}) for phase in PHASES]
        cells = "".join(f"{answer['seconds']:>11.2f}" if "seconds" in answer else f"{'-':>11}" for answer in answers)
        speed, equal = found["steady_speedup"].get(name), "equal" if name in found["outputs_equal"] else "NOT EQUAL"
        count, shown = answers[0].get("configurations", "-"), "-" if speed is None else f"{speed:.3f}x"
        lines.append(f"{name:<18}{count:>8}{cells}{shown:>12}  {equal}")
    for what in (
        "first_process_speedup", "second_process_speedup", "whole_first_speedup", "whole_second_speedup",
        "worst_steady_speedup",
    ):  # fmt: skip
        lines.append(f"{what}: {'not measured' if found[what] is None else f'{found[what]:.3g}'}")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=150.0)
    started = time.perf_counter()
    record = benchmark(
        parser, NAMES, Program, lambda given, folder: measured(given.only, folder, started + given.seconds), summary
    )
    print(json.dumps(result(record)))
    print(table(record))


if __name__ == "__main__":
    main()
