"""Generates the cuTile code of a product of two matrices, with the epilogue that is computed before the store."""

from __future__ import annotations

from tilewright.specialists.writing.cutile import CuTileStatements, helpers_of, imports_of, taken
from tilewright.specialists.writing.expression import Operand
from tilewright.specialists.writing.forms import KernelForm, Product
from tilewright.specialists.writing.task_file import KernelText

HEAD = '''@ct.kernel
def {name}(
    {tensors},
    TILE_{M}: ct.Constant[int], TILE_{N}: ct.Constant[int], TILE_{K}: ct.Constant[int], GROUP_{M}: ct.Constant[int],
):
    """One block computes one tile of the product. GROUP_{M} rows of tiles share columns of {right} in L2."""
    ZERO = ct.PaddingMode.ZERO
    blocks_{M}, blocks_{N} = ct.cdiv({rows}, TILE_{M}), ct.cdiv({columns}, TILE_{N})
    within = ct.bid(0) % (GROUP_{M} * blocks_{N})
    first = ct.bid(0) // (GROUP_{M} * blocks_{N}) * GROUP_{M}
    height = min(blocks_{M} - first, GROUP_{M})
    at_{M}, at_{N} = first + within % height, within // height
    total = ct.zeros((TILE_{M}, TILE_{N}), ct.float32)
    for k in range(ct.cdiv({inner}, TILE_{K})):
        left = {left_at}
        right = {right_at}
        total = ct.mma(left, right, total)'''

LAUNCH = """    grid = (-(-{M} // config.TILE_{M}) * -(-{N} // config.TILE_{N}),)
    given = ({tensors})
    return tw.Launch({name}, grid, (*given, config.TILE_{M}, config.TILE_{N}, config.TILE_{K}, config.GROUP_{M}))
"""

SPACE = """        constants={{
            "TILE_{M}": (128, 64, 256), "TILE_{N}": (128, 64, 256), "TILE_{K}": (64, 32, 128), "GROUP_{M}": (8,),
        }},
        hints={{"occupancy": (None, 1, 2)}},
        shipped={{"TILE_{M}": 128, "TILE_{N}": 128, "TILE_{K}": 64, "GROUP_{M}": 8, "occupancy": None}},
        where=[lambda TILE_{M}, TILE_{N}, TILE_{K}: TILE_{M} * TILE_{N} * TILE_{K} <= 128 * 256 * 64],"""


def write_product(form: KernelForm, name: str, product: Product) -> KernelText:
    """Generates the kernel, its launch and its space."""
    names = dict(zip("MNK", (*form.axes, product.inner), strict=True))
    tensors = ", ".join(each.name for each in (*form.computation.inputs, *(out for out, _ in form.computation.outputs)))
    used = ["total", "left", "right", "within", "first", "height"]
    body = CuTileStatements(form, [*taken(form), *used])
    body.bound[product.expression] = "total"
    body.lines = [HEAD.format(
        name=name, tensors=tensors, right=product.right.name, rows=body.extent(form.axes[0]),
        columns=body.extent(form.axes[1]), inner=body.extent(product.inner),
        left_at=_load(product.left, product.left_transposed, product.inner),
        right_at=_load(product.right, product.right_transposed, product.inner), **names,
    )]  # fmt: skip
    for operand, value in form.computation.outputs:
        body.store(operand, value)
    text = body.finished()
    launch = LAUNCH.format(name=name, tensors=tensors, **names)
    return KernelText(imports_of(text), helpers_of(text) + text, launch, SPACE.format(**names))


def _load(operand: Operand, transposed: bool, inner: str) -> str:
    index = ", ".join("k" if axis == inner else f"at_{axis}" for axis in operand.shape)
    shape = ", ".join(f"TILE_{axis}" for axis in operand.shape)
    text = f"ct.load({operand.name}, ({index}), ({shape}), padding_mode=ZERO)"
    return f"ct.transpose({text})" if transposed else text
