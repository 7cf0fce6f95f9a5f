"""Finds pointer offsets in Triton kernels that are computed in 32 bits, although they grow with a tensor's size."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import astuple, dataclass, replace

from tilewright.lint.triton_code import END, Place, Pointers, base, place
from tilewright.source.source_file import DEPTH, SourceFile, argument, names, own, parameters
from tilewright.source.triton import TritonKernel, operation
from tilewright.source.values import called_name

ADDRESSED = {"load", "store", "atomic_add", "atomic_max", "atomic_min", "atomic_xchg", "atomic_cas"}
BASED = {"make_block_ptr", "make_tensor_descriptor"}
COMBINED = {"cdiv", "minimum", "maximum", "min", "max", "where", "multiple_of", "max_contiguous", "abs"}
"""Functions of integers whose result is as wide as their widest argument."""


@dataclass(frozen=True)
class _Kind:
    """The origin and the width of an integer in a kernel.

    is_wide: whether the integer has 64 bits; None if the text does not show the width.
    """

    is_wide: bool | None = False
    from_program: bool = False
    """Whether the integer depends on a program id, or is the counter of a loop whose range depends on a program id."""
    from_launch: bool = False
    """Whether the integer depends on an integer argument of the launch."""
    is_product: bool = False
    """Whether the integer contains a product of a factor with `from_program` and a factor with `from_launch`."""
    is_tile: bool = False
    """Whether the value is a tile, which has many elements."""

    def with_(self, other: _Kind) -> _Kind:
        is_wide = True if self.is_wide or other.is_wide else None if None in (self.is_wide, other.is_wide) else False
        pairs = zip(astuple(self)[1:], astuple(other)[1:], strict=True)
        return _Kind(is_wide, *(one or another for one, another in pairs))

    def times(self, other: _Kind) -> _Kind:
        crossed = (self.from_program and other.from_launch) or (self.from_launch and other.from_program)
        both = self.with_(other)
        return replace(both, is_product=both.is_product or crossed)

    @property
    def as_divisor(self) -> _Kind:
        """The properties that the right operand of ``//``, ``%`` or ``-`` passes on to the result: width and
        `is_tile`."""
        return _Kind(self.is_wide, is_tile=self.is_tile)


CONSTANT, UNKNOWN = _Kind(), _Kind(is_wide=None)


class Offsets:
    """The offsets that one kernel adds to its pointers."""

    def __init__(self, file: SourceFile, kernel: TritonKernel) -> None:
        self.file = file
        self.pointers = Pointers(file, kernel)
        wide = {one.arg for one in parameters(kernel.node) if one.annotation and "64" in ast.unparse(one.annotation)}
        self._parameters = {one.arg: _Kind(one.arg in wide, from_launch=True) for one in parameters(kernel.node)}
        self._parameters |= dict.fromkeys(kernel.constants, CONSTANT)
        self._loops = [(ast.unparse(node.target), node) for node in own(kernel.node, ast.For)]
        self._added = [(ast.unparse(node.target), node) for node in own(kernel.node, ast.AugAssign)]
        self.terms = self._terms(kernel)

    def narrow(self) -> Iterator[tuple[str, ast.BinOp]]:
        """Yields pointers with an offset that is a 32-bit product of a program id and an integer argument of the
        launch.

        Leaves out pointers without another offset along a row, because an array with one element for each program is
        small. Also leaves out pointers with an offset of 64 bits: their author has decided which offsets can be large.
        """
        for root, terms in self.terms.items():
            kinds = {text: self.kind(*term) for text, term in terms.items()}
            for text, term in terms.items():
                others = [kind for other, kind in kinds.items() if other != text]
                is_row = any(kind.is_tile for kind in others) and not any(kind.is_wide for kind in others)
                product = self._product(*term) if is_row else None
                if product is not None:
                    yield root, product
                    break

    def _product(self, term: ast.expr, before: Place) -> ast.BinOp | None:
        while isinstance(term, ast.Subscript):  # product[:, None]
            term = term.value
        kind = self.kind(term, before)
        is_product = isinstance(term, ast.BinOp) and isinstance(term.op, ast.Mult) and kind.is_product
        return term if isinstance(term, ast.BinOp) and is_product and kind.is_wide is False else None

    # Terms ------------------------------------------------------------------------------------------------

    def _terms(self, kernel: TritonKernel) -> dict[str, dict[str, tuple[ast.expr, Place]]]:
        """Returns, for each parameter, the summands that the kernel adds to it. A summand's text is the key; its
        expression and its place are the value."""
        terms: dict[str, dict[str, tuple[ast.expr, Place]]] = {}
        for call in own(kernel.node, ast.Call):
            name = operation(self.file, call)
            if name in ADDRESSED | BASED:
                for root, term, at in self._added_to(
                    argument(call, 0, "base" if name in BASED else "pointer"), place(call)
                ):
                    terms.setdefault(root, {}).setdefault(ast.unparse(term), (term, at))
        return terms

    def _added_to(
        self, node: ast.expr | None, before: Place, depth: int = DEPTH
    ) -> Iterator[tuple[str, ast.expr, Place]]:
        """Yields the summands of a pointer's offset, each with the parameter that the pointer comes from."""
        if not depth or node is None:
            return
        if isinstance(node, ast.BinOp):
            is_left = bool(self.pointers.of(node.left, before))
            pointer, offset = (node.left, node.right) if is_left else (node.right, node.left)
            yield from self._added_to(pointer, before, depth)
            for root in self.pointers.of(pointer, before):
                yield from ((root, term, at) for term, at in self._summands(offset, before))
        elif isinstance(node, ast.Call):
            yield from self._added_to(argument(node, 0, "base"), before, depth - 1)
        elif isinstance(node, ast.Name):
            for name, added in self._added:
                if name == node.id:
                    for root in self.pointers.of(node, before):
                        yield from ((root, term, at) for term, at in self._summands(added.value, place(added)))
            last = self.pointers.last(node.id, before)
            if last is not None:
                yield from self._added_to(last[1], last[0], depth - 1)

    def _summands(self, node: ast.expr, before: Place, depth: int = DEPTH) -> Iterator[tuple[ast.expr, Place]]:
        """Yields the summands of an offset, including summands that are first assigned to a variable."""
        last = None
        if isinstance(node, ast.Name) and self._counts(node) is None:
            last = self.pointers.last(node.id, before)
        if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Add, ast.Sub)):
            yield from self._summands(node.left, before, depth)
            yield from self._summands(node.right, before, depth)
        elif last is not None and depth:
            yield from self._summands(last[1], last[0], depth - 1)
        else:
            yield node, before

    # Kinds ------------------------------------------------------------------------------------------------

    def kind(self, node: ast.expr | None, before: Place = END, depth: int = DEPTH) -> _Kind:
        """Returns the kind of an expression: its origin and its width."""
        if node is None or not depth:
            return UNKNOWN
        if isinstance(node, ast.Constant):
            return CONSTANT
        if isinstance(node, ast.Name):
            return self._kind_of_name(node, before, depth)
        if isinstance(node, ast.BinOp):
            left, right = self.kind(node.left, before, depth), self.kind(node.right, before, depth)
            if isinstance(node.op, ast.Mult):
                return left.times(right)
            if isinstance(node.op, (ast.FloorDiv, ast.Mod)):
                left = replace(left, is_product=False)
            return left.with_(right if isinstance(node.op, ast.Add) else right.as_divisor)
        if isinstance(node, ast.IfExp):
            return self.kind(node.body, before, depth).with_(self.kind(node.orelse, before, depth))
        if isinstance(node, ast.UnaryOp):
            return self.kind(node.operand, before, depth)
        if isinstance(node, ast.Subscript):
            return self.kind(node.value, before, depth)
        if isinstance(node, ast.Call):
            return self._kind_of_call(node, before, depth)
        return UNKNOWN

    def _kind_of_name(self, name: ast.Name, before: Place, depth: int) -> _Kind:
        counting = self._counts(name)
        if counting is not None:
            ends = counting.iter.args if isinstance(counting.iter, ast.Call) else []
            kind = CONSTANT
            for end in ends:
                kind = kind.with_(self.kind(end, place(counting), depth - 1))
            return replace(kind, from_launch=False)
        last = self.pointers.last(name.id, before)
        kind = self.kind(last[1], last[0], depth - 1) if last else self._parameters.get(name.id, CONSTANT)
        for target, added in self._added:
            if target == name.id and name.id not in names(added.value):
                kind = kind.with_(self.kind(added.value, place(added), depth - 1))
        return kind

    def _counts(self, name: ast.Name) -> ast.For | None:
        """Returns the loop around ``name`` that has ``name`` as its counter."""
        above = {parent for parent, _ in self.file.above(name)}
        return next((loop for target, loop in self._loops if target == name.id and loop in above), None)

    def _kind_of_call(self, call: ast.Call, before: Place, depth: int) -> _Kind:
        name = operation(self.file, call) or called_name(call)
        if name in {"program_id", "num_programs"}:
            return _Kind(from_program=name == "program_id")
        if name == "arange":
            return _Kind(is_tile=True)
        if name in {"to", "cast"}:
            is_method = not operation(self.file, call)
            kind = self.kind(base(self.file, call), before, depth)
            dtype = argument(call, 0 if is_method else 1, "dtype")
            written = ast.unparse(dtype) if dtype is not None else ""
            width = True if "int64" in written else False if written.endswith("int32") else None
            return replace(kind, is_wide=width)
        if name in COMBINED:
            kind = CONSTANT
            for value in call.args[name == "where" :]:
                kind = kind.with_(self.kind(value, before, depth))
            return kind
        return UNKNOWN
