"""Kernels that Tilewright writes from references, tuned, against torch eager on the same tensors: none may be slower.

    python bench/written_against_eager.py [--out FILE.json] [--only NAME,NAME] [--part 1/2] [--seconds 260]

The operations are the named ones and the six of tests/specialists/writing/set_aside_operations.txt, each in cuTile and
Triton, on the first workload of the written task: products of matrices first. Each is tuned, in 5 to 10 seconds on 16
cores; then its best configuration and torch take turns, with a cold L2. The file is written after each kernel. If it
exists, its kernels are not measured again, unless --only names them or their text has changed; a row without
"kernel", of an earlier version, counts as unchanged. --part takes every second operation, so that two GPUs can share
the work. None begins after --seconds.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import statistics
import sys
import tempfile
import time
import traceback
from collections.abc import Mapping, Sequence
from datetime import date
from itertools import product
from pathlib import Path
from typing import Any

from common import made_here, need_gpu, paired_ratio, retime, write

from tilewright.errors import TilewrightError
from tilewright.specialists.writing.attempting import RACED
from tilewright.specialists.writing.named import OPERATIONS
from tilewright.specialists.writing.writing import ReferenceSource, source_of, write_task
from tilewright.task.loading import load_task
from tilewright.tune.tune import tune
from tilewright.worker.session import Session

sys.path.append(str(Path(__file__).parent.parent))

ROUNDS = 100
TUNING_SECONDS = 20.0
"""No compiler begins after this. What is compiled until then is raced."""
LANGUAGES = ("cutile", "triton")
EAGER = {
    "gemm_bias_relu": "def eager(a, b, bias): return F.relu(torch.addmm(bias, a, b))",
    "gemm_bias_silu_residual": "def eager(a, b, bias, residual): return F.silu(torch.addmm(bias, a, b)) + residual",
    "residual_rms_norm": "def eager(x, residual, weight):\n    total = x + residual\n"
    "    return F.rms_norm(total, total.shape[-1:], weight, 1e-6), total",
    "bias_gelu": "def eager(x, bias): return F.gelu(x + bias, approximate='tanh')",
    "swiglu": "def eager(gate, up): return F.silu(gate) * up",
    "silu_mul": "def eager(x, factor): return F.silu(x) * factor",
    "gelu": "def eager(x): return F.gelu(x, approximate='tanh')",
    "cross_entropy": "def eager(logits, labels): return F.cross_entropy(logits, labels, reduction='none')",
    "logsumexp": "def eager(x): return torch.logsumexp(x, -1)",
    "softmax": "def eager(x): return F.softmax(x, -1)",
    "rms_norm": "def eager(x, weight): return F.rms_norm(x, x.shape[-1:], weight, 1e-6)",
    "layer_norm": "def eager(x, weight, bias): return F.layer_norm(x, x.shape[-1:], weight, bias, 1e-5)",
    "residual_add": "def eager(x, bias, residual): return x + bias + residual",
    "mish": "def eager(x): return F.mish(x)",
    "log_softmax": "def eager(x): return F.log_softmax(x, -1)",
    "geglu": "def eager(gate, up): return F.gelu(gate, approximate='tanh') * up",
    "l2_normalise": "def eager(x): return F.normalize(x, dim=-1, eps=1e-6)",
    "masked_softmax": "def eager(x, mask): return F.softmax((x / 8).masked_fill(~mask, -1e9), -1)",
}
"""What a user of torch writes for each operation."""
TRUSTED = """

import dataclasses

import torch
import torch.nn.functional as F

{eager}


task = dataclasses.replace(task, trusted=eager)
"""


def written(name: str, language: str, folder: Path) -> Path:
    """Writes the kernel and its task, with torch as the trusted implementation. Returns the file."""
    from tests.specialists.writing.set_aside import SOURCE

    named = {each.name for each in OPERATIONS}
    source = source_of(name.replace("_", " ")) if name in named else ReferenceSource(SOURCE, name, "a bench")
    file = folder / f"{name}_{language}.py"
    file.write_text(write_task(source, language, file.name).text + TRUSTED.format(eager=EAGER[name]))
    return file


def digest(file: Path) -> str:
    """Returns a short hash of a written kernel and its task."""
    return hashlib.sha256(file.read_bytes()).hexdigest()[:12]


def held(out: str | None, machine: Mapping[str, Any], only: str) -> list[dict[str, Any]]:
    """Returns the rows of an earlier run that stay: their kernels are unchanged, and ``only`` does not name them.

    Exits with one line if the file cannot be read as a record, or was made on another GPU.
    """
    if out is None or not Path(out).exists():
        return []
    try:
        record = json.loads(Path(out).read_text())
        gpu, rows = record["machine"]["gpu"], record["rows"]
        found = {(each["operation"], each["language"]): each for each in rows}
    except (OSError, ValueError, KeyError, TypeError) as error:
        sys.exit(f"{out} is no record of this bench ({error!r}); give --out a new file")
    if gpu != machine["gpu"]:
        sys.exit(f"{out} was made on '{gpu}', and this is '{machine['gpu']}'; give --out a new file")
    with tempfile.TemporaryDirectory() as folder:
        return [
            row
            for (name, language), row in found.items()
            if name not in names_in(only)
            and name in EAGER
            and row.get("kernel", (text := digest(written(name, language, Path(folder))))) == text
        ]


def compared(name: str, language: str, folder: Path) -> dict[str, Any]:
    """Tunes one kernel on the first workload of its task, and times it against torch."""
    begun, file = time.monotonic(), written(name, language, folder)
    workload = next(iter(load_task(str(file)).workloads))
    with Session(str(file)) as session:  # its process loads torch while the compilers run
        tuned = tune(str(file), workloads=[workload], store=False, top=RACED, seconds=TUNING_SECONDS)
        (result,) = tuned.workloads
        if result.best is None:
            raise TilewrightError(result.reason)
        samples, torch_us = retime(session, result.workload, [result.best.configuration], ROUNDS)
    assert torch_us is not None  # it is not timed in all rounds if it is much slower
    return {
        "operation": name, "language": language, "workload": dict(result.workload.dims),
        "best": dict(result.best.configuration), "us": statistics.median(samples[0]),
        "torch_us": statistics.median(torch_us), "torch_over_ours": paired_ratio(torch_us, samples[0][: len(torch_us)]),
        "raced": sum(each.measured is not None for each in result.candidates), "kernel": digest(file),
        "date": str(date.today()), "seconds": time.monotonic() - begun,
    }  # fmt: skip


def attempted(name: str, language: str, folder: Path) -> dict[str, Any] | str:
    """Returns the row of one kernel, or the reason why there is none. Only Ctrl-C ends the others, too."""
    try:
        return compared(name, language, folder)
    except (SystemExit, Exception) as error:
        return str(error) or traceback.format_exc()


def run(names: Sequence[str], seconds: float, out: str | None, only: str = "") -> dict[str, Any]:
    """Compares the operations in both languages. Writes the record after each kernel.

    seconds: no kernel begins after them.
    only: the names whose kernels are measured again, although ``out`` has them, with commas.
    """
    here = made_here()
    record: dict[str, Any] = {**here, "rounds": ROUNDS, "rows": held(out, here["machine"], only), "failed": {}}
    done, ends = {(each["operation"], each["language"]) for each in record["rows"]}, time.monotonic() + seconds
    with tempfile.TemporaryDirectory() as folder:
        for name, language in product(names, LANGUAGES):
            if (name, language) in done:
                print(f"{name} {language}: measured before, in {out}", flush=True)
                continue
            row = "no time was left" if time.monotonic() > ends else attempted(name, language, Path(folder))
            if isinstance(row, str):
                record["failed"][f"{name} {language}"] = row
                print(f"{name} {language}: {row}", flush=True)
            else:
                record["rows"].append(row)
                print(
                    f"{name:24} {language:7} {row['us']:8.1f} us, torch {row['torch_us']:8.1f} us, torch/ours "
                    f"{row['torch_over_ours']:.3f}, in {row['seconds']:.1f} s", flush=True,
                )  # fmt: skip
            write(out, record)
    return record


def names_in(only: str) -> list[str]:
    return [each.strip() for each in only.split(",") if each.strip()]


def chosen(only: str, part: str) -> list[str]:
    """Returns the names of the operations. ``only``: names with commas, or "" for all. ``part``: such as ``1/2``."""
    names = names_in(only) or list(EAGER)
    if unknown := [each for each in names if each not in EAGER]:
        sys.exit(f"unknown operation '{unknown[0]}'; known: {', '.join(EAGER)}")
    number, parts = map(int, part.split("/"))
    return names[number - 1 :: parts]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out")
    parser.add_argument("--only", default="", metavar="NAME,NAME", help=", ".join(EAGER))
    parser.add_argument("--part", default="1/1")
    parser.add_argument("--seconds", type=float, default=float("inf"))
    given = parser.parse_args()
    names = chosen(given.only, given.part)
    need_gpu()
    run(names, given.seconds, given.out, given.only)


if __name__ == "__main__":
    main()
