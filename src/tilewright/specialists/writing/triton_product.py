"""Generates the Triton code of a product of two matrices, with the epilogue that is computed before the store."""

from __future__ import annotations

from tilewright.specialists.writing.expression import Operand
from tilewright.specialists.writing.forms import KernelForm, Product
from tilewright.specialists.writing.task_file import KernelText
from tilewright.specialists.writing.triton import TritonStatements, imports_of, taken

HEAD = '''@triton.jit
def {name}(
    {pointers}, {M}, {N}, {K},
    TILE_{M}: tl.constexpr, TILE_{N}: tl.constexpr, TILE_{K}: tl.constexpr, GROUP_{M}: tl.constexpr,
):
    """One program computes one tile of the product. GROUP_{M} rows of tiles share columns of {right} in L2."""
    blocks_{M}, blocks_{N} = tl.cdiv({M}, TILE_{M}), tl.cdiv({N}, TILE_{N})
    within = tl.program_id(0) % (GROUP_{M} * blocks_{N})
    first = tl.program_id(0) // (GROUP_{M} * blocks_{N}) * GROUP_{M}
    height = min(blocks_{M} - first, GROUP_{M})
    rows = (first + within % height).to(tl.int64) * TILE_{M} + tl.arange(0, TILE_{M})[:, None]
    columns = (within // height).to(tl.int64) * TILE_{N} + tl.arange(0, TILE_{N})[None, :]
    total = tl.zeros((TILE_{M}, TILE_{N}), tl.float32)
    for start in range(0, {K}, TILE_{K}):
        across = start + tl.arange(0, TILE_{K}).to(tl.int64)[None, :]
        down = start + tl.arange(0, TILE_{K}).to(tl.int64)[:, None]
        left = tl.load({left_at}, mask=(rows < {M}) & (across < {K}), other=0.0)
        right = tl.load({right_at}, mask=(down < {K}) & (columns < {N}), other=0.0)
        total = tl.dot(left, right, total{precision})
    inside = (rows < {M}) & (columns < {N})'''

LAUNCH = """    grid = (triton.cdiv({M}, config.TILE_{M}) * triton.cdiv({N}, config.TILE_{N}),)
    given = ({tensors}, {M}, {N}, {K})
    return tw.Launch({name}, grid, (*given, config.TILE_{M}, config.TILE_{N}, config.TILE_{K}, config.GROUP_{M}))
"""

SPACE = """        constants={{
            "TILE_{M}": (128, 64, 256), "TILE_{N}": (128, 64, 256), "TILE_{K}": (64, 32, 128), "GROUP_{M}": (8,),
        }},
        hints={{"route": ("ptx", "tileir"), "num_warps": (8, 4, None), "occupancy": (None, 1, 2)}},
        shipped={{
            "TILE_{M}": 128, "TILE_{N}": 128, "TILE_{K}": 64, "GROUP_{M}": 8,
            "route": "ptx", "num_warps": 8, "occupancy": None,
        }},
        where=[
            lambda route, num_warps, occupancy: (occupancy if route == "ptx" else num_warps) is None,
            lambda TILE_{M}, TILE_{N}, TILE_{K}: TILE_{M} * TILE_{N} * TILE_{K} <= 128 * 256 * 64,
        ],"""


class EpilogueStatements(TritonStatements):
    """The lines after the product. All values are two-dimensional tiles."""

    def address(self, operand: Operand) -> str:
        rows, columns = self.form.axes
        place = {
            (True, True): f" + rows * {columns} + columns", (True, False): " + rows", (False, True): " + columns",
        }  # fmt: skip
        return f"{operand.name}_ptr{place.get((rows in operand.shape, columns in operand.shape), '')}"

    def guard(self, operand: Operand) -> str:
        own = {(True, True): "inside", (True, False): f"rows < {self.form.axes[0]}"}
        own[False, True] = f"columns < {self.form.axes[1]}"
        return own.get((self.form.axes[0] in operand.shape, self.form.axes[1] in operand.shape), "")


def write_product(form: KernelForm, name: str, product: Product) -> KernelText:
    """Generates the kernel, its launch and its space."""
    names = dict(zip("MNK", (*form.axes, product.inner), strict=True))
    tensors = [*form.computation.inputs, *(each for each, _ in form.computation.outputs)]
    used = ["total", "rows", "left", "right", "within", "first", "height", "across", "down"]
    body = EpilogueStatements(form, [*taken(form), *used, *names.values()])
    body.bound[product.expression] = "total"
    body.lines = [HEAD.format(
        name=name, pointers=", ".join(f"{each.name}_ptr" for each in tensors), right=product.right.name,
        left_at=_address(product.left, product.left_transposed, "rows", "across"),
        right_at=_address(product.right, product.right_transposed, "down", "columns"),
        precision=', input_precision="ieee"' if product.left.dtype == "float32" else "", **names,
    )]  # fmt: skip
    for operand, value in form.computation.outputs:
        body.store(operand, value)
    text = body.finished()
    launch = LAUNCH.format(name=name, tensors=", ".join(each.name for each in tensors), **names)
    return KernelText(imports_of(text), text, launch, SPACE.format(**names))


def _address(operand: Operand, transposed: bool, slow: str, fast: str) -> str:
    if transposed:
        slow, fast = fast, slow
    return f"{operand.name}_ptr + {slow} * {operand.shape[1]} + {fast}"
