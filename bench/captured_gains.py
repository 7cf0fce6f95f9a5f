"""What `optimize` gains on kernels captured from TileGym: time before and after, what was kept, tried and pruned.

    python bench/captured_gains.py --make FOLDER                                  # here or elsewhere; needs no GPU
    python bench/captured_gains.py --tasks FOLDER OUT.json [--seconds 55] [--tune 20] [--part 1/2]

The first command captures the kinds of `captured_kinds.py` and a few more, at the shapes of a model of today. It writes
their tasks and records into FOLDER. The second command runs `tilewright optimize` on each task, as a user does, in a
process of its own with an empty home and an empty compiler cache. Both need TileGym 1.5.1 on the path; FOLDER may have
been made on another machine. Without a GPU, times are predicted.

``--seconds``: no iteration begins after these seconds. The untouched code is checked and timed before they begin; the
last version is checked on hostile data and timed after them. ``--tune``: also runs `tilewright tune` for so many
seconds on kernels that start below 70 %, for the gain over the shipped code after a search of its own space. ``--part
1/2``: every second kernel, on the first GPU. OUT is written after each kernel; kernels that are in OUT are not run
again.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeAlias
from unittest import mock

import torch
from captured_kinds import KINDS, LIGER, OPS, SET_ASIDE, bf16, called, f32, recorded, said
from common import BENCH, made_here, write

from tilewright.ledger.ledger import Ledger
from tilewright.race.stats import geometric_mean

Row = dict[str, Any]
Call: TypeAlias = Callable[[], None]
UNSLOTH = "tilegym.suites.unsloth.cutile"
FLASHINFER = "tilegym.suites.flashinfer.cutile"


def f16(*shape: int) -> torch.Tensor:
    return torch.empty(shape, dtype=torch.float16)


def fp8(*shape: int) -> torch.Tensor:
    return torch.empty(shape, dtype=torch.float8_e4m3fn)


KINDS |= {
    "swiglu": lambda: called(f"{LIGER}.swiglu", "swiglu", bf16(8192, 14336), bf16(8192, 14336)),
    "layer_norm": lambda: called(f"{LIGER}.layer_norm", "layer_norm", bf16(16384, 4096), bf16(4096), bf16(4096)),
    "rms_norm": lambda: called(f"{LIGER}.rms_norm", "rms_norm", bf16(16384, 4096), bf16(4096), 1e-6),
    "softmax_chunked": lambda: called(f"{OPS}.softmax", "softmax", bf16(4096, 128256), use_chunked=True),
    "sparsemax_backward": lambda: called(
        f"{LIGER}.sparsemax", "_sparsemax_backward_ct", bf16(8192, 16384), bf16(8192, 16384), -1
    ),
    "jsd": lambda: called(f"{LIGER}.jsd", "jsd", bf16(4096, 32000), bf16(4096, 32000)),
    "unsloth_cross_entropy": lambda: called(
        f"{UNSLOTH}.cross_entropy_loss", "cross_entropy_loss", bf16(4, 1024, 32000), torch.randint(0, 32000, (4, 1024))
    ),
    "mrope": lambda: called(
        f"{LIGER}.qwen2vl_mrope", "qwen2vl_mrope", bf16(4, 32, 4096, 128), bf16(4, 8, 4096, 128),
        *(bf16(3, 4, 4096, 128) for _ in ("cos", "sin")), [16, 24, 24],
    ),
    "swiglu_backward": lambda: called(f"{UNSLOTH}.swiglu", "swiglu_bwd", *(bf16(8192, 14336) for _ in "dgu")),
    "geglu_backward": lambda: called(f"{UNSLOTH}.geglu", "geglu_exact_backward", *(bf16(8192, 14336) for _ in "dgu")),
    "unsloth_layer_norm": lambda: called(
        f"{UNSLOTH}.layernorm", "layernorm", bf16(16384, 4096), bf16(4096), bf16(4096)
    ),
    "modulated_rms_norm": lambda: called(
        f"{LIGER}.modulated_rms_norm", "modulated_rms_norm", bf16(16, 1024, 4096), bf16(4096), bf16(16, 4096),
        bf16(16, 4096),
    ),
    "weight_dequant": lambda: called(
        f"{UNSLOTH}.fp8", "weight_dequant_block", fp8(18432, 7168), f32(144, 56)
    ),
    "rope_embedding": lambda: called(
        f"{UNSLOTH}.rope_embedding", "rope_embedding", bf16(4, 4096, 32, 128), bf16(4096, 64), bf16(4096, 64)
    ),
    "fmha_decode": lambda: called(
        f"{OPS}.flash_decode", "fmha_decode", bf16(16, 32, 1, 128), *(bf16(16, 8, 8192, 128) for _ in "kv"), 0.0884
    ),
    "tvd": lambda: called(f"{LIGER}.tvd", "tvd", bf16(4096, 32000), bf16(4096, 32000)),
    "group_quant": lambda: called(
        f"{FLASHINFER}.per_token_group_quant_8bit", "per_token_group_quant_8bit", bf16(16384, 7168),
        128, dst_dtype=torch.float8_e4m3fn,
    ),
    "rope": lambda: called(
        f"{LIGER}.rope", "rope", bf16(4, 32, 4096, 128), bf16(4, 8, 4096, 128),
        *(bf16(1, 4096, 128) for _ in ("cos", "sin")),
    ),
    "attention_sink_decode": lambda: called(
        f"{OPS}.attention_sink_decode", "attention_sink_decode", bf16(16, 1, 8, 8, 64),
        *(bf16(16, 8192, 8, 64) for _ in "kv"), bf16(64), start_q=torch.tensor([8191]),
    ),
    "moe_align_block_size": lambda: called(
        f"{OPS}.moe_align_block", "moe_align_block_size", torch.randint(0, 128, (4096, 8), dtype=torch.int32), 128, 128
    ),
    "llama4_rope": lambda: called(
        f"{LIGER}.llama4_rope", "llama4_rope", bf16(4, 4096, 40, 128), bf16(4, 4096, 8, 128), f32(4096, 64, 2)
    ),
    "multi_token_attention": lambda: called(
        f"{LIGER}.multi_token_attention", "multi_token_attention", bf16(1, 32, 2048, 2048), bf16(32, 1, 3, 3),
        padding=1, groups=32,
    ),
    "recurrent_gated_delta_rule": lambda: called(
        f"{OPS}.recurrent_gated_delta_rule", "recurrent_gated_delta_rule", bf16(64, 1, 16, 128), bf16(64, 1, 16, 128),
        bf16(64, 1, 32, 128), f32(64, 1, 32), bf16(64, 1, 32), f32(64, 32, 128, 128), True, True,
    ),
    "rope_quantize_fp8": lambda: called(
        f"{FLASHINFER}.rope_quantize_fp8", "rope_quantize_fp8", bf16(4096, 128, 64), bf16(4096, 64),
        bf16(4096, 128, 512), bf16(4096, 512), f32(8192, 64), torch.arange(4096, dtype=torch.int32), is_neox=False,
    ),
    "decode_attention_kv_paged": lambda: called(
        f"{FLASHINFER}.fmha_decode_bsr", "decode_attention_kv_paged", bf16(64, 32, 128),
        *(bf16(8192, 64, 8, 128) for _ in "kv"), torch.full((64,), 8192, dtype=torch.int32),
        torch.randperm(8192, dtype=torch.int32).reshape(64, 128), 0.0884, 1.0,
    ),
    "silu_and_mul": lambda: called(f"{OPS}.silu_and_mul", "silu_and_mul", bf16(8192, 28672)),
    "mamba2_chunk_forward": lambda: called(
        f"{OPS}.mamba2", "mamba2_chunk_forward", bf16(2, 4096, 128, 64), f32(128),
        *(bf16(2, 4096, 8, 128) for _ in "bc"), f32(128), f32(2, 4096, 128), f32(2, 128, 64, 128),
    ),
    "grouped_gemm_cutile": lambda: called(
        f"{UNSLOTH}.grouped_gemm", "grouped_gemm_cutile", bf16(32768, 2048), bf16(128, 1536, 2048),
        torch.full((128,), 256, dtype=torch.int32), 8,
    ),
    "relu_squared": lambda: called(f"{LIGER}.relu_squared", "relu_squared", bf16(16384, 16384)),
    "act_quant": lambda: called(f"{UNSLOTH}.fp8", "act_quant", bf16(16384, 7168)),
    "w8a8_block_fp8_matmul": lambda: called(
        f"{OPS}.fp8_quantization_matmul", "w8a8_block_fp8_matmul", fp8(4096, 7168), fp8(4096, 7168), f32(4096, 56),
        f32(32, 56), [128, 128], output_dtype=torch.bfloat16,
    ),
    "gelu": lambda: called(f"{OPS}.activation.gelu", "gelu", bf16(16384, 8192)),
    "mhc_sinkhorn": lambda: called(f"{OPS}.experimental.mhc", "mhc_sinkhorn", f32(65536, 24), 4),
    "grpo_loss": lambda: called(
        f"{LIGER}.grpo_loss", "grpo_loss", bf16(4, 1025, 32000), f32(4, 1024), None,
        torch.randint(0, 32000, (4, 1024)), f32(4), None, temperature=1.0, beta=0.0, reduce=False,
    ),
    "ragged_bmm": lambda: called(
        f"{FLASHINFER}.gemm.ragged_bmm", "ragged_bmm", bf16(8192, 4096), bf16(16, 4096, 4096),
        torch.arange(0, 8193, 512, dtype=torch.int32), 512,
    ),
    "fused_neighborhood_attention": lambda: called(
        f"{LIGER}.fused_neighborhood_attention", "fused_neighborhood_attention",
        *(bf16(4, 32, 4096, 128) for _ in "qkv"),
    ),
}  # fmt: skip


def of_rows(name: str, *sizes: tuple[int, int]) -> None:
    """Adds an operation on rows of `tilegym/operations.py` with each of its workloads, as its wrapper launches it."""
    calls = {
        "layer_norm": lambda m, n: (bf16(m, n), 1, 2, bf16(n), bf16(n), 1e-5),
        "rms_norm": lambda m, n: (bf16(m, n), None, bf16(n), 1e-5, None, "static_persistent"),
        "softmax": lambda m, n: (bf16(m, n),),
    }  # fmt: skip
    for m, n in sizes:
        KINDS[f"operation_{name}_{m}x{n}"] = lambda m=m, n=n: called(f"{OPS}.{name}", name, *calls[name](m, n))  # type: ignore[misc]


of_rows("layer_norm", (16384, 4096), (8192, 4096), (16384, 3072))
of_rows("rms_norm", (16384, 4096), (32768, 2048), (8192, 8192))
of_rows("softmax", (16384, 4096), (32768, 2048), (8192, 8192))


def searched(operation: str, module: str, listed: str, **calls: Call) -> None:
    """Adds an operation of `tilegym/operations.py` that searches a list, with each of its workloads. Without a GPU it
    takes the first of its list; so its list is what its search took on an H200 (`tilegym/shipped.json`)."""
    picks = json.loads((BENCH / "tilegym" / "shipped.json").read_text())["operations"][operation]

    def recorded_with(workload: str, call: Call) -> None:
        pick = SimpleNamespace(**picks[workload]["pick"])
        with mock.patch.object(import_module(module), listed, return_value=[pick]):
            call()

    for workload, call in calls.items():
        KINDS[f"operation_{operation}_{workload}"] = partial(recorded_with, workload, call)


def product(m: int, n: int, k: int) -> Call:
    return lambda: called(f"{OPS}.matmul", "matmul", bf16(m, k), bf16(k, n))


def gated(m: int, n: int, k: int) -> Call:
    inputs = (f16(m, k), f16(n, k), f16(n, k), f16(64, n))
    return lambda: called(f"{OPS}.linear_gluact_linear", "linear_gluact_linear", *inputs, "silu")


searched(
    "matmul", f"{OPS}.matmul", "_matmul_autotune_configs",
    **{"4096": product(4096, 4096, 4096), "8192": product(8192, 8192, 8192), "tall": product(16384, 1024, 4096)},
)  # fmt: skip
searched(
    "linear_gluact", f"{OPS}.linear_gluact_linear", "_linear_gluact_autotune_configs",
    **{"8192x4096x4096": gated(8192, 4096, 4096), "4096x14336x4096": gated(4096, 14336, 4096)},
)  # fmt: skip
SEEN = ("group_norm", "attention_sink", "group_quant", "fmha_decode", "relu_squared")
"""Kinds that were set aside until something was changed for them; the file with the set-aside kinds says what."""
SLOW = 0.70
"""Kernels that start below this share of the speed of light are counted by themselves."""
REST = 240.0
"""Seconds for the start, the checks and the last iteration, in addition to the seconds in which iterations begin."""
PRUNED = ("screened", "duplicate", "failed")


def make(kinds: Sequence[str], folder: Path) -> None:
    """Writes record and task of each kind. A kind that does not become a task is named, and left out."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as stubs:
        for kind in kinds:
            record, task = folder / f"{kind}.json", folder / f"{kind}_task.py"
            kernel = recorded(kind, record)
            words = ("captured", "task", "1", str(task), "--record", str(record), "--force")
            code, text, seconds = said(Path(stubs), *words)
            note = text.rpartition("error: ")[2].strip() if code else f"a task in {seconds:.0f} s"
            print(f"{kind:20} {kernel}: {note[:200]}", flush=True)


def run_one(kind: str, folder: Path, given: argparse.Namespace) -> Row:
    """Runs `optimize`, and `tune` if asked for, on one task. Returns its row; an error is a row, too."""
    share, of = given.part
    with tempfile.TemporaryDirectory(prefix="tilewright-") as made:
        home = Path(made)
        environment = {**os.environ, "TILEWRIGHT_HOME": f"{home}/home", "CUDA_TILE_CACHE_DIR": f"{home}/cache"}
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
        if of > 1:
            environment.setdefault("CUDA_VISIBLE_DEVICES", str(share - 1))
        task = str(shutil.copy(folder / f"{kind}_task.py", home))
        jobs = str(max(1, len(os.sched_getaffinity(0)) // of))
        words = ("optimize", task, "--stop-after", f"{given.seconds / 60:.4f}", "--fresh", "--json", "--jobs", jobs)
        words += ("--iterations", str(given.iterations))
        row: Row = {"kind": kind, "set_aside": kind in set_aside(), **answer(words, environment, given.seconds + REST)}
        if "result" in row:
            result = row.pop("result")
            row |= gained(result, home / "home")
            row |= {"measured": result["measured"], "stop_reason": result["stop_reason"]}
        if given.tune and row.get("share_before", 0.0) < SLOW:
            words = ("tune", task, "--seconds", str(given.tune), "--json", "--jobs", jobs)
            tuned = answer(words, environment, given.tune + REST)
            row |= {"tune": of_tune(tuned.pop("result")) if "result" in tuned else tuned}
            over_shipped = row["tune"].get("gain")  # of two medians, as the dividend: a race's ratio may differ by 3 %
            if over_shipped and "us" in row:
                row["gain_over_tuned"] = row["shipped_us"] / row["us"] / over_shipped
    return row


def answer(words: Sequence[str], environment: Mapping[str, str], limit: float) -> Row:
    """Runs a command with ``--json``. Returns ``result`` and ``seconds``, or ``error``."""
    started = time.perf_counter()
    command = [sys.executable, "-m", "tilewright", *words]
    process = subprocess.Popen(command, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        out, errors = process.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        process.terminate()
        out, errors = process.communicate()
        return {"error": f"not done after {limit:.0f} s", "seconds": time.perf_counter() - started}
    seconds = time.perf_counter() - started
    try:
        result = json.loads(out)
    except ValueError:
        return {"error": f"exit {process.returncode}: {errors[-2000:]}", "seconds": seconds}
    if "error" in result:
        return {"error": result["error"]["message"], "seconds": seconds}
    return {"result": result, "seconds": seconds}


def gained(result: Mapping[str, Any], home: Path) -> Row:
    """Returns the figures of a run: the captured workload is its only one."""
    [before], [after] = result["baseline"].values(), result["final"].values()
    shipped_us, us = time_of(before), time_of(after)
    against = after["against_baseline"]
    low, high = (1 / against["high"], 1 / against["low"]) if against else (None, None)
    light = before["speed_of_light_us"]
    return {
        "shipped_us": shipped_us, "us": us, "gain": result["speedup"], "interval": [low, high],
        "share_before": light / shipped_us, "share_after": light / us,
        "kept": [
            f"{row['entry']} {row['value']}"
            for row in result["iterations"][1:]
            if row["status"] == "keep" and row["optimization"] in result["kept"]
        ],
        "to_confirm": [f"{row['optimization']}: {row['speedup']:.2f}" for row in result["to_confirm"]],
        "tried": tried(result["run"], home), "diagnosis_before": before["diagnosis"],
        "diagnosis_after": after["diagnosis"],
    }  # fmt: skip


def time_of(metrics: Mapping[str, Any]) -> float:
    return float(metrics["us"] or metrics["predicted_us"])


def tried(run: str, home: Path) -> list[Row]:
    """Returns the iterations of a run, each with its versions and what became of them, from the ledger."""
    with Ledger(home / "ledger.db") as ledger:
        iterations = ledger.iterations(run)
    return [
        {
            "entry": each.entry, "site": each.site, "value": each.value, "status": each.status, "reason": each.reason,
            "seconds": each.seconds, "pruned": sum(attempt.status in PRUNED for attempt in each.attempts),
            "versions": [f"{attempt.value}: {attempt.status}: {attempt.reason}"[:240] for attempt in each.attempts],
            "ruled_out": [text[:240] for text in each.ruled_out],
        }
        for each in iterations[1:]
    ]  # fmt: skip


def of_tune(result: Mapping[str, Any]) -> Row:
    """Returns the gain of the best configuration over the shipped one."""
    [found] = result["workloads"]
    times = {json.dumps(each["config"]): each["measured_us"] or each["predicted_us"] for each in found["candidates"]}
    shipped = times.get(json.dumps(found["shipped"]))
    best = found["best"] and (found["best"]["measured_us"] or found["best"]["predicted_us"])
    gain = shipped / best if shipped and best else None
    return {"gain": gain, "best": found["best"] and found["best"]["config"], "shipped_us": shipped, "best_us": best}


def summary(rows: Sequence[Row]) -> Row:
    """Returns the geometric means of the gains over the shipped code."""
    done = [row for row in rows if row.get("gain")]
    slow = [row for row in done if row["share_before"] < SLOW]
    over_tuned = [row["gain_over_tuned"] for row in slow if row.get("gain_over_tuned")]
    return {
        "kernels": len(rows), "failed": [row["kind"] for row in rows if "error" in row], "below_70_percent": len(slow),
        "gain": geometric_mean(row["gain"] for row in done),
        "gain_below_70_percent": geometric_mean(row["gain"] for row in slow),
        "gain_below_70_percent_over_tuned": geometric_mean(over_tuned),
        "slower": [row["kind"] for row in done if (row["interval"][0] or row["gain"]) < 1 and row["gain"] < 0.995],
    }  # fmt: skip


def set_aside() -> list[str]:
    return [line for line in SET_ASIDE.read_text().split("\n") if line in KINDS and line not in SEEN]


def part_of(text: str) -> tuple[int, int]:
    part, of = (int(number) for number in text.split("/"))
    if not 1 <= part <= of:
        raise ValueError
    return part, of


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, nargs="?")
    parser.add_argument("--make", type=Path, metavar="FOLDER", help="only write the tasks into this folder")
    parser.add_argument("--tasks", type=Path, metavar="FOLDER", help="the folder that --make wrote")
    parser.add_argument("--only", nargs="*", choices=KINDS, default=[], metavar="KIND")
    parser.add_argument("--set-aside", action="store_true", help="only the kinds that were set aside")
    parser.add_argument("--all", action="store_true", help="also the kinds that were set aside")
    parser.add_argument("--part", type=part_of, default=(1, 1), metavar="N/M", help="every M-th kernel, from the N-th")
    parser.add_argument("--seconds", type=float, default=55.0, help="no iteration begins after these seconds")
    parser.add_argument("--iterations", type=int, default=25)
    parser.add_argument("--tune", type=float, default=0.0, help="also tune the shipped code for so many seconds")
    given = parser.parse_args()
    aside = set_aside()
    chosen = given.only or [kind for kind in KINDS if given.all or (kind in aside) == given.set_aside]
    if given.make:
        make(chosen, given.make)
        return
    if given.tasks is None or given.out is None:
        parser.error("give --make FOLDER, or --tasks FOLDER and the file OUT.json")
    there = [kind for kind in chosen if (given.tasks / f"{kind}_task.py").is_file()]
    share, of = given.part
    rows: list[Row] = json.loads(given.out.read_text())["rows"] if given.out.is_file() else []
    done = {row["kind"] for row in rows}
    for kind in [kind for kind in there[share - 1 :: of] if kind not in done]:
        rows.append(run_one(kind, given.tasks, given))
        write(str(given.out), {**made_here(), **summary(rows), "rows": rows})
        print(line(rows[-1]), flush=True)
    print(json.dumps(summary(rows)))


def line(row: Row) -> str:
    if "error" in row:
        return f"{row['kind']:20} {row['error'][-300:]} ({row['seconds']:.0f} s)"
    low, high = row["interval"]
    interval = f" [{low:.3f}, {high:.3f}]" if low and not math.isnan(low) else ""
    shares = f"{row['share_before']:.0%} → {row['share_after']:.0%}"
    tuned = f", {row['gain_over_tuned']:.3f}× over tuned" if row.get("gain_over_tuned") else ""
    kept = "; ".join(row["kept"]) or "nothing kept"
    times = f"{row['shipped_us']:.1f} → {row['us']:.1f} µs, {shares}"
    return f"{row['kind']:20} {row['gain']:.3f}×{interval}{tuned}: {times}; {kept} ({row['seconds']:.0f} s)"


if __name__ == "__main__":
    main()
