"""Generates kernels in CuTe DSL: element-wise computations, by vectors of consecutive columns."""

from __future__ import annotations

import re

from tilewright.languages.cutedsl.tracing import TYPES
from tilewright.specialists.writing.cheaper import ADDED_POWER, BOUNDED_QUOTIENT
from tilewright.specialists.writing.expression import Expression, Operand, OutsideForms, below
from tilewright.specialists.writing.forms import KernelForm
from tilewright.specialists.writing.statements import Statements
from tilewright.specialists.writing.task_file import KernelText, space_text

FUNCTIONS = {
    **{name: f"cute.math.{name}({{}})" for name in (
        "exp", "exp2", "log", "log2", "sqrt", "rsqrt", "erf", "sin", "cos", "floor", "ceil", "abs", "tanh", "log1p",
        "expm1")},
    **{name: f"{name}({{}}, {{}})" for name in ("maximum", "minimum")}, "where": "where({}, {}, {})",
    ADDED_POWER: "cute.math.exp2({})", BOUNDED_QUOTIENT: "(({}) / ({}))",
}  # fmt: skip
HELPERS = {
    "maximum": '''
def maximum(x, y):
    """The larger of x and y. NaN if one is NaN."""
    return where((x > y) | (x != x), x, y)
''',
    "minimum": '''
def minimum(x, y):
    """The smaller of x and y. NaN if one is NaN."""
    return where((x < y) | (x != x), x, y)
''',
    "where": '''
def where(test, x, y):
    """x where the test is true, else y. Both may be numbers."""
    if not isinstance(x, cute.TensorSSA) and not isinstance(y, cute.TensorSSA):
        x = cute.full_like(test, x, cutlass.Float32)
    return cute.where(test, x, y)
''',
}
"""Functions of a task file, each before those that it calls."""
IMPORTS = ("import cuda.bindings.driver as cuda", "import cutlass", "import cutlass.cute as cute")
VECTORS = '''
def vectors(tensor, shape, stride):
    """The tensor as vectors: (VECTOR, place). An axis that the tensor lacks has stride 0."""
    layout = cute.coalesce(cute.make_layout(shape, stride=stride), target_profile=(1, 1))
    return cute.make_tensor(tensor.iterator, layout)
'''
KERNEL = '''@cute.kernel
def {name}_of_vectors({parameters}, THREADS: cutlass.Constexpr):
    """Each thread computes one vector."""
    place = cutlass.Int64(cute.arch.block_idx()[0]) * THREADS + cute.arch.thread_idx()[0]
    if place < cute.size({first}, mode=[1]):'''
HOST = """

@cute.jit
def {name}(
    {parameters}, VECTOR: cutlass.Constexpr, THREADS: cutlass.Constexpr,
    stream: cuda.CUstream,
):
    shape = (VECTOR, {places})
{views}
    grid = (cute.ceil_div({size} // VECTOR, THREADS), 1, 1)
    {name}_of_vectors({given}, THREADS).launch(grid=grid, block=(THREADS, 1, 1), stream=stream)
"""
LAUNCH = """    vector = math.gcd({along}, config.VECTOR)  # whole vectors, so that none crosses the end
    threads = {size} // vector
    return tw.Launch({name}, (-(-threads // config.THREADS),), ({tensors}, vector, config.THREADS))
"""


class CuteStatements(Statements):
    """The body of a kernel. A value is a vector of float32, or a number."""

    functions = FUNCTIONS
    module, inf = "cute", 'float("inf")'

    def extent(self, axis: str) -> str:
        return f"{axis}_extent"

    def index(self) -> str:
        raise OutsideForms("an index, which is not written in CuTe DSL")

    def reduced(self, op: str, values: str, expression: Expression) -> str:
        raise OutsideForms("a row reduction, which is not written in CuTe DSL; element-wise and products are")

    def load(self, tensor: Expression) -> str:
        operand = next(each for each in self.form.computation.inputs if each.name == tensor.value)
        return converted(operand, f"{operand.name}_t[None, place].load()")

    def store(self, operand: Operand, value: Expression) -> None:
        """Adds the store of one output."""
        text = self.stored(value, operand.name)
        self.add(f"{operand.name}_t[None, place].store({text}.to(cutlass.{TYPES[operand.dtype]}))")

    def written(self, expression: Expression) -> tuple[str, int]:
        if expression.op == "not":  # there is no ~ of a vector of booleans in 4.8.1
            return self.functions["where"].format(self.text(expression.operands[0]), "0.0", "1.0") + " != 0.0", 2
        return super().written(expression)


def converted(operand: Operand, text: str) -> str:
    """Returns the text of loaded values as the computation uses them."""
    if operand.dtype == "bool":
        return f"({text} != 0)"
    return f"{text}.to(cutlass.Float32)" if operand.dtype in ("bfloat16", "float16") else text


def taken(form: KernelForm) -> list[str]:
    """Returns the names that variables of a kernel must not have."""
    modules = ("cute", "cutlass", "cuda", "tw", "np", "math")
    return [*form.axes, *modules, *HELPERS, "place", "vectors", "THREADS", "VECTOR", "stream"]


def extents_of(form: KernelForm) -> list[str]:
    """Returns the axes whose sizes are numbers of the computation."""
    used = (str(each.value) for each in below(form.computation.results) if each.op == "extent")
    return list(dict.fromkeys(used))


def helpers_of(text: str) -> str:
    """Returns the functions that a kernel's text calls, and those that these call."""
    found = ""
    for name, helper in HELPERS.items():
        if re.search(rf"(?<![\w.]){name}\(", text + found):
            found += helper + "\n"
    return found


def write(form: KernelForm, name: str, plain: bool = False) -> KernelText:
    """Generates the kernel of an element-wise form. Raises OutsideForms for row reductions."""
    if form.name != "element-wise":
        raise OutsideForms(f"{form.name}, which is not written in CuTe DSL; element-wise and products are")
    tensors = [*form.computation.inputs, *(each for each, _ in form.computation.outputs)]
    sizes = extents_of(form)
    body = CuteStatements(form, taken(form))
    parameters = [*(f"{each.name}_t: cute.Tensor" for each in tensors),
                  *(f"{axis}_extent: cutlass.Constexpr" for axis in sizes)]  # fmt: skip
    body.lines = [KERNEL.format(name=name, parameters=", ".join(parameters), first=f"{tensors[-1].name}_t")]
    body.indent = "        "
    for operand, value in form.computation.outputs:
        body.store(operand, value)
    text = body.finished() + _host(form, name, tensors, sizes)
    launch = LAUNCH.format(
        name=name, along=" * ".join(form.axes) if form.same_shapes else form.columns, size=" * ".join(form.axes),
        tensors=", ".join(each.name for each in tensors),
    )  # fmt: skip
    constants = {"VECTOR": (4, 8, 16) if plain else (8, 4, 16), "THREADS": (256, 128, 512)}
    return KernelText(("import math", *IMPORTS), f"{helpers_of(text)}{VECTORS.lstrip()}\n\n{text}", launch,
                      space_text(constants, {}), check_needs="a GPU")  # fmt: skip


def _host(form: KernelForm, name: str, tensors: list[Operand], sizes: list[str]) -> str:
    """Returns the host function, which gives each tensor the axes of the output."""
    out = tensors[-1]
    extent = {axis: f"{out.name}_t.shape[{out.shape.index(axis)}]" for axis in form.axes}
    columns, *rows = reversed(form.axes)
    size, views = " * ".join(extent[axis] for axis in form.axes), []
    places = ", ".join((f"{extent[columns]} // VECTOR", *(extent[axis] for axis in rows)))
    for each in () if form.same_shapes else tensors:
        strides = {axis: f"{each.name}_t.stride[{each.shape.index(axis)}]" for axis in form.axes if axis in each.shape}
        along = strides.get(columns, "0")
        others = "".join(f", {strides.get(axis, '0')}" for axis in rows)
        views.append(f"    {each.name}_v = vectors({each.name}_t, shape, ({along}, ({along} * VECTOR{others})))")
    if form.same_shapes:  # each tensor is one contiguous range
        places = f"{size} // VECTOR"
        views = [f"    {each.name}_v = vectors({each.name}_t, shape, (1, VECTOR))" for each in tensors]
    return HOST.format(
        name=name, parameters=", ".join(f"{each.name}_t: cute.Tensor" for each in tensors),
        places=places if form.same_shapes else f"({places})", views="\n".join(views), size=size,
        given=", ".join([*(f"{each.name}_v" for each in tensors), *(f"{extent[axis]} * 1.0" for axis in sizes)]),
    )  # fmt: skip
