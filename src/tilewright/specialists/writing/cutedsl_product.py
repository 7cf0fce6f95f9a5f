"""Generates the CuTe DSL code of a product of two matrices for Hopper, with the epilogue that is computed before the
store.

The pattern is the shipped example ``cute_gemm``: its two files of kernels become one. The dtype, the memory order of
the operands and the epilogue are inserted.
"""

from __future__ import annotations

import ast

from tilewright.languages.cutedsl.tracing import TYPES
from tilewright.specialists.writing.cutedsl import IMPORTS, CuteStatements, converted, helpers_of, taken
from tilewright.specialists.writing.expression import Expression, Operand, OutsideForms
from tilewright.specialists.writing.forms import KernelForm, Product
from tilewright.specialists.writing.product_space import dictionary_text
from tilewright.specialists.writing.task_file import KernelText
from tilewright.task.examples import examples_folder

FILES = ("gemm_roles.py", "hopper_gemm.py")
DTYPES = ("bfloat16", "float16")
EPILOGUE = '''

def epilogue(product{parameters}):
    """The output from the product. All values are those of one thread."""
{lines}
    return {result}
'''
FINISH = '''
    @cute.jit
    def finish(self, total, out, m, n, mma, part, tensors):
        """Computes the output, WIDTH elements of a thread at a time. Elements beyond the end of a tensor are 0."""
        places, *values = (
            mma.get_slice(part).partition_C(cute.local_tile(each, self.TILE[:2], (m, n)))
            for each in (cute.make_identity_tensor(tensors[0].shape), *tensors)
        )
        for start in cutlass.range_constexpr(0, cute.size(total), WIDTH):
            product = cute.make_rmem_tensor(WIDTH, TOTAL)
            read = [cute.make_rmem_tensor(WIDTH, each.element_type) for each in tensors]
            for i in cutlass.range_constexpr(WIDTH):
                product[i] = total[start + i]
                for tensor in cutlass.range_constexpr(len(tensors)):
                    read[tensor][i] = read[tensor].element_type(0)
                    if cute.elem_less(places[start + i], tensors[0].shape):
                        read[tensor][i] = values[tensor][start + i]
            made = cute.make_rmem_tensor(WIDTH, DTYPE)
            made.store(epilogue(product.load(), *(each.load() for each in read)).to(DTYPE))
            for i in cutlass.range_constexpr(WIDTH):
                out[start + i] = made[i]
'''
WIDTH = "\n\nWIDTH = 8  # elements of a thread that the epilogue computes at a time\n"
LAUNCH = """    tile, cluster = (config.TILE_M, config.TILE_N, config.TILE_K), (config.CLUSTER_M, config.CLUSTER_N)
    clusters = -(-{M} // (tile[0] * cluster[0])) * -(-{N} // (tile[1] * cluster[1]))
    if config.PERSISTENT:
        clusters = min(clusters, hardware.sms // (cluster[0] * cluster[1]))
    gemm = Gemm(tile, cluster, config.SCHEDULE == "pingpong", config.SWIZZLE, clusters)
    return tw.Launch(gemm, (clusters,), ({tensors}))
"""
CONSTANTS = {
    "TILE_M": (128, 64, 256), "TILE_N": (256, 128), "TILE_K": (64,), "CLUSTER_M": (2, 1), "CLUSTER_N": (1, 2),
    "SCHEDULE": ("cooperative", "pingpong"), "PERSISTENT": (True, False), "SWIZZLE": (8, 1),
}  # fmt: skip
WHERE = (
    'lambda TILE_M, SCHEDULE: TILE_M >= (64 if SCHEDULE == "pingpong" else 128)',
    'lambda TILE_M, TILE_N, SCHEDULE: TILE_M * TILE_N <= 128 * (128 if SCHEDULE == "pingpong" else 256)',
    "lambda CLUSTER_M, CLUSTER_N: CLUSTER_M * CLUSTER_N <= 2",
    'lambda SCHEDULE, PERSISTENT: PERSISTENT or SCHEDULE == "cooperative"',
)
"""The constraints of the example's space: accumulators fit into registers, and pingpong has several tiles."""


class CuteEpilogue(CuteStatements):
    """The lines of the epilogue. A value is a vector of one thread's elements."""

    def load(self, tensor: Expression) -> str:
        operand = next(each for each in self.form.computation.inputs if each.name == tensor.value)
        return converted(operand, f"{operand.name}_t")

    def extent(self, axis: str) -> str:
        raise OutsideForms(f"the size of {axis} in the epilogue of a product, which is not written in CuTe DSL")


def write_product(form: KernelForm, name: str, product: Product) -> KernelText:
    """Generates the kernel, its launch and its space. Raises OutsideForms for other dtypes than those of `DTYPES`."""
    (out, value), *others = form.computation.outputs
    dtypes = {product.left.dtype, product.right.dtype, out.dtype}
    if others or len(dtypes) > 1 or out.dtype not in DTYPES:
        what = f"a product with {len(others) + 1} outputs, of {', '.join(sorted(dtypes))}"
        raise OutsideForms(f"{what}; in CuTe DSL, one output is written, of the operands' dtype: {' or '.join(DTYPES)}")
    extras = [each for each in form.computation.inputs if each not in (product.left, product.right)]
    kernels = _with_operands(_pattern(), product, form, extras, out)
    kernels += _epilogue(form, product, value, extras)
    kernels = kernels.replace("cutlass.BFloat16", f"cutlass.{TYPES[out.dtype]}")
    names = dict(zip("MNK", (*form.axes, product.inner), strict=True))
    tensors = ", ".join(each.name for each in (product.left, product.right, *extras, out))
    rows = dict.fromkeys(str(each.shape[-1]) for each in (product.left, product.right, out))
    imports, kernels = _imports(kernels)
    return KernelText(
        imports, kernels, LAUNCH.format(tensors=tensors, **names), _space(),
        serves=" and ".join(f"{axis} % 8 == 0" for axis in rows), odd=(1000, 520, 3000), check_needs="a GPU",
    )  # fmt: skip


def _space() -> str:
    shipped = {name: values[0] for name, values in CONSTANTS.items()}
    where = "".join(f"            {each},\n" for each in WHERE)
    parts = (dictionary_text("constants", CONSTANTS), dictionary_text("shipped", shipped))
    return "\n".join((*parts, f"        where=[\n{where}        ],"))


def _pattern() -> str:
    """Returns the text of the example's kernels. The second file imports the first, which becomes a part of it."""
    folder = examples_folder() / "cute_dsl"
    texts = [(folder / file).read_text(encoding="utf-8") for file in FILES]
    bodies = [text.split('"""\n', 1)[1] for text in texts]
    return "\n\n".join(line for line in bodies).replace(
        "from cute_dsl.gemm_roles import DTYPE, GROUP, TOTAL, Roles\n", ""
    )


def _imports(text: str) -> tuple[tuple[str, ...], str]:
    """Returns the imports of a text, and the text without them."""
    nodes = [node for node in ast.parse(text).body if isinstance(node, ast.Import | ast.ImportFrom)]
    lines, left = text.splitlines(), set(range(len(text.splitlines())))
    for node in nodes:
        left -= set(range(node.lineno - 1, node.end_lineno or node.lineno))
    kept = "\n".join(lines[at] for at in sorted(left)).strip("\n") + "\n"
    while "\n\n\n\n" in kept:
        kept = kept.replace("\n\n\n\n", "\n\n\n")
    return (*IMPORTS, *(ast.unparse(node) for node in nodes)), kept


def _with_operands(text: str, product: Product, form: KernelForm, extras: list[Operand], out: Operand) -> str:
    """Returns the kernels with the operands' memory order, and with the tensors that the epilogue reads."""
    views = []
    if product.left_transposed:
        views.append("        a = cute.make_tensor(a.iterator, cute.select(a.layout, mode=[1, 0]))\n")
        text = _replaced(text, "make_smem_layout_a(LayoutEnum.ROW_MAJOR", "make_smem_layout_a(LayoutEnum.COL_MAJOR")
        text = _replaced(text, "DTYPE, DTYPE, OperandMajorMode.K,", "DTYPE, DTYPE, OperandMajorMode.MN,")
    view = "        b = cute.make_tensor(b.iterator, cute.select(b.layout, mode=[1, 0]))  # (N, K), as WGMMA has it\n"
    if product.right_transposed:
        text = _replaced(text, "make_smem_layout_b(LayoutEnum.COL_MAJOR", "make_smem_layout_b(LayoutEnum.ROW_MAJOR")
        text = _replaced(text, "OperandMajorMode.MN, TOTAL", "OperandMajorMode.K, TOTAL")
    else:
        views.append(view)
    for each in extras:
        strides = [
            f"{each.name}_t.stride[{each.shape.index(axis)}]" if axis in each.shape else "0" for axis in form.axes
        ]
        shape = "cute.make_layout(c.shape, stride=({}, {}))".format(*strides)
        views.append(f"        {each.name}_t = cute.make_tensor({each.name}_t.iterator, {shape})\n")
    text = _replaced(text, view, "".join(views))
    given = "".join(f", {each.name}_t" for each in extras)
    parameters = "".join(f"{each.name}_t: cute.Tensor, " for each in extras)
    text = _replaced(text, "b: cute.Tensor, c: cute.Tensor,", f"b: cute.Tensor, {parameters}c: cute.Tensor,")
    text = _replaced(text, "(a, b, c), a_l, b_l, c_l, stages)", f"(a, b, c), a_l, b_l, c_l, stages{given})")
    text = _replaced(
        text, "stages: cutlass.Constexpr):", f"stages: cutlass.Constexpr, {parameters}".rstrip(", ") + "):"
    )
    text = _replaced(text, "*out, warp, blocks)", f"*out, warp, blocks{given})")
    text = _replaced(text, "out_s, out_g, warp, blocks):", f"out_s, out_g, warp, blocks{given}):")
    if not extras:
        return _replaced(text, "out.store(total.load().to(DTYPE))", "out.store(epilogue(total.load()).to(DTYPE))")
    finished = f"self.finish(total, out, m, n, mma, part, ({', '.join(f'{each.name}_t' for each in extras)},))"
    text = _replaced(text, "out.store(total.load().to(DTYPE))", finished)
    return _replaced(text, "\n\nclass Roles:\n", f"{WIDTH}\n\nclass Roles:{FINISH}\n")


def _replaced(text: str, old: str, new: str) -> str:
    assert text.count(old) == 1, f"the pattern has {old!r} {text.count(old)} times"
    return text.replace(old, new)


def _epilogue(form: KernelForm, product: Product, value: Expression, extras: list[Operand]) -> str:
    body = CuteEpilogue(form, [*taken(form), "product", "epilogue"])
    body.bound[product.expression] = "product"
    result = body.text(value)
    text = EPILOGUE.format(
        parameters="".join(f", {each.name}_t" for each in extras), lines="\n".join(body.lines), result=result
    ).replace('"""\n\n    return', '"""\n    return')
    helpers = helpers_of(text)
    return text + ("\n\n" + helpers.strip("\n") + "\n" if helpers else "")
