"""What `packing` and `unfuse` make of kernels of TileGym 1.5.1: accesses, spills, and equality to the bit.

    python bench/moves.py [--set-aside] [--out FILE.json]

Each kernel in view is compiled for an H200 before and after each change, and its instructions are counted. Both
versions run in the interpreter on small shapes, and must give the same bits. Nothing is measured. Needs TileGym 1.5.1
(`pip install --no-deps tilegym==1.5.1`), whose kernels are read from its files. With ``--set-aside``, the script says
for each kernel in the files of ``moves_set_aside.txt`` whether the entries find a change in its text, and why not.
"""

from __future__ import annotations

import argparse
import importlib.util
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from common import BENCH, lines_of, made_here, write
from reductions import H200, of_tilegym

from tilewright.compile.compile import Unit, compile_all
from tilewright.playbook.base import Entry, refusal
from tilewright.playbook.entries import packing, unfuse
from tilewright.playbook.entries.packing import narrow_accesses
from tilewright.records import Failed, Value
from tilewright.source.syntax import Source
from tilewright.testing.entries import facts_of, loaded
from tilewright.tileir.run.interpreter import run
from tilewright.tileir.run.launching import Launcher
from tilewright.tileir.run.memory import Memory
from tilewright.verify.images import storage

ENTRIES: Mapping[str, Entry] = {module.ENTRY.about.id: module.ENTRY for module in (packing, unfuse)}
SECONDS = 60.0  # of processor time for one compiler
GELU = """
GELU_EXACT, GELU_TANH = 0, 1


task = tw.Task(
    name="geglu",
    tensors={"x": tw.Tensor(("M * 2 * N",), "bfloat16"), "y": tw.Output(("M * N",), "bfloat16")},
    reference=lambda x: x, flops=lambda M, N: 8 * M * N,
    launch=lambda x, y, M, N: tw.Launch(
        _geglu_fwd_kernel, (-(-M * N // 1024), 1, 1), (y, x, N, 2 * N, N, 1024, GELU_TANH)
    ),
    space=tw.Space(constants={}, shipped={}),
    workloads={"large": {"M": 8192, "N": 12288}, "small": {"M": 7, "N": 96}, "odd": {"M": 5, "N": 77}},
)
"""
RMS = """
task = tw.Task(
    name="rms",
    tensors={
        "x": tw.Tensor(("M", "N"), "bfloat16"), "dy": tw.Tensor(("M", "N"), "bfloat16"),
        "w": tw.Tensor(("N",), "bfloat16"), "rstd": tw.Tensor(("M",), "float32"),
        "dx": tw.Output(("M", "N"), "bfloat16"), "dw": tw.Output(("B", "N"), "float32"),
    },
    reference=lambda x: x, flops=lambda M, N: 8 * M * N,
    launch=lambda x, dy, w, rstd, dx, dw, M, N, B: tw.Launch(
        _rms_bwd_kernel, (B,), (dx, dy, x, w, rstd, dw, 1, 1 << (N - 1).bit_length())
    ),
    space=tw.Space(constants={}, shipped={}),
    workloads={"large": {"M": 4096, "N": 16384, "B": 132}, "small": {"M": 5, "N": 300, "B": 2}},
)
"""
ATTENTION = """
task = tw.Task(
    name="attention",
    tensors={
        **{name: tw.Tensor(("B", "H", "S", 128), "bfloat16") for name in ("q", "k", "v", "do")},
        **{name: tw.Tensor(("B * H * S",), "float32") for name in ("lse", "delta")},
        **{name: tw.Output(("B", "H", "S", 128), "bfloat16") for name in ("dk", "dv")},
    },
    reference=lambda q: q, flops=lambda B, H, S: 8 * B * H * S * S * 128,
    launch=lambda q, k, v, do, lse, delta, dk, dv, B, H, S: tw.Launch(
        _fmha_bwd_dkdv_kernel, (-(-S // 128), B * H, 1),
        (q, k, v, do, dk, dv, lse, delta, 0.088, 128, H, H, S, 64, 128, 1, True),
    ),
    space=tw.Space(constants={}, shipped={}),
    workloads={"large": {"B": 4, "H": 16, "S": 4096}, "small": {"B": 1, "H": 2, "S": 200}},
)
"""


def in_view() -> Iterator[tuple[str, str, str]]:
    """Yields entry, name and text of the kernels that the entries may be changed for."""
    ops = "ops/cutile/"
    gelu = of_tilegym(f"{ops}activation/gelu", "gelu_tanh_forward_ct", "\n\n")
    yield "packing", "geglu", gelu + of_tilegym(f"{ops}activation/geglu", "_geglu_fwd_kernel", GELU)
    yield "unfuse", "rms_norm backward", of_tilegym(f"{ops}rms_norm", "_rms_bwd_kernel", RMS)
    attention = of_tilegym(f"{ops}attention", "_fmha_bwd_dkdv_kernel", ATTENTION)
    boolean = "import tilewright as tw\n\nConstBool = ct.Constant[bool]\n"
    yield "unfuse", "attention dK, dV", attention.replace("import tilewright as tw\n", boolean)


def rows_of(entry: str, name: str, text: str, folder: Path) -> Iterator[dict[str, Any]]:
    """Yields the counts of a kernel, and those after each change."""
    text = text.replace("@experimental_kernel\n", "")
    task, source = loaded(text, folder), Source("task.py", text)
    yield {"entry": entry, "kernel": name, "value": None, **counts(text, folder)}
    for site in ENTRIES[entry].sites(source, facts_of(task, H200)):
        for value in site.values:
            new = ENTRIES[entry].change(source, site, value)
            yield {
                "entry": entry,
                "kernel": name,
                "value": value,
                **counts(new, folder),
                "equal": equal(text, new, folder),
            }


def counts(text: str, folder: Path) -> dict[str, Any]:
    task = loaded(text, folder)
    [compiled] = compile_all(task, [Unit(task.workload("large"), task.space.shipped, H200)], seconds=SECONDS)
    if isinstance(compiled.code, Failed):
        return {"failed": compiled.code.reason}
    code = compiled.code
    return {
        "registers": code.registers, "spilled_bytes": code.stack_bytes, "spill_loads": code.local_loads,
        "spill_stores": code.local_stores, "narrow": narrow_accesses({"large": code}),
        "instructions": code.instructions,
    }  # fmt: skip


def equal(old: str, new: str, folder: Path) -> bool:
    """Returns whether all outputs have the same bits for each workload but the large one."""
    small = [name for name in loaded(old, folder).workloads if name != "large"]
    return all(outputs(old, name, folder) == outputs(new, name, folder) for name in small)


def outputs(text: str, workload: str, folder: Path) -> list[bytes]:
    task = loaded(text, folder)
    dims, rng, memory = task.workload(workload).dims, np.random.default_rng(7), Memory()
    arrays = task.arrays(dims)
    runnable = Launcher(task, H200).runnable(task.space.shipped, dims, arrays)
    data = {name: rng.normal(0, 1, spec.shape).astype(storage(spec.dtype)) for name, spec in arrays.items()}
    addresses = {name: memory.allocate(name, array).address for name, array in data.items()}
    done = run(runnable.module, runnable.bound(addresses, memory), runnable.launch.grid, memory)
    assert not done.findings, done.findings
    return [data[name].tobytes() for name in task.outputs]


def set_aside() -> Iterator[dict[str, Any]]:
    spec = importlib.util.find_spec("tilegym")
    assert spec is not None and spec.submodule_search_locations, "TileGym 1.5.1 is not installed"
    for line in lines_of(BENCH / "moves_set_aside.txt"):
        entry, _, name = line.split()
        source = Source(name, Path(spec.submodule_search_locations[0], name).read_text())
        for kernel in source.kernels:
            refused, values = in_text(entry, source, kernel)
            yield {"entry": entry, "file": name, "kernel": kernel, "values": values, "why_not": refused}


def in_text(entry: str, source: Source, kernel: str) -> tuple[str, list[Value]]:
    """Returns why an entry finds no change in the text of a kernel, or its values. The launch is not read."""
    if entry == "packing":
        function = source.kernels[kernel]
        refused = refusal(lambda: list(packing.ENTRY.places(source, function)))
        return refused, [] if refused else [packing.MOST]
    refused = refusal(unfuse.stages_in_text, source, kernel)
    return refused, [] if refused else list(unfuse.stages_in_text(source, kernel))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--set-aside", action="store_true")
    parser.add_argument("--out")
    given, rows = parser.parse_args(), list[dict[str, Any]]()
    if given.set_aside:
        for row in set_aside():
            rows.append(row)
            print(f"{row['entry']:8} {row['kernel']:46} {', '.join(map(str, row['values'])) or row['why_not']}")
    else:
        with tempfile.TemporaryDirectory(prefix="tilewright-") as folder:
            for case in in_view():
                for row in rows_of(*case, Path(folder)):
                    rows.append(row)
                    said = "" if "equal" not in row else "equal to the bit" if row["equal"] else "NOT EQUAL"
                    if "failed" in row:
                        print(f"{row['kernel']:18} {row['value']:32} {row['failed']}")
                        continue
                    spilled = f"{row['spilled_bytes']} B spilled, {row['spill_stores']} spill stores"
                    print(f"{row['kernel']:18} {row['value'] or 'before':32} {spilled:34} {row['narrow']:22} "
                          f"{row['instructions']} instructions {said}", flush=True)  # fmt: skip
    write(given.out, {**made_here(), "set_aside": given.set_aside, "rows": rows})


if __name__ == "__main__":
    main()
