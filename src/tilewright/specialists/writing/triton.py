"""Generates kernels in Triton."""

from __future__ import annotations

from collections.abc import Mapping

from tilewright.records import Value
from tilewright.specialists.writing.cheaper import ADDED_POWER, BOUNDED_QUOTIENT
from tilewright.specialists.writing.expression import FLOATS, Expression, Operand, below
from tilewright.specialists.writing.forms import KernelForm
from tilewright.specialists.writing.rows import ROW_TILES, long_row, other_code
from tilewright.specialists.writing.statements import Statements
from tilewright.specialists.writing.task_file import KernelText, space_text

FUNCTIONS = {
    **{name: f"tl.{name}({{}})" for name in (
        "exp", "exp2", "log", "log2", "sqrt", "rsqrt", "erf", "sin", "cos", "floor", "ceil", "abs")},
    **{name: f"libdevice.{name}({{}})" for name in ("tanh", "log1p", "expm1")},
    "maximum": "tl.maximum({}, {}, propagate_nan=tl.PropagateNan.ALL)",
    "minimum": "tl.minimum({}, {}, propagate_nan=tl.PropagateNan.ALL)",
    "where": "tl.where({}, {}, {})", ADDED_POWER: "tl.exp2({})",
    BOUNDED_QUOTIENT: "tl.fdiv({}, {})",
}  # fmt: skip
COMBINED = {"sum": "{0} + {1}", "max": "tl.maximum({0}, {1})", "min": "tl.minimum({0}, {1})"}
"""The expression of each reduction that combines two partial results."""


class TritonStatements(Statements):
    """The body of a kernel. Each program computes consecutive columns of one row."""

    functions = FUNCTIONS
    combined: Mapping[str, str] = COMBINED
    module, inf = "tl", 'float("inf")'
    flat = False
    """Whether each tensor is one contiguous range of memory. There is then one column for each element."""

    def extent(self, axis: str) -> str:
        return axis

    def index(self) -> str:
        return "columns"

    def load(self, tensor: Expression) -> str:
        operand = next(each for each in self.form.computation.inputs if each.name == tensor.value)
        inside = self.guard(operand)
        guard = f", mask={inside}, other={'0.0' if operand.dtype in FLOATS else '0'}" if inside else ""
        text = f"tl.load({self.address(operand)}{guard})"
        return f"{text}.to(tl.float32)" if operand.dtype in ("bfloat16", "float16") else text

    def store(self, operand: Operand, value: Expression) -> None:
        """Adds the store of one output."""
        guard = f", mask={self.guard(operand)}" if self.guard(operand) else ""
        self.add(f"tl.store({self.address(operand)}, {self.text(value)}{guard})")

    def guard(self, operand: Operand) -> str:
        """Returns the mask for this program's part of a tensor; "" if the whole part exists."""
        return "inside" if self.form.columns in operand.shape else ""

    def address(self, operand: Operand) -> str:
        """Returns the address of this program's part of a tensor."""
        if self.flat:
            return f"{operand.name}_ptr + start + place"
        axes = self.form.axes
        own = [axis for axis in operand.shape if isinstance(axis, str)]
        leading = [axis for axis in own if axis != axes[-1]]
        columns = " + columns" if axes[-1] in own else ""
        if not leading:
            return f"{operand.name}_ptr{columns}"
        if tuple(leading) == axes[:-1]:
            row = "row"
        else:
            row = self._row_of(leading)
        return f"{operand.name}_ptr + {row} * {axes[-1]}{columns}" if columns else f"{operand.name}_ptr + {row}"

    def _row_of(self, leading: list[str]) -> str:
        """Returns the row index of a tensor that has only some of the leading axes."""
        text = ""
        for axis in leading:
            place = coordinate("row", self.form.axes[:-1], axis)
            text = f"({text} * {axis} + {place})" if text else place
        return text if text.startswith("(") else f"({text})"

    def reduced(self, op: str, values: str, expression: Expression) -> str:
        return f"tl.{op}({values}, 0)"

    def enter_loop(self) -> None:
        """Adds the head of a loop over the tiles of a row."""
        tile, columns = f"TILE_{self.form.columns}", self.form.columns
        self.add(f"for start in range(0, {columns}, {tile}):")
        self.indent += "    "
        self.add(f"columns = start + tl.arange(0, {tile})")
        self.add(f"inside = columns < {columns}")


def coordinate(row: str, axes: tuple[str, ...], axis: str) -> str:
    """Returns the text of a row's coordinate along ``axis``. ``row``: the row's index, counted over all ``axes``."""
    at = axes.index(axis)
    after = " * ".join(axes[at + 1 :])
    place = f"{row} // ({after})" if after else row
    return f"{place} % {axis}" if at else place


def kernels(form: KernelForm, name: str, plain: bool) -> str:
    """Returns the text of the kernels of an element-wise computation, or of row reductions."""
    if form.name == "element-wise":
        return _flat(form, name) if _is_flat(form, plain) else _broadcast(form, name)
    return _long_row(form, name) if plain else _row(form, name) + "\n\n" + _long_row(form, name)


def arguments(form: KernelForm, plain: bool = False) -> list[str]:
    """Returns the arguments of a launch that come before the tile sizes."""
    tensors = [*(each.name for each in form.computation.inputs), *(each.name for each, _ in form.computation.outputs)]
    return [*tensors, " * ".join(form.axes)] if _is_flat(form, plain) else [*tensors, *sizes(form)]


def sizes(form: KernelForm) -> list[str]:
    """Returns the axes whose sizes a kernel needs: the columns, and leading axes that some tensor lacks."""
    rows = form.axes[:-1]
    tensors = [*form.computation.inputs, *(each for each, _ in form.computation.outputs)]
    parts = [[axis for axis in each.shape if axis in rows] for each in tensors]
    extents = {str(each.value) for each in _extents(form)}
    partial = any(part and tuple(part) != rows for part in parts)
    return [axis for axis in form.axes if axis == form.columns or axis in extents or (partial and axis != rows[0])]


def _extents(form: KernelForm) -> list[Expression]:
    return [each for each in below(form.computation.results) if each.op == "extent"]


def _is_flat(form: KernelForm, plain: bool = False) -> bool:
    return form.name == "element-wise" and form.same_shapes and not plain and not _extents(form)


def _head(form: KernelForm, name: str, about: str, last: list[str], tile: str) -> list[str]:
    tensors = [*form.computation.inputs, *(each for each, _ in form.computation.outputs)]
    given = ", ".join([*(f"{each.name}_ptr" for each in tensors), *last, f"{tile}: tl.constexpr"])
    return ["@triton.jit", f"def {name}({given}):", f'    """{about}"""']


def taken(form: KernelForm) -> list[str]:
    """Returns the names that variables of a kernel must not have."""
    return [
        *form.axes,
        "row",
        "columns",
        "inside",
        "start",
        "place",
        "size",
        "tl",
        "tw",
        "np",
        "libdevice",
        "TILE",
        f"TILE_{form.columns}",
    ]


def _finished(body: TritonStatements) -> str:
    for operand, value in body.form.computation.outputs:
        body.store(operand, value)
    return body.finished()


def _flat(form: KernelForm, name: str) -> str:
    body = TritonStatements(form, taken(form))
    body.flat = True
    body.lines = _head(form, name, "One program computes TILE elements.", ["size"], "TILE")
    body.add("start = tl.program_id(0).to(tl.int64) * TILE  # beyond 32 bits for large tensors")
    body.add("place = tl.arange(0, TILE)")
    body.add("inside = place < size - start")
    return _finished(body)


def _broadcast(form: KernelForm, name: str) -> str:
    body, tile, columns = TritonStatements(form, taken(form)), f"TILE_{form.columns}", form.columns
    body.lines = _head(form, name, f"One program computes {tile} columns of one row.", sizes(form), tile)
    if len(form.axes) > 1:
        body.add(f"blocks = tl.cdiv({columns}, {tile})")
        body.add("row = (tl.program_id(0) // blocks).to(tl.int64)  # its address may be beyond 32 bits")
        body.add(f"columns = tl.program_id(0) % blocks * {tile} + tl.arange(0, {tile})")
    else:
        body.add(f"columns = tl.program_id(0).to(tl.int64) * {tile} + tl.arange(0, {tile})")
    body.add(f"inside = columns < {columns}")
    return _finished(body)


def _row(form: KernelForm, name: str) -> str:
    body, tile = TritonStatements(form, taken(form)), f"TILE_{form.columns}"
    body.lines = _head(form, name, f"One program computes one row of at most {tile} columns.", sizes(form), tile)
    body.add("row = tl.program_id(0).to(tl.int64)  # its address may be beyond 32 bits")
    body.add(f"columns = tl.arange(0, {tile})")
    body.add(f"inside = columns < {form.columns}")
    return _finished(body)


def _long_row(form: KernelForm, name: str) -> str:
    body, tile = TritonStatements(form, taken(form)), f"TILE_{form.columns}"
    about = f"One program computes one row of any length, {tile} columns at a time."
    body.lines = _head(form, f"{name}_long_rows", about, sizes(form), tile)
    body.add("row = tl.program_id(0).to(tl.int64)  # its address may be beyond 32 bits")
    long_row(body)
    return body.finished()


FITS_ROUTE = 'lambda route, num_warps, occupancy: (num_warps if route == "tileir" else occupancy) is None'
WARPS_IN_PTX = 'lambda route, num_warps: route == "tileir" or num_warps is not None'


def imports_of(text: str) -> tuple[str, ...]:
    """Returns the imports that the kernels' text needs."""
    libdevice = ("from triton.language.extra import libdevice",) if "libdevice." in text else ()
    return ("import triton", "import triton.language as tl", *libdevice)


def write(form: KernelForm, name: str, plain: bool = False) -> KernelText:
    """Generates the Triton kernels of a form. ``plain``: generates only the kernel for all shapes."""
    text = kernels(form, name, plain)
    given = ", ".join(arguments(form, plain))
    tile = "TILE" if _is_flat(form, plain) else f"TILE_{form.columns}"
    rows, where = " * ".join(form.axes[:-1]) or "1", [FITS_ROUTE, WARPS_IN_PTX]
    constants: dict[str, tuple[Value, ...]]
    warps: dict[str, tuple[Value, ...]]
    if form.name == "row reductions":
        launch = LONG_ROWS if plain else ROWS
        launch = launch.format(name=name, rows=rows, given=given, columns=form.columns, tile=tile)
        constants, warps = {tile: ROW_TILES}, {"num_warps": (8, 4, 16, None)}
        where += [] if plain else [other_code(tile, form.columns)]
    else:
        flat = _is_flat(form, plain)
        blocks = f"triton.cdiv({' * '.join(form.axes) if flat else form.columns}, config.{tile})"
        grid = blocks if flat or len(form.axes) == 1 else f"{rows} * {blocks}"
        launch = f"    grid = ({grid},)\n    return tw.Launch({name}, grid, ({given}, config.{tile}))\n"
        constants, warps = {tile: (1024, 512, 2048, 4096)}, {"num_warps": (4, 8, None)}
    hints: dict[str, tuple[Value, ...]] = {"route": ("ptx", "tileir"), **warps, "occupancy": (None, 4)}
    return KernelText(imports_of(text), text, launch, space_text(constants, hints, where))


ROWS = """    given = ({given})
    if {columns} <= config.{tile}:
        return tw.Launch({name}, ({rows},), (*given, triton.next_power_of_2({columns})))
    return tw.Launch({name}_long_rows, ({rows},), (*given, config.{tile}))
"""
LONG_ROWS = """    return tw.Launch({name}_long_rows, ({rows},), ({given}, config.{tile}))
"""
