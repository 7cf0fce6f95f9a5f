"""Generates the cuTile code of a product of two matrices, with the epilogue that is computed before the store."""

from __future__ import annotations

from tilewright.specialists.writing.cutile import CuTileStatements, helpers_of, imports_of, taken
from tilewright.specialists.writing.expression import Operand
from tilewright.specialists.writing.forms import KernelForm, Product
from tilewright.specialists.writing.product_space import CUTILE, CUTILE_FLOAT32
from tilewright.specialists.writing.task_file import KernelText

HEAD = '''@ct.kernel
def {name}(
    {tensors},
    TILE_{M}: ct.Constant[int], TILE_{N}: ct.Constant[int], TILE_{K}: ct.Constant[int], GROUP_{M}: ct.Constant[int],
    LATENCY: ct.Constant[int], TMA: ct.Constant[bool],
):
    """Each block computes several tiles of the product. GROUP_{M} rows of tiles share columns of {right} in L2."""
    ZERO = ct.PaddingMode.ZERO
    blocks_{M}, blocks_{N} = ct.cdiv({rows}, TILE_{M}), ct.cdiv({columns}, TILE_{N})
    for tile in range(ct.bid(0), blocks_{M} * blocks_{N}, ct.num_blocks(0)):
        within = tile % (GROUP_{M} * blocks_{N})
        first = tile // (GROUP_{M} * blocks_{N}) * GROUP_{M}
        height = min(blocks_{M} - first, GROUP_{M})
        at_{M}, at_{N} = first + within % height, within // height
        total = ct.zeros((TILE_{M}, TILE_{N}), ct.float32)
        for k in range(ct.cdiv({inner}, TILE_{K})):
            left = {left_at}
            right = {right_at}
            total = ct.mma(left, right, total)'''

LAUNCH = """    tiles = -(-{M} // config.TILE_{M}) * -(-{N} // config.TILE_{N})
    grid = (min(tiles, hardware.sms * config.BLOCKS_PER_SM // (config.num_ctas or 1)),)
    sizes = (config.TILE_{M}, config.TILE_{N}, config.TILE_{K}, config.GROUP_{M}, config.LATENCY)
    tma = min({M}, {N}) > 1  # by TMA, tileiras 13.4 would store a product of one row or column beyond its end
    return tw.Launch({name}, grid, ({tensors}, *sizes, tma))
"""


def write_product(form: KernelForm, name: str, product: Product) -> KernelText:
    """Generates the kernel, its launch and its space."""
    names = dict(zip("MNK", (*form.axes, product.inner), strict=True))
    tensors = ", ".join(each.name for each in (*form.computation.inputs, *(out for out, _ in form.computation.outputs)))
    used = ["total", "left", "right", "tile", "within", "first", "height", "LATENCY", "TMA"]
    body = CuTileStatements(form, [*taken(form), *used])
    body.bound[product.expression], body.indent, body.store_options = "total", "        ", ", allow_tma=TMA"
    body.lines = [HEAD.format(
        name=name, tensors=tensors, right=product.right.name, rows=body.extent(form.axes[0]),
        columns=body.extent(form.axes[1]), inner=body.extent(product.inner),
        left_at=_load(product.left, product.left_transposed, product.inner),
        right_at=_load(product.right, product.right_transposed, product.inner), **names,
    )]  # fmt: skip
    for operand, value in form.computation.outputs:
        body.store(operand, value)
    text, candidates = body.finished(), CUTILE_FLOAT32 if product.left.dtype == "float32" else CUTILE
    launch = LAUNCH.format(name=name, tensors=tensors, **names)
    return KernelText(imports_of(text), helpers_of(text) + text, launch, candidates.space(names))


def _load(operand: Operand, transposed: bool, inner: str) -> str:
    index = ", ".join("k" if axis == inner else f"at_{axis}" for axis in operand.shape)
    shape = ", ".join(f"TILE_{axis}" for axis in operand.shape)
    text = f"ct.load({operand.name}, ({index}), ({shape}), padding_mode=ZERO, latency=LATENCY)"
    return f"ct.transpose({text})" if transposed else text
