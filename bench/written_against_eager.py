"""Kernels that Tilewright writes from references, tuned, against torch eager on the same tensors: none may be slower.

    python bench/written_against_eager.py [--out FILE.json] [--part 1/2] [--seconds 270] [NAME …]

The operations are the named ones and the six of tests/specialists/writing/set_aside_operations.txt, each in cuTile and
Triton, on the first workload of the written task. Each is tuned; then its best configuration and torch take turns, with
a cold L2. --part takes every second operation, so that two GPUs can share the work. None begins after --seconds.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any

from common import made_here, need_gpu, paired_ratio, retime, write

from tilewright.errors import TilewrightError
from tilewright.specialists.writing.named import OPERATIONS
from tilewright.specialists.writing.writing import ReferenceSource, source_of, write_task
from tilewright.task.loading import load_task
from tilewright.tune.tune import tune
from tilewright.worker.session import Session

sys.path.append(str(Path(__file__).parent.parent))

ROUNDS = 100
LANGUAGES = ("cutile", "triton")
EAGER = {
    "residual_rms_norm": "def eager(x, residual, weight):\n    total = x + residual\n"
    "    return F.rms_norm(total, total.shape[-1:], weight, 1e-6), total",
    "gemm_bias_relu": "def eager(a, b, bias): return F.relu(torch.addmm(bias, a, b))",
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
    "gemm_bias_silu_residual": "def eager(a, b, bias, residual): return F.silu(torch.addmm(bias, a, b)) + residual",
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
    from tests.specialists.writing.test_set_aside import SOURCE

    named = {each.name for each in OPERATIONS}
    source = source_of(name.replace("_", " ")) if name in named else ReferenceSource(SOURCE, name, "a bench")
    file = folder / f"{name}_{language}.py"
    file.write_text(write_task(source, language, file.name).text + TRUSTED.format(eager=EAGER[name]))
    return file


def compared(name: str, language: str, folder: Path) -> dict[str, Any]:
    """Tunes one kernel on the first workload of its task, and times it against torch."""
    file = written(name, language, folder)
    workload = next(iter(load_task(str(file)).workloads))
    (result,) = tune(str(file), workloads=[workload], store=False).workloads
    if result.best is None:
        raise TilewrightError(result.reason)
    with Session(str(file)) as session:
        samples, torch_us = retime(session, result.workload, [result.best.configuration], ROUNDS)
    assert torch_us is not None  # it is not timed in all rounds if it is much slower
    return {
        "operation": name, "language": language, "workload": dict(result.workload.dims),
        "best": dict(result.best.configuration), "us": statistics.median(samples[0]),
        "torch_us": statistics.median(torch_us), "torch_over_ours": paired_ratio(torch_us, samples[0][: len(torch_us)]),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(EAGER))
    parser.add_argument("--out")
    parser.add_argument("--part", default="1/1")
    parser.add_argument("--seconds", type=float, default=float("inf"))
    given = parser.parse_args()
    need_gpu()
    part, parts = map(int, given.part.split("/"))
    chosen = (list(given.names) or list(EAGER))[part - 1 :: parts]
    rows, failed, ends = list[dict[str, Any]](), dict[str, str](), time.monotonic() + given.seconds
    with tempfile.TemporaryDirectory() as folder:
        for name in chosen:
            for language in LANGUAGES:
                if time.monotonic() > ends:
                    failed[f"{name} {language}"] = "no time was left"
                    continue
                try:
                    row = compared(name, language, Path(folder))
                except (TilewrightError, SystemExit, AssertionError) as error:
                    failed[f"{name} {language}"] = str(error) or traceback.format_exc()
                    print(f"{name} {language}: {failed[f'{name} {language}']}", flush=True)
                    continue
                rows.append(row)
                print(
                    f"{name:24} {language:7} {row['us']:8.1f} us, torch {row['torch_us']:8.1f} us, torch/ours "
                    f"{row['torch_over_ours']:.3f}", flush=True,
                )  # fmt: skip
                write(given.out, {**made_here(), "rounds": ROUNDS, "rows": rows, "failed": failed})
    write(given.out, {**made_here(), "rounds": ROUNDS, "rows": rows, "failed": failed})


if __name__ == "__main__":
    main()
