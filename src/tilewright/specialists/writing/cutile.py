"""Generates kernels in cuTile Python."""

from __future__ import annotations

import re
from collections.abc import Mapping

from tilewright.specialists.writing.cheaper import ADDED_POWER, BOUNDED_QUOTIENT, is_logistic
from tilewright.specialists.writing.expression import Expression, Operand
from tilewright.specialists.writing.forms import KernelForm
from tilewright.specialists.writing.rows import ROW_TILES, long_row, other_code
from tilewright.specialists.writing.statements import ATOM, Statements
from tilewright.specialists.writing.task_file import KernelText, space_text

FUNCTIONS = {
    **{name: f"ct.{name}({{}})" for name in (
        "exp", "exp2", "log", "log2", "sqrt", "rsqrt", "sin", "cos", "floor", "ceil", "abs", "tanh")},
    **{name: f"{name}({{}})" for name in ("erf", "log1p", "expm1")},
    "maximum": "ct.maximum({}, {}, propagate_nan=True)", "minimum": "ct.minimum({}, {}, propagate_nan=True)",
    "where": "ct.where({}, {}, {})", ADDED_POWER: "ct.exp2({}, flush_to_zero=True)",
    BOUNDED_QUOTIENT: "approximate_quotient({}, {})",
}  # fmt: skip
COMBINED = {"sum": "{0} + {1}", "max": "ct.maximum({0}, {1})", "min": "ct.minimum({0}, {1})"}
"""The expression of each reduction that combines two partial results."""
HELPERS = {
    "quotient": '''
def quotient(x, y):
    """x / y, to 2 units in the last place: an exact quotient takes several times the instructions."""
    return ct.truediv(x, y, rounding_mode=ct.RoundingMode.FULL)
''',
    "approximate_quotient": '''
def approximate_quotient(x, y):
    """x / y, to 2 units in the last place; 0 where y is above 2**126."""
    return ct.truediv(x, y, flush_to_zero=True, rounding_mode=ct.RoundingMode.APPROX)
''',
    "erf": '''
def erf(x):
    """The error function, to 2e-7: a series near 0, and beyond it Abramowitz and Stegun 7.1.26."""
    s = x * x
    near = x * (1.1283792 + s * (-0.37612638 + s * (0.11283792 + s * (-0.026866170 + s * 0.0052239776))))
    t = ct.truediv(1.0, 1.0 + 0.3275911 * ct.abs(x), rounding_mode=ct.RoundingMode.APPROX)
    tail = t * (0.254829592 + t * (-0.284496736 + t * (1.421413741 + t * (-1.453152027 + t * 1.061405429))))
    far = 1.0 - tail * ct.exp(-s)
    return ct.where(ct.abs(x) < 0.4, near, ct.where(x < 0.0, -far, far))
''',
    "log1p": '''
def log1p(x):
    """log(1 + x), to 4e-7: near 0 as 2 atanh(x / (2 + x)), elsewhere log2 is exact enough."""
    s = ct.truediv(x, 2.0 + x, rounding_mode=ct.RoundingMode.APPROX)
    t = s * s
    near = 2.0 * s * (1.0 + t * (0.33333333 + t * (0.2 + t * (0.14285714 + t * 0.11111111))))
    return ct.where((x > -0.33) & (x < 0.5), near, 0.69314718 * ct.log2(1.0 + x))
''',
    "expm1": '''
def expm1(x):
    """exp(x) − 1, also where exp(x) is near 1."""
    near = x * (1.0 + x * (0.5 + x * (0.16666667 + x * (0.041666667 + x * (0.0083333333 + x * 0.0013888889)))))
    return ct.where(ct.abs(x) < 0.3, near, ct.exp(x) - 1.0)
''',
}
"""The functions that cuTile lacks, each with code that uses other functions."""
ABOUT_ROW = "One block computes one row of at most {tile} columns."
ABOUT_LONG = "One block computes one row of any length, {tile} columns at a time."


class CuTileStatements(Statements):
    """The body of a kernel. Each of its blocks computes a tile of the arrays."""

    functions = FUNCTIONS
    combined: Mapping[str, str] = COMBINED
    module, inf = "ct", "math.inf"
    store_options = ""
    """The text of further arguments of each store."""

    @property
    def in_rows(self) -> bool:
        """Whether a block computes one row. Values are then tiles of columns, or one number per row."""
        return self.form.name == "row reductions"

    @property
    def tiled(self) -> tuple[str, ...]:
        """The axes along which a tile has more than one element."""
        axes = self.form.axes
        return axes[-1:] if self.in_rows else axes[-2:]

    def extent(self, axis: str) -> str:
        computation = self.form.computation
        for operand in (*(each for each, _ in computation.outputs), *computation.inputs):
            if axis in operand.shape:
                return f"{operand.name}.shape[{operand.shape.index(axis)}]"
        raise AssertionError(f"no tensor has the axis {axis}")

    def index(self) -> str:
        return "columns"

    def named_input(self, name: str) -> str:
        return f"{name}_tile"

    def place(self, operand: Operand) -> tuple[str, str]:
        """Returns the index and the shape of an operand's tile."""
        own = self.form.columns
        at = {
            each: "row" if len(self.form.axes) == 2 and self.tiled == (own,) else f"at_{each}"
            for each in self.form.axes
        }
        if self.in_rows:
            at[own] = "columns"
        index = [at[axis] if isinstance(axis, str) else "0" for axis in operand.shape]
        shape = [f"TILE_{axis}" if axis in self.tiled else "1" for axis in operand.shape]
        return _tuple(index), _tuple(shape)

    def load(self, tensor: Expression) -> str:
        operand = next(each for each in self.form.computation.inputs if each.name == tensor.value)
        index, shape = self.place(operand)
        text = f"ct.load({operand.name}, {index}, {shape}, padding_mode=ZERO)"
        if self.in_rows:  # each element is read once, so shared memory would not help
            text = f"ct.gather({operand.name}, {index})"
        return f"{text}.astype(ct.float32)" if operand.dtype in ("bfloat16", "float16") else text

    def store(self, operand: Operand, value: Expression) -> None:
        """Adds the store of one output."""
        index, _ = self.place(operand)
        store = "scatter" if self.in_rows else "store"
        text = self.stored(value, f"{operand.name}_tile")
        self.add(f"ct.{store}({operand.name}, {index}, {text}.astype({operand.name}.dtype){self.store_options})")

    def written(self, expression: Expression) -> tuple[str, int]:
        if expression.op == "/" and self.form.varies(expression):  # once a row, an exact quotient costs nothing
            function = "approximate_quotient" if is_logistic(expression) else "quotient"
            return f"{function}({', '.join(self.text(each) for each in expression.operands)})", ATOM
        return super().written(expression)

    def expanded(self, expression: Expression) -> tuple[str, int]:
        if self.in_rows:
            return self.value(expression.operands[0])
        parts = [":"] * len(expression.shape)
        parts[int(expression.value or 0)] = "None"
        return f"{self.text(expression.operands[0], ATOM)}[{', '.join(parts)}]", ATOM

    def reduced(self, op: str, values: str, expression: Expression) -> str:
        return f"ct.{op}({values})"

    def enter_loop(self) -> None:
        """Adds the head of a loop over the tiles of a row."""
        tile, size = f"TILE_{self.form.columns}", self.extent(self.form.columns)
        self.add(f"for k in range(ct.cdiv({size}, {tile})):")
        self.indent += "    "
        self.add(f"columns = k * {tile} + ct.arange({tile}, dtype=ct.int32)")
        self.add(f"inside = columns < {size}")


def _tuple(parts: list[str]) -> str:
    return f"({parts[0]},)" if len(parts) == 1 else f"({', '.join(parts)})"


def taken(form: KernelForm) -> list[str]:
    """Returns the names that variables of a kernel must not have."""
    computation = form.computation
    tensors = [*(each.name for each in computation.inputs), *(each.name for each, _ in computation.outputs)]
    known = ["row", "columns", "inside", "k", "ct", "tw", "np", "math", "ZERO", *HELPERS]
    return [*tensors, *known, *(f"at_{axis}" for axis in form.axes), *(f"TILE_{axis}" for axis in form.axes)]


def _body(form: KernelForm, name: str, about: str, tiles: tuple[str, ...]) -> CuTileStatements:
    computation = form.computation
    tensors = [*(each.name for each in computation.inputs), *(each.name for each, _ in computation.outputs)]
    body = CuTileStatements(form, taken(form))
    given = ", ".join([*tensors, *(f"{tile}: ct.Constant[int]" for tile in tiles)])
    body.lines = ["@ct.kernel", f"def {name}({given}):", f'    """{about}"""']
    if not body.in_rows:
        body.add("ZERO = ct.PaddingMode.ZERO")
    return body


def _coordinates(body: CuTileStatements, axes: tuple[str, ...]) -> None:
    """Adds the coordinates of the block along each axis. Consecutive blocks differ in the last axis."""
    form = body.form
    if form.name == "row reductions" and len(axes) == 1:
        body.add("row = ct.bid(0)")
        return
    counts = {axis: body.extent(axis) for axis in axes}
    for axis in axes[1:]:
        if axis in body.tiled:
            body.add(f"blocks_{axis} = ct.cdiv({counts[axis]}, TILE_{axis})")
            counts[axis] = f"blocks_{axis}"
    for number, axis in enumerate(axes):
        after = " * ".join(counts[each] for each in axes[number + 1 :])
        after = f"({after})" if " * " in after else after
        text = f"ct.bid(0) // {after}" if after else "ct.bid(0)"
        body.add(f"at_{axis} = {text} % {counts[axis]}" if number else f"at_{axis} = {text}")


def write(form: KernelForm, name: str, plain: bool = False) -> KernelText:
    """Generates the cuTile kernels of a form. ``plain``: generates only the kernel for all shapes, with tiles of one
    row.
    """
    write_form = _rows if form.name == "row reductions" else _tiles
    text, launch, space = write_form(form, name, plain)
    return KernelText(imports_of(text), helpers_of(text) + text, launch, space)


def imports_of(text: str) -> tuple[str, ...]:
    """Returns the imports that the kernels' text needs."""
    return ("import cuda.tile as ct", *(("import math",) if "math.inf" in text else ()))


def helpers_of(text: str) -> str:
    """Returns the functions that the kernels' text calls and that cuTile lacks."""
    return "".join(f"{HELPERS[each].lstrip()}\n\n" for each in HELPERS if re.search(rf"(?<![\w.]){each}\(", text))


def _arguments(form: KernelForm) -> str:
    computation = form.computation
    return ", ".join([*(each.name for each in computation.inputs), *(each.name for each, _ in computation.outputs)])


def _tiles(form: KernelForm, name: str, plain: bool) -> tuple[str, str, str]:
    tiles = tuple(f"TILE_{axis}" for axis in form.axes[-2:])
    about = f"One block computes a tile of {' × '.join(tiles)} elements."
    body = _body(form, name, about, tiles)
    _coordinates(body, form.axes)
    if any(each.op == "index" for each in body.uses):
        body.add(f"columns = at_{form.columns} * {tiles[-1]} + ct.arange({tiles[-1]}, dtype=ct.int32)")
    for operand, value in form.computation.outputs:
        body.store(operand, value)
    blocks = [f"-(-{axis} // config.TILE_{axis})" if axis in body.tiled else axis for axis in form.axes]
    given = ", ".join([_arguments(form), *(f"config.{tile}" for tile in tiles)])
    launch = f"    grid = ({' * '.join(blocks)},)\n    return tw.Launch({name}, grid, ({given}))\n"
    rows = {tiles[0]: (1,) if plain else (2, 1, 4, 8)} if len(tiles) == 2 else {}
    constants = {**rows, tiles[-1]: (256, 128) if plain else (2048, 1024, 4096)}
    fits = [f"lambda {', '.join(tiles)}: {' * '.join(tiles)} <= 8192"] if rows else []  # 64 elements a thread
    return body.finished(), launch, space_text(constants, {"occupancy": (None, 8)}, fits)


def _rows(form: KernelForm, name: str, plain: bool) -> tuple[str, str, str]:
    tile = f"TILE_{form.columns}"
    long = _body(form, f"{name}_long_rows", ABOUT_LONG.format(tile=tile), (tile,))
    _coordinates(long, form.axes[:-1])
    long_row(long)
    text = long.finished() if plain else f"{_one_tile_row(form, name, tile)}\n\n{long.finished()}"
    rows, launch = " * ".join(form.axes[:-1]) or "1", LONG_ROWS if plain else ROWS
    launch = launch.format(columns=form.columns, tile=tile, name=name, rows=rows, given=_arguments(form))
    hints = {"occupancy": (None, 8, 4), "num_worker_warps": (None, 8)}
    return text, launch, space_text({tile: ROW_TILES}, hints, [] if plain else [other_code(tile, form.columns)])


def _one_tile_row(form: KernelForm, name: str, tile: str) -> str:
    body = _body(form, name, ABOUT_ROW.format(tile=tile), (tile,))
    _coordinates(body, form.axes[:-1])
    body.add(f"columns = ct.arange({tile}, dtype=ct.int32)")
    body.add(f"inside = columns < {body.extent(form.columns)}")
    for operand, value in form.computation.outputs:
        body.store(operand, value)
    return body.finished()


ROWS = """    tensors = ({given})
    if {columns} <= config.{tile}:
        return tw.Launch({name}, ({rows},), (*tensors, 1 << ({columns} - 1).bit_length()))
    return tw.Launch({name}_long_rows, ({rows},), (*tensors, config.{tile}))
"""
LONG_ROWS = """    return tw.Launch({name}_long_rows, ({rows},), ({given}, config.{tile}))
"""
