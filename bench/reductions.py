"""Which kernels `variance`, `split_reduction`, `scan` and `comparison` accept that were not written for them, and what
is counted then.

    python bench/reductions.py [--entry ENTRY] [--set-aside FOLDER] [--out FILE.json]

Each kernel is changed, checked by the interpreter against its float64 reference (on hostile data, too), compiled for an
H200, and counted: bytes of all loads and stores, and the predicted time. Nothing is measured. Needs TileGym 1.5.1
(`pip install --no-deps tilegym==1.5.1`), whose kernels are read from its files. ``reductions_set_aside.txt`` names the
kernels that the changes were not made for. Those of other projects are no part of this one: FOLDER holds a task
file for each, called ``variance_NAME.py``, ``scan_NAME.py`` and so on.
"""

from __future__ import annotations

import argparse
import importlib.util
import math
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from common import BENCH, lines_of, made_here, write

from tilewright.compile.compile import Unit, compile_all, launch_of
from tilewright.compile.screen import work_of
from tilewright.hardware.architectures import board
from tilewright.hardware.prediction import predict
from tilewright.inspect.work import count
from tilewright.playbook.analyses.dataflow import names_assigned, names_read
from tilewright.playbook.base import Entry, KernelFacts
from tilewright.playbook.entries import comparison, scan, split_reduction, variance
from tilewright.records import MachineCode
from tilewright.source.syntax import Line, Source
from tilewright.task.loading import load_task
from tilewright.task.task import Task
from tilewright.verify.check import check

H200 = board("H200")
ENTRIES: Mapping[str, Entry] = {
    module.ENTRY.about.id: module.ENTRY for module in (variance, split_reduction, scan, comparison)
}
SECONDS = 60.0  # for the check of one changed kernel

NORM = """
def reference(x, weight, bias):
    x = x.reshape(-1, {columns})
    mean, rstd = x.mean(axis=1), 1 / np.sqrt(x.var(axis=1) + 1e-5)
    return ((x - mean[:, None]) * rstd[:, None] * weight + bias).reshape({shape}), mean, rstd


task = tw.Task(
    name="norm",
    tensors={{
        "x": tw.Tensor({declared}, "bfloat16"), "weight": tw.Tensor(("N",), "float32"),
        "bias": tw.Tensor(("N",), "float32"), "y": tw.Output({declared}, "bfloat16"),
        "mean": tw.Output({of_rows}, "float32"), "rstd": tw.Output({of_rows}, "float32"),
    }},
    reference=reference, flops=lambda M, N: 8 * M * N, independent={independent}, serves=lambda M, N: M * N < 2**31,
    launch=lambda x, y, weight, bias, mean, rstd, M, N, config: tw.Launch({kernel}, {grid}, ({args})),
    space=tw.Space(constants={{"TILE_N": (1024,)}}, shipped={{"TILE_N": 1024}}),
    workloads={{"rows": {{"M": 4096, "N": 16384}}}},
)
"""
LEGACY = NORM.format(
    columns="x.shape[1]", shape="-1, x.shape[1]", declared='("M", "N")', of_rows='("M",)', grid="(M,)",
    independent='("M",)', kernel="_layer_norm_fwd_kernel",
    args="x, y, weight, bias, mean, rstd, N, 1e-5, 0.0, config.TILE_N",
)  # fmt: skip
FLAT = NORM.format(
    columns="len(weight)", shape="-1", declared='("M * N",)', of_rows='("M",)', grid="(M, 1)", independent="()",
    kernel="_layer_norm_fwd_kernel_gather",
    args="x, y, weight, bias, mean, rstd, N, 1, 1, N, 1, 1e-5, 0.0, config.TILE_N, 1, M * N, M",
)  # fmt: skip
CHANNELS = """
def reference(x, weight, bias):
    mean, rstd = x.mean(axis=1), 1 / np.sqrt(x.var(axis=1) + 1e-5)
    normed = (x - mean[:, None]) * rstd[:, None]
    return normed * weight[None, :, None] + bias[None, :, None], mean, rstd


task = tw.Task(
    name="channels",
    tensors={
        "x": tw.Tensor(("B", "N", "W"), "bfloat16"), "weight": tw.Tensor(("N",), "float32"),
        "bias": tw.Tensor(("N",), "float32"), "y": tw.Output(("B", "N", "W"), "bfloat16"),
        "mean": tw.Output(("B", "W"), "float32"), "rstd": tw.Output(("B", "W"), "float32"),
    },
    reference=reference, flops=lambda B, N, W: 8 * B * N * W, independent=("B", "W"),
    launch=lambda x, y, weight, bias, mean, rstd, B, N, W, config: tw.Launch(
        _layer_norm_fwd_kernel, (B, -(-W // 64)), (x, y, weight, bias, mean, rstd, ARGS),
    ),
    space=tw.Space(constants={"TILE_N": (64,)}, shipped={"TILE_N": 64}),
    workloads={"images": {"B": 32, "N": 2048, "W": 256}},
)
"""
BATCHED = """
task = tw.Task(
    name="batched",
    tensors={
        "a": tw.Tensor(("B", "M", "K"), "bfloat16"), "b": tw.Tensor(("B", "K", "N"), "bfloat16"),
        "c": tw.Output(("B", "M", "N"), "bfloat16"),
    },
    reference=lambda a, b: a @ b, flops=lambda B, M, N, K: 2 * B * M * N * K, independent=("B", "M", "N"),
    serves=lambda M, N: min(M, N) > 1 or M * N % 8 == 0,
    launch=lambda a, b, c, B, M, N, config: tw.Launch(
        _bmm_kernel, (-(-M // config.TILE_M), -(-N // config.TILE_N), B), (a, b, c, config.TILE_M, config.TILE_N, 64)
    ),
    space=tw.Space(constants={"TILE_M": (64,), "TILE_N": (64,)}, shipped={"TILE_M": 64, "TILE_N": 64}),
    workloads={"few": {"B": 4, "M": 128, "N": 128, "K": 16384}},
)
"""
GATED = """
def reference(x, act, noact):
    act, noact = x @ act.T, x @ noact.T
    return np.maximum(act, 0), noact, np.maximum(act, 0) * noact


task = tw.Task(
    name="gated",
    tensors={
        "x": tw.Tensor(("M", "K"), "float16"), "act": tw.Tensor(("N", "K"), "float16"),
        "noact": tw.Tensor(("N", "K"), "float16"), "act_out": tw.Output(("M", "N"), "float16"),
        "noact_out": tw.Output(("M", "N"), "float16"), "out": tw.Output(("M", "N"), "float16"),
    },
    reference=reference, flops=lambda M, N, K: 4 * M * N * K, independent=("M", "N"),
    serves=lambda M, N, K: K % 64 == 0 and M % 64 == 0 and N % 64 == 0,
    launch=lambda x, act, noact, act_out, noact_out, out, M, N, K, config: tw.Launch(
        _linear_gluact_fwd_kernel, (-(-M // config.TILE_M) * -(-N // config.TILE_N), 1, 1),
        (x, act, noact, act_out, noact_out, out, M, N, K, config.TILE_M, config.TILE_N, 64, 8, ACT_RELU),
    ),
    space=tw.Space(constants={"TILE_M": (64,), "TILE_N": (64,)}, shipped={"TILE_M": 64, "TILE_N": 64}),
    workloads={"few": {"M": 128, "N": 1024, "K": 8192}},
)
"""

SPARSEMAX = """
def reference(x, z):
    total, count = np.cumsum(z, axis=1), np.arange(1, z.shape[1] + 1)
    support = z > (total - 1) / count
    tau = (np.where(support, z, 0).sum(axis=1) - 1) / np.maximum(support.sum(axis=1), 1)
    return np.maximum(x - tau[:, None], 0)


task = tw.Task(
    name="sparsemax",
    tensors={
        "y": tw.Output(("M", "N"), "bfloat16"), "x": tw.Tensor(("M", "N"), "bfloat16"),
        "z": tw.Tensor(("M", "N"), "float32"),
    },
    reference=reference, flops=lambda M, N: 8 * M * N, independent=("M",),
    launch=lambda y, x, z, M, N: tw.Launch(
        _sparsemax_fwd_kernel, (M, 1, 1), (y, x, z, N, 1 << (N - 1).bit_length())
    ),
    space=tw.Space(constants={}, hints={"occupancy": (2, 4)}, shipped={"occupancy": 4}),
    workloads={"rows": {"M": 8192, "N": 4096}},
)
"""


def of_tilegym(module: str, kernel: str, task: str) -> str:
    """Returns a task file with a kernel of TileGym, the functions that it calls, and the constants of their file."""
    spec = importlib.util.find_spec("tilegym")
    assert spec is not None and spec.submodule_search_locations, "TileGym 1.5.1 is not installed"
    path = Path(spec.submodule_search_locations[0], f"{module}.py")
    source = Source(path.name, path.read_text())
    text, known = (
        "import cuda.tile as ct\nimport math\nimport numpy as np\n\nimport tilewright as tw\n\n",
        {"ct", "math"},
    )
    for line in source.module.body:
        if isinstance(line, Line) and (names := names_assigned(line)) and names_read(line) <= known | {"float", "int"}:
            text, known = text + source.code(line), known | set(names)
    called = source.called_by([kernel])
    return text + "".join(source.code(source.functions[name]) for name in source.functions if name in called) + task


def in_view() -> Iterator[tuple[str, str, str]]:
    """Yields entry, name and text of the kernels for which the entries may be changed."""
    yield "variance", "planted/traffic", (BENCH / "planted/traffic.py").read_text()
    ops = "ops/cutile/"
    yield (
        "variance",
        "TileGym layer_norm_legacy",
        of_tilegym(f"{ops}layer_norm_legacy", "_layer_norm_fwd_kernel", LEGACY),
    )
    yield "variance", "TileGym layer_norm, rows", of_tilegym(f"{ops}layer_norm", "_layer_norm_fwd_kernel_gather", FLAT)
    task = CHANNELS.replace("ARGS", "N, W, 1e-5, 0.0, config.TILE_N, 64")
    yield "variance", "TileGym layer_norm, channels", of_tilegym(f"{ops}layer_norm", "_layer_norm_fwd_kernel", task)
    yield "split_reduction", "planted/too_few_blocks", (BENCH / "planted/too_few_blocks.py").read_text()
    yield "split_reduction", "aside/column_sum", (BENCH / "aside/column_sum.py").read_text()
    yield "split_reduction", "TileGym bmm", of_tilegym(f"{ops}bmm", "_bmm_kernel", BATCHED)
    gated = of_tilegym(f"{ops}linear_gluact_linear", "_linear_gluact_fwd_kernel", GATED)
    yield "split_reduction", "TileGym linear_gluact", gated
    sparsemax = of_tilegym("suites/liger/cutile/sparsemax", "_sparsemax_fwd_kernel", SPARSEMAX)
    yield from ((entry, "TileGym sparsemax", sparsemax) for entry in ("scan", "comparison"))


def set_aside(folder: Path) -> Iterator[tuple[str, str, str]]:
    for line in lines_of(BENCH / "reductions_set_aside.txt"):
        entry, *where = line.split()
        if len(where) == 1:
            text = (BENCH.parent / where[0]).read_text()
            yield entry, where[0].removeprefix("bench/").removesuffix(".py"), text
    for path in sorted(folder.glob("*.py")):
        entry = next(entry for entry in ENTRIES if path.stem.startswith(f"{entry}_"))
        yield entry, path.stem.removeprefix(f"{entry}_"), path.read_text()


def row_of(entry: str, name: str, text: str, folder: Path) -> dict[str, Any]:
    """Changes and checks one kernel. ``speedup`` is predicted for the first workload."""
    change, task = ENTRIES[entry], loaded(text, folder)
    source, facts = Source(f"{name}.py", text), KernelFacts(
        task, H200, task.selected(None), {}, {}, lambda workload: count(task, workload, H200)
    )  # fmt: skip
    sites = change.sites(source, facts)
    if not sites:
        return {"entry": entry, "kernel": name, "applied": False, "why": change.why_not(source, facts)}
    new = loaded(change.change(source, sites[0], sites[0].values[0]), folder)
    [verdict] = check(new, engine="interpreter", seconds=SECONDS)
    before, after = counted(task), counted(new)
    return {
        "entry": entry, "kernel": name, "applied": True, "value": sites[0].values[0],
        "verified": verdict.verdict.startswith("correct"), "verdict": f"{verdict.verdict}: {verdict.reason}",
        "before": before, "after": after, "speedup": before["us"] / after["us"],
    }  # fmt: skip


def loaded(text: str, folder: Path) -> Task:
    path = folder / f"task_{len(list(folder.iterdir()))}.py"
    path.write_text(text)
    return load_task(str(path))


def counted(task: Task) -> dict[str, Any]:
    """Blocks, bytes moved and predicted time of the first workload."""
    workload = task.selected(None)[0]
    unit = Unit(workload, task.space.shipped, H200)
    [compiled] = compile_all(task, [unit])
    assert isinstance(compiled.code, MachineCode), compiled.code
    grid, work = launch_of(task, unit)[0].grid, count(task, workload, H200)
    predicted = predict(compiled.code, grid, work_of(task, workload.dims), H200)
    return {"blocks": math.prod(grid), "moved": work.moved, "source": work.source, "us": predicted.us}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--set-aside", metavar="FOLDER", type=Path)
    parser.add_argument("--entry", choices=list(ENTRIES), action="append", help="only this change; may be repeated")
    parser.add_argument("--out")
    given = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory(prefix="tilewright-") as folder:
        for case in set_aside(given.set_aside) if given.set_aside else in_view():
            if case[0] not in (given.entry or ENTRIES):
                continue
            rows.append(row := row_of(*case, Path(folder)))
            print(f"{row['entry']:16} {row['kernel']:30} {words(row)}", flush=True)
    for entry in given.entry or ENTRIES:
        own = [row for row in rows if row["entry"] == entry]
        done = sum(row["applied"] for row in own), sum(row.get("verified", False) for row in own)
        print(f"{entry}: {done[0]} of {len(own)} applied, {done[1]} verified{' (set aside)' * bool(given.set_aside)}")
    write(given.out, {**made_here(), "set_aside": given.set_aside is not None, "rows": rows})


def words(row: Mapping[str, Any]) -> str:
    if not row["applied"]:
        return f"not applied: {row['why']}"
    before, after = row["before"], row["after"]
    moved = f"{before['moved'] / 1e6:.0f} → {after['moved'] / 1e6:.0f} MB" if after["moved"] else "bytes not counted"
    times = f"{before['us']:.0f} → {after['us']:.0f} µs predicted"
    return f"{row['verdict'].split(':')[0]}, {before['blocks']} → {after['blocks']} blocks, {moved}, {times}"


if __name__ == "__main__":
    main()
