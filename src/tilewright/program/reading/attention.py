"""Follows hand-written attention back from ``weights @ v`` to ``q @ kᵀ``, and collects the operations in between.

`traced` returns None if there is no softmax of a product. It raises NotSure if there is one, but another part is not
understood.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from tilewright.program.reading.flow import assigned, check_move, last_change, used_elsewhere
from tilewright.program.reading.layers import layer_call
from tilewright.program.reading.module import NotSure, ReadModule
from tilewright.program.reading.numbers import axis, is_number, number_value
from tilewright.program.reading.operations import (
    SIGNS,
    MatrixProduct,
    Sign,
    arithmetic,
    cast,
    operation,
    option,
    product,
    softmax,
    swapped_axes,
    swaps_last_two,
)
from tilewright.source.source_file import argument, keywords

MaskKind: TypeAlias = Literal["blocked", "kept", "added", "subtracted"]
LEAST_FILL = -1e4
"""A finite fill value must be below this; otherwise a blocked key keeps some weight."""


@dataclass(frozen=True)
class Placed:
    """An expression, and the statement that evaluates it."""

    node: ast.expr
    at: ast.stmt


@dataclass(frozen=True)
class ScoreMask:
    """One mask. ``fill``: the value of blocked scores; None if only its text ``fill_code`` is known. ``test``: the mask
    is applied only if this expression is true; None: always.
    """

    kind: MaskKind
    value: Placed
    fill: float | None = None
    fill_code: str = ""
    test: Placed | None = None


@dataclass
class Attention:
    """The parts of one attention. Lists are filled backwards: their later items come earlier in the program."""

    module: ReadModule
    final: ast.stmt
    weighted: ast.expr
    """The product of weights and values."""
    scores: MatrixProduct | None = None
    values: MatrixProduct | None = None
    values_first: bool = False
    """Whether the last product is of values with transposed weights, so that all of it is transposed."""
    where: ast.stmt | None = None
    """The statement with the scores' product."""
    axis: int | None = None
    scales: list[tuple[Sign, Placed]] = field(default_factory=list)
    masks: list[ScoreMask] = field(default_factory=list)
    dropout: str = ""
    """The probability of its dropout, as source text."""
    dropout_parts: list[Placed] = field(default_factory=list)
    gone: list[tuple[ast.stmt, str]] = field(default_factory=list)
    """Statements that are replaced, and the name that each binds."""
    reads: list[ast.Name] = field(default_factory=list)

    def step(self, node: ast.expr, at: ast.stmt) -> tuple[ast.expr, ast.stmt, Placed | None]:
        """Follows a name to its value. Returns the value, its statement, and the condition of the assignment, if it has
        one.
        """
        if not isinstance(node, ast.Name):
            return node, at, None
        change = last_change(self.module, node.id, at)
        if change is None:
            return node, at, None
        test, inner = None, change
        if isinstance(change, ast.If) and len(change.body) == 1 and not change.orelse:
            test, inner = Placed(change.test, change), change.body[0]
        value = assigned(inner, node.id)
        match inner:
            case ast.AugAssign(target=ast.Name(id=name), op=op, value=more) if name == node.id and type(op) in SIGNS:
                value = ast.BinOp(left=ast.Name(name, ast.Load()), op=op, right=more)
            case ast.Expr(value=ast.Call(func=ast.Attribute(value=ast.Name(id=name))) as call) if name == node.id:
                value = call
        if value is None:
            return node, at, None
        self.reads.append(node)
        self.gone.append((change, node.id))
        if isinstance(value, ast.Name) and test is None:
            return self.step(value, change)  # another name for the same value
        return value, change, test


def traced(module: ReadModule, node: ast.expr) -> Attention | None:
    """Returns the attention whose last product is ``node``; None if ``node`` is not such a product. Raises NotSure."""
    values = product(module, node)
    if values is None:
        return None
    final = module.statement(node)
    found = Attention(module, final, node, values=values)
    scores = _weights(found, values.left, final)
    if scores is None and not values.spec and (weights := _swapped(module, values.right, final, values.axes)):
        found = Attention(module, final, node, values=values, values_first=True)  # v @ wᵀ is (w @ vᵀ)ᵀ
        if weights.at is not final and isinstance(values.right, ast.Name):
            found.reads.append(values.right)
            found.gone.append((weights.at, values.right.id))
        scores = _weights(found, weights.node, weights.at)
    if scores is None or not _scores(found, *scores):
        return None
    _check(found)
    return found


def _swapped(module: ReadModule, node: ast.expr, at: ast.stmt, axes: int | None) -> Placed | None:
    """Returns the tensor of which an operand is the transposition, also behind a name; None if it is none."""
    if isinstance(node, ast.Name):
        change = last_change(module, node.id, at)
        value = assigned(change, node.id)
        if change is None or value is None or isinstance(value, ast.Name):
            return None
        return _swapped(module, value, change, axes)
    swapped = swapped_axes(module, node)
    if swapped is None or not swaps_last_two(swapped[1], len(swapped[1]) if len(swapped[1]) > 2 else axes):
        return None
    return Placed(swapped[0], at)


def _weights(found: Attention, node: ast.expr, at: ast.stmt) -> tuple[ast.expr, ast.stmt] | None:
    """Goes from the weights back to the input of the softmax."""
    module = found.module
    while True:
        node, at, test = found.step(node, at)
        if (normal := softmax(module, node)) is not None and test is None:
            found.axis = axis(normal.dim)
            reason = "" if normal.dim is not None and found.axis is not None else "its softmax names no axis"
            if normal.dtype is not None and module.full(normal.dtype) not in ("torch.float32", "torch.float"):
                reason = "its softmax has another type"
            if reason:
                if not _scores(_copied(found), normal.input, at):
                    return None
                raise NotSure(reason, found.weighted)
            return normal.input, at
        if (dropped := _dropout(module, node)) is not None:
            if found.dropout:
                raise NotSure("its weights are dropped twice", found.weighted)
            node, text, parts = dropped
            found.dropout = text if test is None else f"({text}) if {module.code(test.node)} else 0.0"
            found.dropout_parts = [*(Placed(part, at) for part in parts), *([test] if test else [])]
        elif test is None and (inside := cast(module, node)) is not None:
            node = inside
        else:
            return None


def _dropout(module: ReadModule, node: ast.expr) -> tuple[ast.expr, str, list[ast.expr]] | None:
    """Returns the input of a dropout, the text of its probability, and the expressions that the text is made of."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and len(node.args) == 1:
        layer = layer_call(module, node.func)
        if layer is not None and module.full(layer.func) == "torch.nn.Dropout" and not node.keywords:
            code = module.code(node.func)
            return node.args[0], f"{code}.p if {code}.training else 0.0", [node.func]
    name, args = operation(module, node)
    if (
        name != "dropout"
        or not args
        or not module.called(node)
        or not isinstance(node, ast.Call)
        or "inplace" in keywords(node)
        or len(args) > 3
    ):
        return None
    chance, training = option(node, args, 1, "p"), option(node, args, 2, "training", "train")
    if module.called(node) == "torch.dropout" and training is None:
        return None
    text = "0.5" if chance is None else module.argument(chance)
    parts = [each for each in (chance, training) if each is not None]
    if training is None or (isinstance(training, ast.Constant) and training.value is True):
        return args[0], text, parts
    return args[0], f"{text} if {module.argument(training)} else 0.0", parts


def _copied(found: Attention) -> Attention:
    return Attention(found.module, found.final, found.weighted, values=found.values)


def _scores(found: Attention, node: ast.expr, at: ast.stmt) -> bool:
    """Goes from the input of the softmax back to the product. Returns whether it found the product."""
    module = found.module
    while True:
        node, at, test = found.step(node, at)
        if test is None and (scores := product(module, node)) is not None:
            found.scores, found.where = scores, at
            return True
        if (masked := _masked(found, node, at, test)) is not None:
            node = masked
        elif test is None and (inside := cast(module, node)) is not None:
            node = inside
        elif (parts := arithmetic(module, node)) is not None:
            onward = _through(found, parts, at, test)
            if onward is None:
                return False
            node = onward
        else:
            return False


def _through(
    found: Attention, parts: tuple[Sign, ast.expr, ast.expr], at: ast.stmt, test: Placed | None
) -> ast.expr | None:
    """Removes a scale or an added mask. Returns the operand with the scores; None if neither operand has them."""
    sign, left, right = parts
    sides = [_leads(found, left, at), sign not in "/-" and _leads(found, right, at)]
    if not any(sides):
        return None
    scores, other = (left, right) if sides[0] else (right, left)
    if all(sides):
        raise NotSure("its scores are made of two products", found.weighted)
    if sign in "*/":
        if test is not None or not is_number(found.module, other):
            raise NotSure(
                f"the factor {found.module.code(other)} of its scores is not known to be a number", found.weighted
            )
        found.scales.append((sign, Placed(other, at)))
    else:
        if found.scales:
            raise NotSure("its scores are scaled after the mask", found.weighted)
        if is_number(found.module, other):
            raise NotSure("a number is added to its scores", found.weighted)
        found.masks.append(ScoreMask("added" if sign == "+" else "subtracted", Placed(other, at), test=test))
    return scores


def _leads(found: Attention, node: ast.expr, at: ast.stmt) -> bool:
    try:
        return _scores(_copied(found), node, at)
    except NotSure:
        return True


def _masked(found: Attention, node: ast.expr, at: ast.stmt, test: Placed | None) -> ast.expr | None:
    """Removes ``masked_fill`` or ``where``. Returns the scores in it; None for another expression."""
    module = found.module
    name, args = operation(module, node)
    if name.rstrip("_") == "masked_fill" and name in ("masked_fill", "masked_fill_") and args:
        mask, fill = option(node, args, 1, "mask"), option(node, args, 2, "value")
        return None if mask is None or fill is None else _fill(found, "blocked", mask, fill, args[0], at, test)
    if name == "where" and len(args) == 3 and isinstance(node, ast.Call) and not node.keywords:
        if module.called(node) != "torch.where":
            scores, mask, fill = args  # x.where(mask, fill) keeps x where the mask holds
            return _fill(found, "kept", mask, fill, scores, at, test)
        first = _leads(found, args[1], at)
        if first == _leads(found, args[2], at):
            return None
        kind: MaskKind = "kept" if first else "blocked"
        return _fill(found, kind, args[0], args[2 if first else 1], args[1 if first else 2], at, test)
    return None


def _fill(
    found: Attention, kind: MaskKind, mask: ast.expr, fill: ast.expr, scores: ast.expr, at: ast.stmt,
    test: Placed | None,
) -> ast.expr:  # fmt: skip
    if found.scales:
        raise NotSure("its scores are scaled after the mask", found.weighted)
    module = found.module
    if module.called(fill) == "torch.tensor" and isinstance(fill, ast.Call) and fill.args:
        fill = fill.args[0]
    value, code = number_value(fill), module.code(fill)
    least = fill
    if isinstance(least, ast.Attribute) and least.attr == "min" and module.called(least.value) == "torch.finfo":
        assert isinstance(least.value, ast.Call)
        kind_of = argument(least.value, 0, "type")
        if isinstance(kind_of, ast.Attribute) and kind_of.attr == "dtype" and isinstance(kind_of.value, ast.Name):
            if _leads(found, kind_of.value, at):
                found.reads.append(kind_of.value)
            value, code = None, "torch.finfo({dtype}).min"
    if value is None and "{dtype}" not in code:
        raise NotSure(f"its fill value {code} is not known", found.weighted)
    if value is not None and value > LEAST_FILL:
        raise NotSure(f"its fill value {code} leaves some weight to blocked keys", found.weighted)
    found.masks.append(ScoreMask(kind, Placed(mask, at), value, code, test))
    return scores


def _check(found: Attention) -> None:
    """Raises NotSure if a value that the change removes is used elsewhere, or if a part must not be moved."""
    module, final, gone = found.module, found.final, [statement for statement, _ in found.gone]
    for name in {name for _, name in found.gone}:
        other = used_elsewhere(module, name, found.reads, [each for each, n in found.gone if n == name], final)
        if other is not None:
            raise NotSure(f"'{name}' is also used in line {getattr(other, 'lineno', final.lineno)}", found.weighted)
    assert found.scores is not None
    assert found.where is not None
    moved = [(found.scores.left, found.where), (found.scores.right, found.where)]
    placed = [each for _, each in found.scales] + found.dropout_parts
    placed += [mask.value for mask in found.masks] + [mask.test for mask in found.masks if mask.test is not None]
    for node, start in (*moved, *((each.node, each.at) for each in placed)):
        check_move(module, node, start, final, gone)
