"""The figures of Triton on Tile IR: against the PTX route, cuBLAS, `triton.autotune` and Triton's interpreter.

    python bench/triton_figures.py OUT.json [--parts DIR] [--seconds 300] [--cubins FOLDER] [PART …]

Each part runs in a process of its own for at most --seconds, and lies in --parts when it is done: the same command goes
on from there, and `OUT.json` has the parts that are there. The parts `interpreter` and `translation` need no GPU.
--cubins names a folder that bench/triton_cubins.py filled with another Triton: its cubins run in the same rounds, so
that a figure of the PTX route is that of the faster Triton.

    matmul          4096³ bf16: Tile IR by pointers and descriptors, the PTX route by both and by the host's, cuBLAS
    softmax, rms    16384 × 4096 bf16: Tile IR against the PTX route
    optimize        `tilewright optimize` of bench/triton_plain_matmul.py: its last version against the PTX route
    tuning          24 configurations of it: `tilewright tune` against `triton.autotune`, caches empty, and the regret
    interpreter     512³ fp16 by Tilewright's interpreter and by TRITON_INTERPRET=1
    translation     milliseconds from TTIR to Tile IR, beyond Triton's front end
"""

from __future__ import annotations

import argparse
import importlib
import json
import math
import os
import platform
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import metadata
from itertools import product
from pathlib import Path
from typing import Any

from common import answer, made_here, need_gpu, paired_ratio, retime, write
from record import measured
from tileir_matmul_sweep import TASK as SWEPT
from tileir_matmul_sweep import by_ptx as swept_by_ptx
from triton_cubins import kept_programs

from tilewright.compile.compile import Unit, compile_all, remember
from tilewright.records import Configuration, Failed
from tilewright.task.loading import load_task, where_is
from tilewright.task.task import Task
from tilewright.worker.messages import Hello, Program
from tilewright.worker.programs import program_of
from tilewright.worker.session import Session

HERE = Path(__file__).parent
TASKS, PLAIN = HERE / "triton_figures_tasks.py", HERE / "triton_plain_matmul.py"
ROUNDS = 40
RUNS = 5
MINUTES = "4.5"
"""`optimize` begins no iteration after that, so that its last version is still raced against the PTX route."""
TILES = ((128, 256, 64), (256, 128, 64), (128, 128, 64), (128, 128, 32), (64, 256, 64), (64, 128, 64))
LARGE_TILES = ((128, 256, 64), (256, 128, 64), (128, 128, 64), (256, 256, 64), (128, 256, 128))
Record = dict[str, Any]


# Races ------------------------------------------------------------------------------------------------


def raced(
    task: Task, configurations: Iterable[Configuration], workload: str, cubins: Path | None = None,
    others: Sequence[tuple[Record, Program]] = (),
) -> Record:  # fmt: skip
    """Compiles, verifies and times configurations and the trusted implementation, interleaved. For the same rounds:
    ``cubins`` as written by bench/triton_cubins.py, and ``others``."""
    board, chosen = need_gpu(), task.workload(workload)
    others = kept_programs(cubins, task, workload, board) if cubins else others
    compiled = compile_all(task, [Unit(chosen, each, board) for each in configurations], seconds=30)
    remember(task, compiled)
    with Session(where_is(task)) as session:
        answer(session.run(Hello()))
        return measured(task, session, chosen, compiled, ROUNDS, others)


def best_of(record: Record, **knobs: Any) -> Record | None:
    """The fastest configuration that is right and has these knobs."""
    fitting = [row for row in record["rows"] if row.get("checked", {}).get("verdict") == "correct"
               and row.get("samples_us") and all(row["config"].get(name) == knobs[name] for name in knobs)]  # fmt: skip
    if not fitting:
        return None
    best = min(fitting, key=lambda row: statistics.median(row["samples_us"]))
    other = {"triton": best["triton"]} if "triton" in best else {}
    return {"us": statistics.median(best["samples_us"]), "config": best["config"], "of": len(fitting), **other}


def with_bests(record: Record, groups: Mapping[str, Mapping[str, Any]]) -> Record:
    best = {name: best_of(record, **knobs) for name, knobs in groups.items()}
    if record.get("trusted_us"):
        best["torch"] = {"us": statistics.median(record["trusted_us"]), "config": {}, "of": 1}
    for name, found in best.items():
        by = f" triton {found['triton']}" if found and "triton" in found else ""
        print(f"  {name:24} " + ("none is right" if found is None else f"{found['us']:9.2f} us {found['config']}{by}"))
    return {"best": best, "race": record}


def us_of(found: Record, name: str) -> float:
    return math.nan if found["best"].get(name) is None else float(found["best"][name]["us"])


def tiled(task: Task, tiles: Sequence[tuple[int, int, int]], **lists: Sequence[Any]) -> list[Configuration]:
    none = dict.fromkeys(("num_warps", "num_stages", "num_ctas", "num_worker_warps"))
    found = []
    for (m, n, k), *values in product(tiles, *lists.values()):
        chosen = {**none, "BLOCK_M": m, "BLOCK_N": n, "BLOCK_K": k, **dict(zip(lists, values, strict=True))}
        found.append(task.space.shipped.replace(**chosen))
    return found


def products_by_ptx(task: Task) -> list[Configuration]:
    forms, warps, stages = ("pointers", "descriptors", "host"), (4, 8), (3, 4)
    return tiled(task, TILES, FORM=forms, route=("ptx",), num_warps=warps, num_stages=stages)


def rows_by_ptx(task: Task) -> list[Configuration]:
    return [task.space.shipped.replace(num_warps=warps) for warps in (4, 8, 16, 32)]


BY_PTX = {
    f"{TASKS}:products": products_by_ptx, f"{TASKS}:softmax_rows": rows_by_ptx, f"{TASKS}:rms_rows": rows_by_ptx,
    str(SWEPT): swept_by_ptx,
}  # fmt: skip
"""The configurations of the PTX route, by the place of the task."""


def matmul(cubins: Path | None) -> Record:
    task = load_task(f"{TASKS}:products")
    configurations = [
        *products_by_ptx(task),
        *tiled(task, LARGE_TILES, FORM=("descriptors", "host"), route=("tileir",), num_worker_warps=(None, 8)),
        *tiled(task, LARGE_TILES, FORM=("descriptors",), route=("tileir",), num_ctas=(2,), num_worker_warps=(None, 8)),
        *tiled(task, LARGE_TILES, FORM=("descriptors", "host"), route=("tileir",), num_stages=(2, 4, 8),
               num_worker_warps=(8,)),
        *tiled(task, TILES[:3], FORM=("pointers",), route=("tileir",)),
    ]  # fmt: skip
    forms = ("pointers", "descriptors", "host")
    groups = {f"{route} {form}": {"route": route, "FORM": form} for route in ("ptx", "tileir") for form in forms}
    found = with_bests(raced(task, configurations, "4096", cubins), groups)
    ptx = min((us for form in forms if not math.isnan(us := us_of(found, f"ptx {form}"))), default=math.nan)
    ours = min((us for form in forms if not math.isnan(us := us_of(found, f"tileir {form}"))), default=math.nan)
    return {**found, "figures": {"tileir/torch": ours / us_of(found, "torch"), "tileir/ptx": ours / ptx}}


def of_rows(name: str, cubins: Path | None) -> Record:
    task = load_task(f"{TASKS}:{name}")
    shipped = task.space.shipped
    configurations = [
        *rows_by_ptx(task),
        *(shipped.replace(route="tileir", num_warps=None, occupancy=occupancy, num_worker_warps=warps)
          for occupancy in (None, 1, 2, 4, 8) for warps in (None, 8)),
    ]  # fmt: skip
    record = raced(task, configurations, "16384x4096", cubins)
    found = with_bests(record, {route: {"route": route} for route in ("ptx", "tileir")})
    return {**found, "figures": {"tileir/ptx": us_of(found, "tileir") / us_of(found, "ptx")}}


# Commands ---------------------------------------------------------------------------------------------


def fresh(folder: Path) -> dict[str, str]:
    """The environment of a process whose caches are empty."""
    caches = {"TILEWRIGHT_HOME": "home", "TRITON_CACHE_DIR": "triton", "CUDA_TILE_CACHE_DIR": "cutile"}
    paths = os.pathsep.join(map(os.path.abspath, filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))))
    return {**os.environ, "PYTHONPATH": paths, **{name: str(folder / place) for name, place in caches.items()}}


def timed(command: Sequence[str], folder: Path) -> tuple[float, Any]:
    """Wall seconds of a process, and the JSON that it printed last."""
    started = time.perf_counter()
    done = subprocess.run(command, env=fresh(folder), cwd=folder, stdout=subprocess.PIPE, text=True)
    seconds = time.perf_counter() - started
    if not done.stdout.strip():
        sys.exit(f"{' '.join(command)} failed with exit code {done.returncode}")
    text = done.stdout if done.stdout.lstrip().startswith("{") else done.stdout.splitlines()[-1]
    return seconds, json.loads(text)


def optimize(cubins: Path | None) -> Record:
    """The last version and the shipped one, each over cuBLAS and over the best of the PTX route in the same rounds. The
    next call goes on with a run that was cut off, because its folder stays."""
    folder = Path(tempfile.gettempdir(), "triton-figures-optimize")
    folder.mkdir(exist_ok=True)
    if not (folder / "optimized.py").exists():
        shutil.copy(PLAIN, folder / "optimized.py")
    command = [sys.executable, "-m", "tilewright", "optimize", "optimized.py", "--json", "--stop-after", MINUTES]
    seconds, said = timed(command, folder)
    patch = (folder / "home" / "runs" / said["run"] / "changes.patch").read_text()
    last = tempfile.mkdtemp()
    shutil.copy(PLAIN, Path(last, "optimized.py"))
    if patch.strip():
        subprocess.run(["git", "apply", "-"], input=patch, text=True, cwd=last, check=True)
    found: Record = {"seconds": seconds, "said": said, "patch": patch, "best": {}}
    rivals = by_ptx(cubins)
    for version, file in (("before", PLAIN), ("after", Path(last, "optimized.py"))):
        task = load_task(str(file))
        record = raced(task, [task.space.shipped], "4096", others=rivals)
        nobody = {"us": math.nan, "config": {}}
        ptx = best_of({"rows": record["rows"][1:]}) or nobody
        row = best_of({"rows": record["rows"][:1]}) or nobody
        times = {"over_torch": row["us"] / statistics.median(record["trusted_us"]), "over_ptx": row["us"] / ptx["us"]}
        found["best"][version] = {**row, **times, "ptx": ptx}
    found["figures"] = {
        f"{version}/{than}": found["best"][version][f"over_{than}"]
        for version, than in product(("before", "after"), ("torch", "ptx"))
    }
    return found


def by_ptx(cubins: Path | None) -> list[tuple[Record, Program]]:
    """The forms of the PTX route that `tileir_matmul_sweep` races, compiled here, and those in ``cubins``."""
    task, board = load_task(str(SWEPT)), need_gpu()
    units = [Unit(task.workload("4096"), each, board) for each in swept_by_ptx(task)]
    built = [each for each in compile_all(task, units, seconds=30) if not isinstance(each.built, Failed)]
    here = [({"config": dict(each.unit.configuration)}, program_of(task, each)) for each in built]
    return here + (kept_programs(cubins, task, "4096", board) if cubins else [])


def tuning() -> Record:
    """Both sides, one process each from its start to its answer. What both read is read once before: torch's libraries
    have 2 GB or more, and the first process would wait for the disk."""
    subprocess.run([sys.executable, "-c", "import torch, triton"], check=True)
    with tempfile.TemporaryDirectory() as ours, tempfile.TemporaryDirectory() as theirs:
        tune = [sys.executable, "-m", "tilewright", "tune", str(PLAIN), "--workload", "4096", "--json", "--no-store"]
        seconds, said = timed(tune, Path(ours))
        their_seconds, their = timed([sys.executable, __file__, "--autotune"], Path(theirs))
    task = load_task(str(PLAIN))
    mine = Configuration.of(said["workloads"][0]["best"]["config"])
    other = task.space.shipped.replace(**their["best"])
    compiled = compile_all(task, [Unit(task.workload("4096"), each, need_gpu()) for each in (mine, other)])
    remember(task, compiled)
    with Session(where_is(task)) as session:
        samples, _ = retime(session, task.workload("4096"), [mine, other], 60)
    ratio = paired_ratio(*samples)
    figures = {"autotune/tune seconds": their_seconds / seconds, "our winner/theirs": ratio}
    return {"seconds": seconds, "stages": said["seconds"], "autotune_seconds": their_seconds, "autotune": their,
            "best": {"tune": {"config": dict(mine)}, "autotune": {"config": dict(other)}}, "figures": figures,
            "configurations": len(task.space.configurations(need_gpu().sm, task.workload("4096").dims))}  # fmt: skip


def autotune() -> Record:
    """In this process: Triton's own tuner on the task's space."""
    import torch
    import triton

    task = load_task(str(PLAIN))
    dims = task.workload("4096").dims
    constants, hints = ("BLOCK_M", "BLOCK_N", "BLOCK_K"), ("num_warps", "num_stages")
    configs = [
        triton.Config({name: one[name] for name in constants}, **{name: one[name] for name in hints})
        for one in task.space.configurations(need_gpu().sm, dims)
    ]
    size = tuple(int(dims[name]) for name in "MNK")
    a, b, c = (torch.randn(4096, 4096, device="cuda").to(torch.bfloat16) for _ in range(3))
    launch = task.launched(task.space.shipped, dims, {"a": a, "b": b, "c": c}, need_gpu())
    tuner = triton.autotune(configs, key=["M", "N", "K"])(launch.kernel)

    def grid(meta: Mapping[str, int]) -> tuple[int]:
        return (triton.cdiv(size[0], meta["BLOCK_M"]) * triton.cdiv(size[1], meta["BLOCK_N"]),)

    started = time.perf_counter()
    tuner[grid](a, b, c, *size, GROUP=8)
    torch.cuda.synchronize()
    best = tuner.best_config.all_kwargs()
    return {"search_seconds": time.perf_counter() - started, "configs": len(configs),
            "best": {name: best[name] for name in (*constants, *hints)}}  # fmt: skip


# Without a GPU ----------------------------------------------------------------------------------------


def interpreter() -> Record:
    """From inputs to outputs, both in a process of their own; Triton's reads its programs when it is imported."""
    found, best = {}, {}
    for whose in ("ours", "theirs"):
        environment = {**os.environ, "TRITON_INTERPRET": "1"} if whose == "theirs" else dict(os.environ)
        command = [sys.executable, __file__, "--interpret", whose]
        done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
        found[whose] = json.loads(done.stdout.splitlines()[-1])
        best[whose] = min(found[whose]["seconds"])
        print(f"  {whose:8} {best[whose]:.3f} s, error {found[whose]['error']:.2e}")
    return {**found, "figures": {"theirs/ours": best["theirs"] / best["ours"]}}


def interpreted(whose: str) -> Record:
    """512³ of fp16, the pointer form with tiles of 64 × 64 × 32. fp16, because Triton's is wrong for bf16."""
    import numpy as np

    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal((512, 512)).astype(np.float16) for _ in range(2))
    run = ours_on if whose == "ours" else theirs_on
    times = []
    for _ in range(RUNS + 1 if whose == "ours" else 2):  # the first launch also pays for the front end's own start
        started = time.perf_counter()
        c = run(a, b)
        times.append(time.perf_counter() - started)
    wanted = a.astype(np.float64) @ b.astype(np.float64)
    return {"seconds": times[1:], "error": float(np.abs(c - wanted).max() / np.abs(wanted).max())}


def half_precision() -> Task:
    """The product of `triton_figures_tasks` on fp16."""
    import dataclasses

    task = load_task(f"{TASKS}:products")
    tensors = {name: dataclasses.replace(spec, dtype="float16") for name, spec in task.tensors.items()}
    return dataclasses.replace(task, tensors=tensors)


def ours_on(a: Any, b: Any) -> Any:
    from tilewright.hardware.architectures import default_board
    from tilewright.verify.images import images_for
    from tilewright.verify.interpreted import InterpreterEngine

    task = half_precision()
    config = task.space.shipped.replace(BLOCK_M=64, BLOCK_N=64, BLOCK_K=32, route="tileir")
    dims = task.workload("512").dims
    images = images_for(task, dims, {"a": a, "b": b}, "row-major", 0xFF)
    ran = InterpreterEngine(task, default_board("sm_90")).run(config, dims, images)
    assert ran.failed is None and ran.refused is None and not ran.findings, ran
    return images["c"].array.astype(float)


def theirs_on(a: Any, b: Any) -> Any:
    import torch

    sys.path.insert(0, str(HERE))
    plain = importlib.import_module("triton_plain_matmul")
    left, right, c = (torch.from_numpy(a), torch.from_numpy(b), torch.empty(512, 512, dtype=torch.float16))
    plain.matmul[(64,)](left, right, c, 512, 512, 512, 64, 64, 32, 8)
    return c.double().numpy()


def translation() -> Record:
    """Best of five for each form: the front end from a launch to TTIR, and from TTIR to bytecode."""
    from tilewright.compile.compile import launch_of
    from tilewright.hardware.architectures import default_board
    from tilewright.languages.tileir_from_triton.translate import translate
    from tilewright.languages.triton import front_end

    board, rows = default_board("sm_90"), []
    tasks = [load_task(f"{TASKS}:{name}") for name in ("products", "softmax_rows", "rms_rows")]
    cases = [(task, task.space.shipped.replace(**({"FORM": form} if form else {}), route="tileir"))
             for task in tasks for form in (("pointers", "descriptors", "host") if "FORM" in task.space.shipped else
                                            (None,))]  # fmt: skip
    for task, config in cases:
        launch, _ = launch_of(task, Unit(next(iter(task.selected(None))), config, board))
        front, ours = [], []
        for _ in range(RUNS + 1):
            front_end._GENERATED.clear()
            started = time.perf_counter()
            made = front_end.ttir_of(launch, {}, config, board.arch)
            between = time.perf_counter()
            assert isinstance(made, front_end.Ttir), made
            translate(made.text, board.arch)
            front.append(1000 * (between - started))
            ours.append(1000 * (time.perf_counter() - between))
        name = f"{task.name} {config['FORM']}" if "FORM" in config else task.name
        rows.append({"kernel": name, "front_end_ms": min(front[1:]), "translation_ms": min(ours[1:])})
        print(f"  {name:24} front end {min(front[1:]):6.1f} ms, translation {min(ours[1:]):6.1f} ms")
    return {"rows": rows, "figures": {"slowest translation ms": max(row["translation_ms"] for row in rows)}}


# Parts ------------------------------------------------------------------------------------------------

PARTS: Mapping[str, Callable[[Path | None], Record]] = {
    "translation": lambda cubins: translation(), "interpreter": lambda cubins: interpreter(), "matmul": matmul,
    "softmax": lambda cubins: of_rows("softmax_rows", cubins), "rms": lambda cubins: of_rows("rms_rows", cubins),
    "tuning": lambda cubins: tuning(), "optimize": optimize,
}  # fmt: skip
WITHOUT_GPU = ("translation", "interpreter")


def one_part(name: str, part: Path, cubins: Path | None) -> None:
    started = time.perf_counter()
    found = PARTS[name](cubins)
    record = {**made_here(), "python": platform.python_version(), "triton": metadata.version("triton"),
              "wall_seconds": time.perf_counter() - started, **found}  # fmt: skip
    unfinished = part.with_suffix(".part")
    unfinished.write_text(json.dumps(record, indent=1))
    unfinished.rename(part)


def run_parts(names: Sequence[str], parts: Path, seconds: float, cubins: Path | None = None) -> dict[str, str]:
    """Runs the parts that are not there yet; returns those that failed, with the reason."""
    parts.mkdir(parents=True, exist_ok=True)
    failed = {}
    for name in names:
        if (parts / f"{name}.json").exists():
            continue
        print(name, flush=True)
        command = [sys.executable, __file__, "--one", name, "--parts", str(parts)]
        command += ["--cubins", str(cubins)] if cubins else []
        process = subprocess.Popen(command, start_new_session=True)
        try:
            if code := process.wait(seconds):
                failed[name] = f"exit code {code}"
        except subprocess.TimeoutExpired:
            failed[name] = f"not done within {seconds:g} s"
            os.killpg(process.pid, signal.SIGTERM)  # the part's own processes, too
            process.wait()
    return failed


def table(found: Mapping[str, Record]) -> str:
    rows = [(name, what, value) for name, part in found.items() for what, value in part["figures"].items()]
    return "\n".join(f"{name:12} {what:24} {value:8.3f}" for name, what, value in rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", nargs="?")
    parser.add_argument("names", nargs="*", metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--parts", type=Path, default=Path("triton-figures-parts"))
    parser.add_argument("--seconds", type=float, default=300.0, help="of one part")
    parser.add_argument("--cubins", type=Path, metavar="FOLDER", help="cubins of another Triton")
    for hidden in ("--one", "--interpret"):
        parser.add_argument(hidden, help=argparse.SUPPRESS)
    parser.add_argument("--autotune", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_intermixed_args()
    if given.autotune or given.interpret:
        print(json.dumps(autotune() if given.autotune else interpreted(given.interpret)))
        return
    if given.one:
        one_part(given.one, given.parts / f"{given.one}.json", given.cubins)
        return
    names = given.names or list(PARTS)
    if given.out is None or (unknown := [name for name in names if name not in PARTS]):
        parser.error("name the file to write" if given.out is None else f"unknown part '{unknown[0]}'")
    if set(names) - set(WITHOUT_GPU):
        need_gpu()
    failed = run_parts(names, given.parts, given.seconds, given.cubins)
    files = {name: given.parts / f"{name}.json" for name in names}
    found = {name: json.loads(file.read_text()) for name, file in files.items() if file.exists()}
    print(table(found))
    write(given.out, {**made_here(), "parts": found, "failed": failed})
    if failed:
        sys.exit("; ".join(f"{name}: {reason}" for name, reason in failed.items()) + "; the same command goes on")


if __name__ == "__main__":
    main()
