"""How many of fifteen kinds of kernel become tasks when a program of TileGym's launches them, and how many check.

    python bench/captured_kinds.py OUT.json [--set-aside] [--only KIND …] [--quick]

Needs TileGym 1.5.1 on the path (`pip install --no-deps tilegym==1.5.1`) and torch, and no GPU: TileGym's own functions
run on tensors of the CPU, their launches are described and not made, and searches take the first configuration. Each
task is written by `tilewright captured task` and checked by `tilewright check`, as a user does it. The kinds in
``captured_kinds_set_aside.txt`` were drawn before any kernel was captured; nothing was changed for them.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
from common import made_here, write
from cuda.tile import tune

from tilewright.runtime.capture import record as capture_record
from tilewright.runtime.capture.capture import DESCRIBE_VARIABLE, capturing

OPS, LIGER = "tilegym.ops.cutile", "tilegym.suites.liger.cutile"
SET_ASIDE = Path(__file__).with_name("captured_kinds_set_aside.txt")
SECONDS = 900
EMPTY = torch.empty


def bf16(*shape: int) -> torch.Tensor:
    """Memory that nobody writes: a launch that is only described reads no floating-point number."""
    return torch.empty(shape, dtype=torch.bfloat16)


def f32(*shape: int) -> torch.Tensor:
    return torch.empty(shape, dtype=torch.float32)


def called(module: str, function: str, *args: Any, **options: Any) -> None:
    getattr(import_module(module), function)(*args, **options)


KINDS: dict[str, Callable[[], None]] = {
    "attention_sink": lambda: called(
        f"{OPS}.attention_sink", "attention_sink", bf16(1, 4096, 8, 8, 64), *(bf16(1, 4096, 8, 64) for _ in "kv"),
        bf16(64),
    ),
    "mla_prefill": lambda: called(
        f"{OPS}.mla", "tile_mla", *(bf16(1, 128, 4096, 128) for _ in "qkv"), bf16(1, 128, 4096, 64),
        bf16(1, 1, 4096, 64), True, None,
    ),
    "mla_decode": lambda: called(
        f"{OPS}.mla_decoding", "mla_decoding", bf16(64, 128, 512), bf16(64, 128, 64), bf16(64, 8192, 512),
        bf16(64, 8192, 64), None,
    ),
    "mla_decode_split_kv": lambda: called(
        f"{OPS}.mla_decoding_split_kv", "mla_decoding_split_kv", bf16(8, 128, 512), bf16(8, 128, 64),
        bf16(8, 8192, 512), bf16(8, 8192, 64),
    ),
    "splitk_reduce": lambda: called(
        f"{OPS}.splitk_reduce", "splitk_reduce", f32(64, 32, 64, 128), f32(64, 32, 64), bf16(64, 32, 128), 8192
    ),
    "dropout": lambda: called(f"{OPS}.dropout", "dropout", bf16(8192, 4096), 11),
    "softmax": lambda: called(f"{LIGER}.softmax", "softmax", bf16(16384, 8192)),
    "sparsemax": lambda: called(f"{LIGER}.sparsemax", "sparsemax", bf16(8192, 4096).zero_()),
    "dyt": lambda: called(f"{LIGER}.dyt", "dyt", bf16(16384, 4096), bf16(1), bf16(4096), bf16(4096)),
    "geglu": lambda: called(f"{LIGER}.geglu", "geglu", bf16(8192, 14336), bf16(8192, 14336)),
    "group_norm": lambda: called(
        f"{LIGER}.group_norm", "group_norm", bf16(16, 512, 4096), 512, 32, bf16(512), bf16(512)
    ),
    "kl_div": lambda: called(f"{LIGER}.kl_div", "kl_div", bf16(4096, 32000), bf16(4096, 32000)),
    "poly_norm": lambda: called(f"{LIGER}.poly_norm", "poly_norm", bf16(16384, 4096), bf16(3), bf16(1)),
    "cross_entropy": lambda: called(
        f"{LIGER}.cross_entropy", "cross_entropy", bf16(4096, 32000), torch.randint(0, 32000, (4096,))
    ),
    "fused_add_rms_norm": lambda: called(
        f"{LIGER}.fused_add_rms_norm", "fused_add_rms_norm", bf16(16384, 4096), bf16(16384, 4096), bf16(4096)
    ),
}  # fmt: skip
"""Calls of TileGym's functions, with the shapes of a model of today."""


def first_of(configurations: Sequence[Any], *_: Any, **__: Any) -> Any:
    """In place of `exhaustive_search`, which times on a GPU."""
    return SimpleNamespace(best=SimpleNamespace(config=next(iter(configurations)), mean_us=1.0))


def on_the_cpu(*given: Any, **options: Any) -> torch.Tensor:
    """In place of `torch.empty`, for wrappers that ask for the device "cuda"."""
    options.pop("device", None)
    return EMPTY(*given, **options)


@contextmanager
def without_a_gpu() -> Iterator[None]:
    """Answers what TileGym asks of a device as an H200 would."""
    properties = SimpleNamespace(multi_processor_count=132, name="none", major=9, minor=0)
    answers = {
        "get_device_capability": lambda *_: (9, 0), "get_device_properties": lambda *_: properties,
        "current_stream": lambda *_: 0, "current_device": lambda: 0, "Stream": lambda **_: 0,
    }  # fmt: skip
    with ExitStack() as stack:
        for name, answer in answers.items():
            stack.enter_context(mock.patch.object(torch.cuda, name, answer))
        stack.enter_context(mock.patch.object(torch, "empty", on_the_cpu))
        stack.enter_context(mock.patch.object(tune, "exhaustive_search", first_of))
        stack.enter_context(mock.patch.dict(sys.modules, {"triton": None}))
        stack.enter_context(mock.patch.dict(os.environ, {DESCRIBE_VARIABLE: "1"}))
        yield


def recorded(kind: str, record: Path) -> str:
    """Calls the function of a kind, and records its launches. Returns the name of the first kernel."""
    with without_a_gpu():
        for module in (OPS, LIGER):
            import_module(module)
        with capturing(record):
            KINDS[kind]()
    return capture_record.read(record).launches()[0].launch.kernel


def said(folder: Path, *words: str) -> tuple[int, str, float]:
    """Runs a command of Tilewright. Returns its exit code, what it printed, and the seconds that it took."""
    (folder / "triton.py").write_text('raise ImportError("with triton, TileGym asks for a GPU as it is imported")')
    started = time.perf_counter()
    try:
        done = subprocess.run(
            [sys.executable, "-m", "tilewright", *words], text=True, capture_output=True, timeout=SECONDS,
            env={**os.environ, "PYTHONPATH": os.pathsep.join((str(folder), *sys.path))},
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return -1, f"not done after {SECONDS} s", float(SECONDS)
    text = done.stdout if done.returncode in (0, 1) and done.stdout else done.stderr
    return done.returncode, text, time.perf_counter() - started


def row(kind: str, folder: Path, quick: bool) -> dict[str, Any]:
    """Captures one kind, writes its task and checks it."""
    record, task = folder / f"{kind}.json", folder / f"{kind}_task.py"
    found: dict[str, Any] = {"kind": kind, "kernel": recorded(kind, record), "verdict": "no task", "reason": ""}
    code, text, found["task_s"] = said(folder, "captured", "task", "1", str(task), "--record", str(record), "--force")
    if code:
        return {**found, "reason": text.rpartition("error: ")[2].strip()}
    loaded = task.read_text()
    found["workload"] = loaded.rpartition("'captured': ")[2].partition("}")[0] + "}"
    found["notes"] = loaded.split('"""')[1].split("not: right.")[1].strip()
    options = ("--quick",) if quick else ()
    code, text, found["check_s"] = said(folder, "check", str(task), "--engine", "interpreter", "--json", *options)
    try:
        checked = json.loads(text)
    except ValueError:
        return {**found, "verdict": "failed", "reason": text[-1000:]}
    return {**found, "verdict": checked["verdict"], "reason": checked.get("reason", "")}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--set-aside", action="store_true", help="only the five kinds that were set aside")
    parser.add_argument("--only", nargs="*", choices=KINDS, default=[], metavar="KIND")
    parser.add_argument("--quick", action="store_true", help="check with --quick")
    parser.add_argument("--keep", type=Path, help="folder for records and task files")
    given = parser.parse_args()
    aside = [line for line in SET_ASIDE.read_text().split("\n") if line in KINDS]
    chosen = given.only or [kind for kind in KINDS if (kind in aside) == given.set_aside]
    rows = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = given.keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        for kind in chosen:
            rows.append(row(kind, folder, given.quick))
            print(f"{kind:20} {rows[-1]['verdict']:10} {rows[-1]['reason'][:200]}", flush=True)
            tasks = sum(each["verdict"].startswith("correct") for each in rows)
            write(given.out, {**made_here(), "kinds": len(rows), "as_captured": tasks, "rows": rows})


if __name__ == "__main__":
    main()
