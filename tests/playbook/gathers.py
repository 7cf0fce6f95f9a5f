"""Small task files for the tests of the entries on memory access: one kernel, its launch and its task each."""

COPY = '''"""A task."""

import cuda.tile as ct
import tilewright as tw


@ct.kernel
def copy(x, y, {parameters}):
{body}

def launch({arguments}, config):
    return tw.Launch(copy, {grid}, (x, y, {given}))


task = tw.Task(
    name="copy",
    tensors={{"x": tw.Tensor({shape}, "{dtype}"), "y": tw.Output({shape}, "{dtype}")}},
    reference=lambda x: x,
    launch=launch,
    flops=lambda: 1,
    independent=("M",),
    space=tw.Space(constants={{"TILE": (64,)}}, shipped={{"TILE": 64}}),
    workloads={{"even": {even}, "ragged": {ragged}}},
)
'''


def copy(
    body: str,
    *,
    shape: str = '("M", "N")',
    parameters: str = "TILE: ct.Constant[int]",
    given: str = "config.TILE",
    grid: str = "(M,)",
    dims: tuple[str, ...] = ("M", "N"),
    dtype: str = "float32",
) -> str:
    """A task whose kernel copies x to y; ``body`` is the kernel's, without indentation."""
    lines = "".join(f"    {line}".rstrip() + "\n" for line in body.strip("\n").splitlines())
    sizes = {"M": (128, 37), "N": (256, 200), "B": (2, 3)}
    even, ragged = ({name: sizes[name][which] for name in dims} for which in (0, 1))
    return COPY.format(
        body=lines, shape=shape, parameters=parameters, given=given, grid=grid, dtype=dtype, even=even, ragged=ragged,
        arguments=", ".join(("x", "y", *dims)),
    )  # fmt: skip


ROW = """
row = ct.bid(0)
for n in range(ct.cdiv(x.shape[1], TILE)):
    columns = n * TILE + ct.arange(TILE, dtype=ct.int32)  # of this chunk
    values = ct.gather(x, (row, columns))
    ct.scatter(y, (row, columns), values)
"""

BLOCK = """
rows = ct.bid(0) * TILE + ct.arange(TILE, dtype=ct.int32)[:, None]
columns = ct.bid(1) * TILE + ct.arange(TILE, dtype=ct.int32)[None, :]
ct.scatter(y, (rows, columns), ct.gather(x, (rows, columns), check_bounds=True))
"""
BLOCK_GRID = "(-(-M // config.TILE), -(-N // config.TILE))"
