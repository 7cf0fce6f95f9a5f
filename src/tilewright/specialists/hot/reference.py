"""Makes a reference from a function of a program: its own body, with the shapes, dtypes and numbers of a call.

def forward(self, x):                                    def rms_norm(x: "bfloat16[M, N]", weight: "bfloat16[N]", *,
    return x * rsqrt(… + self.eps) * self.weight    →                 eps=1e-06):
                                                             return x * rsqrt(… + eps) * weight
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from tilewright.source.source_file import SourceFile, stored
from tilewright.specialists.hot.calls import CalledTensor, ObservedCall
from tilewright.specialists.hot.functions import HotFunction
from tilewright.specialists.writing.expression import Shape, spelled
from tilewright.specialists.writing.writing import ReferenceSource

AXES = ("N", "M", "L", "H", "B", "A", "J", "K", "P", "Q")
"""Names of extents, from the last axis on."""
TAKEN = {
    "grid", "given", "tensors", "config", "triton", "tl", "ct", "tw", "torch", "np", "math", "libdevice", "rows", "row",
    "columns", "start", "place", "size", "inside", "left", "right", "total", "within", "first", "height", "across",
    "down", "k", "task", "launch", "blocks", "takes", "launched", "OPTIONS", "ZERO", "tile", "tiles", "column", "sizes",
    "tma", "before_tma", "hardware", "LATENCY", "TMA", "quotient", *AXES,
}  # fmt: skip
"""Names that generated kernels and launches use."""


@dataclass(frozen=True)
class HotReference:
    """A reference made from a function of the program. The function's tensors and numbers become its parameters.

    tensors: the expression in the function that each tensor parameter replaces, such as ``self.weight``.
    values: the expression that each number parameter replaces, such as ``self.eps``.
    shapes: the names of the extents of each tensor parameter.
    numbers: the Python text of the value of each number parameter.
    """

    source: ReferenceSource
    tensors: Mapping[str, str]
    values: Mapping[str, str]
    shapes: Mapping[str, Shape]
    numbers: Mapping[str, str]
    dims: Mapping[str, int]
    dtypes: Mapping[str, str]
    outputs: tuple[str, ...]
    """The dtypes of the results."""


def references_of(function: HotFunction, call: ObservedCall) -> Iterator[HotReference]:
    """Yields the references of a call. If extents are equal, the references differ in whether they are one
    dimension."""
    expressions = [*function.parameters, *(f"self.{each}" for each in function.attributes)]
    names = _names(function, expressions)
    tensors = {names[each]: each for each in expressions if each in call.tensors}
    values = {names[each]: each for each in expressions if each in call.values}
    numbers = {name: call.values[each] for name, each in values.items()}
    given = {name: call.tensors[each] for name, each in tensors.items()}
    dtypes = {name: each.dtype for name, each in given.items()}
    outputs = tuple(each.dtype for each in call.results)
    name = _function_name(function)
    for shapes, dims in _shapes(given):
        text = _text(
            function, name, names, {each: f"{dtypes[each]}{spelled(shapes[each])}" for each in tensors}, numbers
        )
        source = ReferenceSource(text, name, f"{function.file.name}:{function.name}")
        yield HotReference(source, tensors, values, shapes, numbers, dims, dtypes, outputs)


def _names(function: HotFunction, expressions: list[str]) -> dict[str, str]:
    """Maps each expression to the name of its parameter. A parameter keeps its name, unless generated code uses that
    name.
    """
    own, names = (
        set().union(*(stored(each) for each in function.node.body)) - set(function.parameters),
        dict[str, str](),
    )
    for each in expressions:
        name = each.removeprefix("self.")
        while name in TAKEN | own | set(names.values()):
            name += "_in"
        names[each] = name
    return names


def _function_name(function: HotFunction) -> str:
    """Returns ``rms_norm`` for ``RMSNorm.forward``, and ``attention_scores`` for ``Attention.scores``."""
    owner, _, name = function.name.rpartition(".")
    snake = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", owner).lower()
    parts = [snake, "" if owner and name in ("forward", "__call__") else name]
    text = "_".join(part.strip("_") for part in parts if part.strip("_")) or "function"
    return f"{text}_of" if text in TAKEN else text


class _Renamed(ast.NodeTransformer):
    """Replaces attributes of ``self`` by parameters, and renames parameters."""

    def __init__(self, own: str, names: Mapping[str, str]) -> None:
        self.own, self.names = own, names

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        if isinstance(node.value, ast.Name) and node.value.id == self.own:
            return ast.copy_location(ast.Name(self.names[f"self.{node.attr}"], ast.Load()), node)
        return self.generic_visit(node)

    def visit_Name(self, node: ast.Name) -> ast.AST:
        return ast.copy_location(ast.Name(self.names.get(node.id, node.id), node.ctx), node)


def _text(
    function: HotFunction, name: str, names: Mapping[str, str], tensors: Mapping[str, str], numbers: Mapping[str, str]
) -> str:
    """Returns the text of the function's file with the reference appended."""
    node = function.node
    own = node.args.args[0].arg if function.is_method else ""
    body = [_Renamed(own, names).visit(each) for each in ast.parse(ast.unparse(node)).body[0].body]  # type: ignore[attr-defined]
    given = ", ".join([*(f"{each}: {text!r}" for each, text in tensors.items()), *(["*"] if numbers else [])])
    options = "".join(f", {each}={text}" for each, text in numbers.items())
    lines = [
        f"def {name}({given}{options}):",
        *(f"    {line}" for each in body for line in ast.unparse(each).split("\n")),
    ]
    return SourceFile.requested(function.file).text.rstrip() + "\n\n\n" + "\n".join(lines) + "\n"


def _shapes(tensors: Mapping[str, CalledTensor]) -> Iterator[tuple[dict[str, Shape], dict[str, int]]]:
    """Yields names for the extents of all tensors.

    The first result names extents by their position from the right, as in broadcasting. The second result names them
    by size, as in a matrix product.
    """
    for named in (_by_place, _by_size):
        dims: dict[str, int] = {}
        shapes = {name: named(each.shape, tensors, dims) for name, each in tensors.items()}
        if all(shape is not None for shape in shapes.values()):
            yield {name: shape for name, shape in shapes.items() if shape is not None}, dims


def _by_place(shape: tuple[int, ...], tensors: Mapping[str, CalledTensor], dims: dict[str, int]) -> Shape | None:
    named: list[str | int] = []
    for place, extent in enumerate(reversed(shape)):
        extents = {each.shape[-1 - place] for each in tensors.values() if len(each.shape) > place}
        if len(extents - {1}) > 1 or place >= len(AXES):
            return None
        if extent == 1 and extents != {1}:
            named.append(1)
        else:
            dims[AXES[place]] = extent
            named.append(AXES[place])
    return tuple(reversed(named))


def _by_size(shape: tuple[int, ...], tensors: Mapping[str, CalledTensor], dims: dict[str, int]) -> Shape | None:
    named: list[str | int] = []
    for extent in reversed(shape):
        known = next((name for name, size in dims.items() if size == extent and name not in named), None)
        free = next((name for name in AXES if name not in dims), None)
        if known is None and free is None:
            return None
        dims[known or str(free)] = extent
        named.append(known or str(free))
    return tuple(reversed(named))
