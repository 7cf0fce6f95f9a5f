"""Which gathers and scatters of a narrow dtype the compiler combines into wide ones, by the form of the index.

    python bench/packing.py [--out FILE.json]

Each kernel copies rows of a matrix in tiles of 1024 elements. It is compiled for sm_90, and the accesses in its machine
code are counted. Nothing is run; no GPU is needed.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

from common import made_here, write

from tilewright.compile.compile import Unit, compile_all
from tilewright.hardware.architectures import board
from tilewright.records import MachineCode
from tilewright.task.loading import load_task

DTYPES = ("bfloat16", "int8", "float8_e4m3fn")
TASK = """
import cuda.tile as ct
import tilewright as tw


@ct.kernel
def copy(x, y, start, N{constant}, T: ct.Constant[int]):
    tile = ct.arange(T, dtype=ct.int32)
    {body}
    ct.scatter(y, ({index}), ct.gather(x, ({index}){options}){options})


task = tw.Task(
    name="copy", tensors={{"x": tw.Tensor({shape}, "{dtype}"), "y": tw.Output({shape}, "{dtype}")}},
    reference=lambda x: x, launch=lambda x, y, M, N: tw.Launch(copy, (M, 2), (x, y, 64, N, 1024)),
    flops=lambda M, N: M * N, space=tw.Space(constants={{}}, shipped={{}}),
    workloads={{"rows": {{"M": 4096, "N": 2048}}}},
)
"""
ROWS, FLAT, CONSTANT = '("M", "N")', '("M * N",)', ": ct.Constant[int]"
GROUPS = (
    "group = (ct.bid(0) * 2 + ct.bid(1)) * (T // 8) + ct.arange(T // 8, dtype=ct.int32)\n"
    "    row = ct.reshape(ct.broadcast_to((group // (N // 8))[:, None], (T // 8, 8)), (T,))\n"
    "    column = ct.reshape((group % (N // 8) * 8)[:, None] + ct.arange(8, dtype=ct.int32)[None, :], (T,))"
)
FLAT_RANGE = "flat = (ct.bid(0) * 2 + ct.bid(1)) * T + tile"
FORMS: tuple[tuple[str, str, str, str, str, str], ...] = (  # name, shape, N, statements, index, options
    ("a range from a multiple of its length", ROWS, "", "", "ct.bid(0), ct.bid(1) * T + tile", ""),
    ("a range of loaded or computed rows", ROWS, "", "", "ct.bid(0) * 37 % 4096, ct.bid(1) * T + tile", ""),
    ("the two halves of a row", ROWS, "", "", "ct.bid(0), tile + 1024", ""),
    ("a range from a number that is passed", ROWS, "", "", "ct.bid(0), start + tile", ""),
    ("the same, assumed to be a multiple of 16", ROWS, "", "start = ct.assume_divisible_by(start, 16)",
     "ct.bid(0), start + tile", ""),
    ("row * N + range, N is passed", FLAT, "", "", "ct.bid(0) * N + tile", ""),
    ("the same, N is a constant", FLAT, CONSTANT, "", "ct.bid(0) * N + tile", ""),
    ("the same, N is assumed to be a multiple of 16", FLAT, "", "N = ct.assume_divisible_by(N, 16)",
     "ct.bid(0) * N + tile", ""),
    ("a mask by N, which is passed", ROWS, "", "", "ct.bid(0), tile", ", mask=tile < N"),
    ("the same, N is assumed to be a multiple of 16", ROWS, "", "N = ct.assume_divisible_by(N, 16)",
     "ct.bid(0), tile", ", mask=tile < N"),
    ("a start that is no multiple", ROWS, "", "", "ct.bid(0), tile + 1", ""),
    ("every other element", ROWS, "", "", "ct.bid(0), 2 * tile", ""),
    ("a flat range divided by a constant N", ROWS, CONSTANT, FLAT_RANGE, "flat // N, flat % N", ""),
    ("the same, N = x.shape[1]", ROWS, "", FLAT_RANGE + "\n    N = x.shape[1]", "flat // N, flat % N", ""),
    ("the same, divided in groups of 8", ROWS, CONSTANT, GROUPS, "row, column", ""),
)  # fmt: skip


def counted(dtype: str, form: tuple[str, str, str, str, str, str], folder: Path) -> dict[str, Any]:
    name, shape, constant, body, index, options = form
    path = folder / f"copy_{len(list(folder.iterdir()))}.py"
    path.write_text(TASK.format(shape=shape, constant=constant, body=body, index=index, options=options, dtype=dtype))
    task = load_task(str(path))
    [compiled] = compile_all(task, [Unit(task.workload("rows"), task.space.shipped, board("H200"))])
    assert isinstance(compiled.code, MachineCode), compiled.code
    copies = {kind: count for kind, count in sorted(compiled.code.copies.items()) if kind[:3] in ("LDG", "STG")}
    return {"dtype": dtype, "index": name, "accesses": copies, "instructions": compiled.code.instructions}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out")
    out, rows = parser.parse_args().out, list[dict[str, Any]]()
    with tempfile.TemporaryDirectory(prefix="tilewright-") as folder:
        for dtype in DTYPES:
            for form in FORMS:
                rows.append(row := counted(dtype, form, Path(folder)))
                accesses = ", ".join(f"{count} {kind}" for kind, count in row["accesses"].items())
                print(f"{dtype:14} {row['index']:46} {accesses:22} {row['instructions']} instructions", flush=True)
    write(out, {**made_here(), "rows": rows})


if __name__ == "__main__":
    main()
