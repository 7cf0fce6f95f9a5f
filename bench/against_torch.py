"""The tuned examples against torch in one run: cuBLAS, SDPA, rms_norm; interleaved, cold L2, graph launch.

    python bench/against_torch.py [--out FILE.json]

Each workload is tuned first; then the best configuration and torch's implementation alone take turns.
"""

from __future__ import annotations

import argparse
import statistics

from common import EXAMPLES, made_here, need_gpu, paired_ratio, retime, write

from tilewright.task.loading import load_task, where_is
from tilewright.tune.tune import tune
from tilewright.worker.session import Session

CASES = (
    ("fmha", ("causal", "full")),
    ("matmul", ("4096", "8192")),
    ("rms_norm", ("16384x4096",)),
    ("swiglu", ("16384x4096",)),
)
ROUNDS = 150


def compared(name: str, workloads: tuple[str, ...]) -> list[dict]:
    task = load_task(str(EXAMPLES / f"{name}.py"))
    result = tune(task, workloads=workloads)
    rows = []
    with Session(where_is(task)) as session:
        for one in result.workloads:
            assert one.best is not None and one.best.measured is not None
            samples, torch_us = retime(session, one.workload, [one.best.configuration], ROUNDS)
            assert torch_us is not None
            us, theirs = statistics.median(samples[0]), statistics.median(torch_us)
            dims = one.workload.dims
            row = {
                "task": name,
                "workload": one.workload.name,
                "best": dict(one.best.configuration),
                "us": us,
                "torch_us": theirs,
                "torch_over_ours": paired_ratio(torch_us, samples[0]),
                "tflops": task.work(dims) / us / 1e6,
                "tb_per_s": task.traffic(dims) / us / 1e6,
                "speed_of_light": one.bound.speed_of_light_us / us,
                "samples_us": samples[0],
                "torch_samples_us": torch_us,
            }
            print(
                f"{name} {one.workload.name}: {us:.1f} us, torch {theirs:.1f} us, "
                f"torch/ours {row['torch_over_ours']:.3f}, "
                f"{row['tflops']:.0f} TFLOP/s, {row['tb_per_s']:.2f} TB/s, {row['best']}",
                flush=True,
            )
            rows.append(row)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out")
    given = parser.parse_args()
    need_gpu()
    rows = [row for name, workloads in CASES for row in compared(name, workloads)]
    write(given.out, {**made_here(), "rounds": ROUNDS, "rows": rows})


if __name__ == "__main__":
    main()
