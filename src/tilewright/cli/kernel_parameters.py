"""Reads from a kernel's source how it uses its parameters: as arrays, outputs, constants or numbers."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from tilewright.lint.triton_code import Pointers, arrays, place
from tilewright.source import cutile, triton
from tilewright.source.source_file import SourceFile, names
from tilewright.source.source_file import parameters as parameters_in

DIMENSIONS = ("B", "H", "M", "N")
"""The names of an array's dimensions. An array with fewer dimensions takes the last names."""
FACTORS = ("eps", "scale", "alpha", "beta", "factor", "prob")
"""A number is a factor, and not a size, if one of these words is in its name."""


@dataclass(frozen=True)
class Parameters:
    """The parameters of a kernel, grouped by their use. The use is read from the kernel's source.

    arrays: the number of dimensions by parameter; 1 if the source does not show the number.
    numbers: the value to pass by parameter, guessed from the parameter's name.
    order: the parameters that the launch passes, in the kernel's order.
    """

    kernel: str
    arrays: Mapping[str, int]
    outputs: tuple[str, ...]
    constants: tuple[str, ...]
    numbers: Mapping[str, str]
    order: tuple[str, ...]
    computed: frozenset[str] = field(default_factory=frozenset)
    """The parameters that ``@triton.heuristics`` computes."""


def kernels_in(file: SourceFile) -> dict[str, tuple[str, Parameters]]:
    """Maps the name of each kernel in a file to its language and its parameters."""
    found = {kernel.name: ("cutile", of_cutile(file, kernel)) for kernel in cutile.kernels(file)}
    every = triton.kernels(file)
    called = {file.value(call.func) for kernel in every for call in file.every(ast.Call, kernel)}
    launched = {node: kernel for node, kernel in every.items() if node not in called}
    return found | {node.name: ("triton", of_triton(file, kernel)) for node, kernel in launched.items()}


def of_cutile(file: SourceFile, kernel: cutile.KernelSource) -> Parameters:
    """Reads the use of each parameter from the kernel's source.

    A constant is annotated as ``ct.Constant``. An array that the kernel stores to is an output. The indices of a load
    or store give the array's number of dimensions. A parameter in arithmetic is a number.
    """
    annotations = {parameter.arg: parameter.annotation for parameter in parameters_in(kernel.node)}
    constants = [name for name, given in annotations.items() if given and "Constant" in ast.unparse(given)]
    ranks, outputs = {name: 1 for name in annotations if name not in constants}, []
    for call in file.every(ast.Call, kernel.node):
        function, array = file.dotted(call.func).rpartition(".")[2], call.args[0] if call.args else None
        if not isinstance(array, ast.Name) or array.id not in ranks:
            continue
        if function in ("load", "store") and len(call.args) > 1 and isinstance(call.args[1], ast.Tuple):
            ranks[array.id] = min(len(call.args[1].elts), len(DIMENSIONS))
        if function in ("store", "scatter") or function.startswith("atomic"):
            outputs.append(array.id)
    operands = [side for operation in file.every(ast.BinOp, kernel.node) for side in (operation.left, operation.right)]
    numbers = [name for name in ranks if any(isinstance(side, ast.Name) and side.id == name for side in operands)]
    kept = {name: rank for name, rank in ranks.items() if name not in numbers}
    passed = dict.fromkeys(numbers, "1.0")
    return Parameters(kernel.name, kept, tuple(outputs), tuple(constants), passed, tuple(annotations))


def of_triton(file: SourceFile, kernel: triton.TritonKernel) -> Parameters:
    """Reads the use of each parameter from the kernel's source.

    A constant is annotated as ``tl.constexpr``. A parameter that the kernel loads from or stores to is an array. All
    others are numbers. The launch omits constants at the end of the list; the knobs of the same names set their values.
    """
    named = [parameter.arg for parameter in parameters_in(kernel.node)]
    used, computed = arrays(file, kernel), frozenset(kernel.computed) | kernel.computed_late
    pointers = Pointers(file, kernel)
    ranks = {name: 1 + _has_rows(pointers, used[name][0]) for name in named if name in used}
    numbers = [name for name in named if name not in ranks and name not in kernel.constants]
    last = max((at for at, name in enumerate(named) if name not in kernel.constants), default=-1)
    return Parameters(
        kernel.node.name, ranks, tuple(name for name in ranks if used[name][1]),
        tuple(name for name in named if name in kernel.constants and name not in computed),
        {name: _guessed(name, ranks) for name in numbers}, tuple(named[: last + 1]), computed,
    )  # fmt: skip


def _has_rows(pointers: Pointers, addresses: list[ast.expr]) -> bool:
    """Returns whether the addresses are those of a matrix: one has a new axis, or a product with a parameter."""
    for address in addresses:
        for node in _parts(pointers, address):
            new_axis = isinstance(node, ast.Subscript) and any(
                isinstance(part, ast.Constant) and part.value is None for part in ast.walk(node.slice)
            )
            is_product = isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult)
            if new_axis or (is_product and names(node) & pointers.parameters):
                return True
    return False


def _parts(pointers: Pointers, node: ast.expr, depth: int = 8) -> Iterator[ast.AST]:
    """Yields the parts of an expression, and the parts of the expressions that its variables hold."""
    for part in ast.walk(node):
        yield part
        if isinstance(part, ast.Name) and depth and (bound := pointers.last(part.id, place(part))) is not None:
            yield from _parts(pointers, bound[1], depth - 1)


def _guessed(name: str, ranks: Mapping[str, int]) -> str:
    """Returns the value to pass for a number: a dimension, or 1.0."""
    lower = name.lower()
    if any(part in lower for part in FACTORS):
        return "1.0"
    is_rows = lower == "m" or ("row" in lower and "stride" not in lower)
    return "M" if is_rows and max(ranks.values(), default=1) > 1 else "N"
