"""Generates the Triton code of a product of two matrices, with the epilogue that is computed before the store.

Tensor descriptors load and store whole tiles. They need rows of a multiple of 16 bytes. A second kernel, with pointers,
computes all other shapes. Products in float32 use pointers only, because descriptors make them spill.
"""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.specialists.writing.expression import Expression, Operand
from tilewright.specialists.writing.forms import KernelForm, Product
from tilewright.specialists.writing.product_space import TRITON, TRITON_FLOAT32
from tilewright.specialists.writing.task_file import KernelText
from tilewright.specialists.writing.triton import TritonStatements, imports_of, taken

HEAD = '''@triton.jit
def {name}(
    {parameters}, {M}, {N}, {K},
    TILE_{M}: tl.constexpr, TILE_{N}: tl.constexpr, TILE_{K}: tl.constexpr, GROUP_{M}: tl.constexpr,
):
    """{about}"""
    blocks_{M}, blocks_{N} = tl.cdiv({M}, TILE_{M}), tl.cdiv({N}, TILE_{N})
    for tile in range(tl.program_id(0), blocks_{M} * blocks_{N}, tl.num_programs(0)):
        within = tile % (GROUP_{M} * blocks_{N})
        first = tile // (GROUP_{M} * blocks_{N}) * GROUP_{M}
        height = min(blocks_{M} - first, GROUP_{M})
        row, column = (first + within % height) * TILE_{M}, within // height * TILE_{N}
        rows = row.to(tl.int64) + tl.arange(0, TILE_{M})[:, None]
        columns = column.to(tl.int64) + tl.arange(0, TILE_{N})[None, :]
        total = tl.zeros((TILE_{M}, TILE_{N}), tl.float32)
        for start in range(0, {K}, TILE_{K}):
{loads}
            total = tl.dot(left, right, total{precision})
        inside = (rows < {M}) & (columns < {N})'''

BY_DESCRIPTORS = """            left = {left}
            right = {right}"""

BY_POINTERS = """            across = start + tl.arange(0, TILE_{K}).to(tl.int64)[None, :]
            down = start + tl.arange(0, TILE_{K}).to(tl.int64)[:, None]
            left = tl.load({left}, mask=(rows < {M}) & (across < {K}), other=0.0)
            right = tl.load({right}, mask=(down < {K}) & (columns < {N}), other=0.0)"""

ABOUT = "Each program computes several tiles of the product. GROUP_{M} rows of tiles share columns of {right} in L2."
ABOUT_POINTERS = "The same for rows of any extent, with pointers."

LAUNCH = """    tiles = triton.cdiv({M}, config.TILE_{M}) * triton.cdiv({N}, config.TILE_{N})
    grid = (min(tiles, hardware.sms * config.BLOCKS_PER_SM // (config.num_ctas or 1)),)
    sizes = ({M}, {N}, {K}, config.TILE_{M}, config.TILE_{N}, config.TILE_{K}, config.GROUP_{M})
"""
IF_POINTERS = """    before_tma = config.route == "ptx" and hardware.sm < 90  # Triton's descriptors are slow there
    if before_tma or {unaligned}:  # a descriptor needs rows of a multiple of 16 bytes
        return tw.Launch({name}_by_pointers, grid, ({tensors}, *sizes))
"""
RETURN = """    return tw.Launch({name}, grid, ({arguments}, *sizes))
"""


class EpilogueStatements(TritonStatements):
    """The lines after the product. All values are two-dimensional tiles."""

    described: frozenset[str] = frozenset()
    """The tensors that the kernel gets as descriptors."""

    def load(self, tensor: Expression) -> str:
        if tensor.value not in self.described:
            return super().load(tensor)
        is_row = len(tensor.shape) == 1
        tile = "load([column]).to(tl.float32)[None, :]" if is_row else "load([row, column]).to(tl.float32)"
        return f"{tensor.value}_desc.{tile}"

    def store(self, operand: Operand, value: Expression) -> None:
        name, text = operand.name, self.stored(value, operand.name)
        if name in self.described:
            self.add(f"{name}_desc.store([row, column], {text}.to({name}_desc.dtype))")
        else:
            super().store(operand, value)

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
    """Generates the kernels, their launch and their space."""
    names = dict(zip("MNK", (*form.axes, product.inner), strict=True))
    tensors, described = _tensors(form), _described(form, product)
    launch = LAUNCH.format(**names)
    if not described:
        text = _kernel(form, name, product, ())
        launch += RETURN.format(name=name, arguments=", ".join(each.name for each in tensors))
        return KernelText(imports_of(text), text, launch, TRITON_FLOAT32.space(names))
    text = f"{_kernel(form, name, product, described)}\n\n{_kernel(form, f'{name}_by_pointers', product, ())}"
    launch += IF_POINTERS.format(
        name=name, tensors=", ".join(each.name for each in tensors),
        unaligned=" or ".join(f"{axis} % 8" for axis in dict.fromkeys(str(each.shape[-1]) for each in described)),
    )  # fmt: skip
    for each in described:
        tile = ", ".join(f"config.TILE_{axis}" for axis in each.shape)
        launch += f"    {each.name}_desc = tw.descriptor({each.name}, [{tile}])\n"
    arguments = ", ".join(f"{each.name}_desc" if each in described else each.name for each in tensors)
    launch += RETURN.format(name=name, arguments=arguments)
    return KernelText(imports_of(text), text, launch, TRITON.space(names))


def _tensors(form: KernelForm) -> list[Operand]:
    return [*form.computation.inputs, *(each for each, _ in form.computation.outputs)]


def _described(form: KernelForm, product: Product) -> tuple[Operand, ...]:
    """Returns the tensors that the kernel gets as descriptors: matrices and rows of elements of two bytes.

    Tiles of wider elements would need too much shared memory.
    """
    if product.left.dtype == "float32":
        return ()
    wide = [each for each in _tensors(form) if each.shape in (form.axes, form.axes[1:])]
    return tuple(
        dict.fromkeys(each for each in (product.left, product.right, *wide) if each.dtype in ("bfloat16", "float16"))
    )


def _kernel(form: KernelForm, name: str, product: Product, described: Sequence[Operand]) -> str:
    names = dict(zip("MNK", (*form.axes, product.inner), strict=True))
    used = ["total", "rows", "left", "right", "tile", "within", "first", "height", "column", "across", "down"]
    body = EpilogueStatements(form, [*taken(form), *used, *names.values()])
    body.described = frozenset(each.name for each in described)
    body.bound[product.expression], body.indent = "total", "        "
    left, right = (product.left, product.left_transposed), (product.right, product.right_transposed)
    if described:
        loads = BY_DESCRIPTORS.format(left=_tile(*left, "row", "start"), right=_tile(*right, "start", "column"))
    else:
        addresses = {"left": _address(*left, "rows", "across"), "right": _address(*right, "down", "columns")}
        loads = BY_POINTERS.format(**addresses, **names)
    parameters = (f"{each.name}_{'desc' if each in described else 'ptr'}" for each in _tensors(form))
    body.lines = HEAD.format(
        name=name, parameters=", ".join(parameters),
        about=ABOUT.format(right=product.right.name, **names) if described else ABOUT_POINTERS, loads=loads,
        precision=', input_precision="ieee"' if product.left.dtype == "float32" else "", **names,
    ).splitlines()  # fmt: skip
    for operand, value in form.computation.outputs:
        body.store(operand, value)
    return body.finished()


def _tile(operand: Operand, transposed: bool, first: str, second: str) -> str:
    if transposed:
        return f"{operand.name}_desc.load([{second}, {first}]).T"
    return f"{operand.name}_desc.load([{first}, {second}])"


def _address(operand: Operand, transposed: bool, slow: str, fast: str) -> str:
    if transposed:
        slow, fast = fast, slow
    return f"{operand.name}_ptr + {slow} * {operand.shape[1]} + {fast}"
