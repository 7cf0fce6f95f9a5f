"""Cross entropy that is written by hand → ``torch.nn.functional.cross_entropy``.

The logarithm of the softmax may be `log_softmax`, a logarithm of a softmax, or a difference to `logsumexp`, each
written out or called. The score of the right class may be picked by `gather`, by an index, or by a product with ones
and zeros.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field

from tilewright.program.changes.base import ChangeSite, NearMiss, ProgramChange
from tilewright.program.changes.functions_by_hand import unused_edits
from tilewright.program.reading.algebra import Form, NormalForms, equal, log_softmax_forms, parts_of
from tilewright.program.reading.broken_lines import fitted
from tilewright.program.reading.flow import assigned, check_move, last_change
from tilewright.program.reading.module import NotSure, ReadModule
from tilewright.program.reading.numbers import axis
from tilewright.program.reading.operations import arithmetic, operation, option

FUNCTION = "torch.nn.functional.cross_entropy"


@dataclass
class _PickedScore:
    """What `_walk` has found so far. ``sign``: 1 or -1, the product of the signs. ``axis``: the axis of the classes, as
    the text gives it. ``at``: the statement that picks the scores.
    """

    reduction: str
    followed: dict[ast.stmt, str] = field(default_factory=dict)
    sign: int = 1
    scores: ast.expr | None = None
    labels: ast.expr | None = None
    axis: int | None = None
    logged: bool = False
    """Whether the logarithm is taken after the score is picked."""
    at: ast.stmt | None = None


class CrossEntropyByHand(ProgramChange):
    name = "cross_entropy_by_hand"
    about = "computes the loss in the fused cross entropy, which stores no table of logarithms or of ones and zeros"
    words = ("cross entropy by hand", "fuse* cross entropy", "cross_entropy", "nll by hand", "log softmax by hand",
             "one hot loss")  # fmt: skip
    findings = ("short-kernels", "launch-calls", "host-late", "hot-kernel")
    ran = (r"cross_entropy|nll_loss",)
    gone = (r"aten::(gather|one_hot|scatter_?|index)$|aten::log$",)
    order = 26
    absent = "the program has no cross entropy that is written by hand"

    def look(self, module: ReadModule) -> Iterator[ChangeSite | NearMiss]:
        done: list[ast.AST] = []
        for node in module.file.nodes:
            if not isinstance(node, (ast.Call, ast.UnaryOp)) or any(each in done for each in module.above(node)):
                continue
            try:
                if (site := _site(module, node)) is not None:
                    done.append(node)
                    yield site
            except NotSure as reason:
                done.append(node)
                yield NearMiss(reason.line, reason.reason)


def _site(module: ReadModule, node: ast.expr) -> ChangeSite | None:
    final = module.statement(node)
    found = _PickedScore("")
    if not _walk(module, node, final, found) or found.scores is None or found.labels is None or found.at is None:
        return None
    if found.sign != -1 or found.reduction not in ("mean", "sum"):
        return None
    forms = NormalForms(module)
    whole = forms.of(found.scores, found.at)
    whole = ("log", whole) if found.logged else whole
    logits = _logits(whole, found.axis, forms)
    if logits is None:
        return None
    labels, followed = found.labels, {**found.followed, **forms.followed}
    for statement in followed:
        check_move(module, labels, min(statement, found.at, key=lambda each: each.lineno), final, followed)
        check_move(module, logits, statement, final, followed)
    text, wanted = module.argument(logits), module.argument(labels)
    if found.axis == -1 and not _is_flat(module, logits):
        text, wanted = f"{module.operand(logits)}.flatten(0, -2)", f"{module.operand(labels)}.flatten()"
    more = ', reduction="sum"' if found.reduction == "sum" else ""
    call = f"{module.spelled(FUNCTION, node)}({text}, {wanted}{more})"
    edits = (fitted(module, node, call), *unused_edits(module, followed, node, final))
    return ChangeSite(node.lineno, "cross entropy", edits)


def _is_flat(module: ReadModule, node: ast.expr) -> bool:
    """``x.view(-1, n)`` and ``x.reshape(-1, n)`` have two axes."""
    name, args = operation(module, node)
    return name in ("view", "reshape") and len(args) == 3


def _logits(form: Form, dim: int | None, forms: NormalForms) -> ast.expr | None:
    """Returns the expression x if a form is the logarithm of the softmax of x over an axis; else None."""
    for x in dict.fromkeys(parts_of(form)):
        expression = forms.named.get(x) or forms.codes.get(x)
        if expression is None:
            continue
        for axis_ in {dim, -1, 1} - {None}:
            if any(equal(form, each) for each in log_softmax_forms(x, axis_ or 0)) and axis_ in (dim, -1, 1):
                return expression
    return None


def _walk(module: ReadModule, node: ast.expr, at: ast.stmt, found: _PickedScore) -> bool:
    """Follows an expression from the reduced loss back to the picked scores, and fills ``found``. Returns whether it
    found them.
    """
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        found.sign = -found.sign
        return _walk(module, node.operand, at, found)
    if isinstance(node, ast.Name):
        change = last_change(module, node.id, at)
        value = assigned(change, node.id)
        if change is None or value is None:
            return False
        found.followed[change] = node.id
        return _walk(module, value, change, found)
    name, args = operation(module, node)
    if name == "neg" and len(args) == 1:
        found.sign = -found.sign
        return _walk(module, args[0], at, found)
    if name in ("mean", "sum") and len(args) == 1 and isinstance(node, ast.Call) and not node.keywords:
        if found.reduction:
            return False
        found.reduction = name
        return _walk(module, args[0], at, found)
    if (name in ("squeeze", "flatten") and args) or (
        name in ("view", "reshape") and len(args) == 2 and axis(args[1]) == -1
    ):
        return bool(found.reduction) and _walk(module, args[0], at, found)
    if name == "log" and len(args) == 1 and not found.logged:
        found.logged = True
        return _walk(module, args[0], at, found)
    if not found.reduction:
        return False
    found.at = at
    return (
        _gathered(module, node, name, args, found) or _indexed(module, node, found) or _multiplied(module, node, found)
    )


def _gathered(module: ReadModule, node: ast.expr, name: str, args: list[ast.expr], found: _PickedScore) -> bool:
    """``scores.gather(1, labels.unsqueeze(1))``"""
    if name != "gather" or not isinstance(node, ast.Call):
        return False
    dim, index = option(node, args, 1, "dim"), option(node, args, 2, "index")
    column = _column(module, index)
    last = axis(dim) == 2 and _adds_last(module, index)  # (batch, time, class): the added axis is the class's
    if (axis(dim) not in (1, -1) and not last) or column is None:
        return False
    found.scores, found.labels, found.axis = args[0], column, -1 if last else axis(dim)
    return True


def _adds_last(module: ReadModule, node: ast.expr | None) -> bool:
    """Returns whether an index is like ``labels.unsqueeze(-1)``, ``labels.unsqueeze(2)`` or ``labels[:, :, None]``."""
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Tuple):
        first = node.slice.elts[0]
        return len(node.slice.elts) == 3 or (isinstance(first, ast.Constant) and first.value is ...)
    name, args = operation(module, node)
    return name == "unsqueeze" and len(args) == 2 and axis(args[1]) in (-1, 2)


def _column(module: ReadModule, node: ast.expr | None) -> ast.expr | None:
    """Returns the labels of ``labels.unsqueeze(1)``, ``labels.view(-1, 1)`` and ``labels[:, None]``."""
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Tuple):
        last = node.slice.elts[-1]
        return node.value if isinstance(last, ast.Constant) and last.value is None else None
    name, args = operation(module, node)
    if name == "long" and len(args) == 1:
        return _column(module, args[0])
    if name == "unsqueeze" and len(args) == 2 and axis(args[1]) in (1, -1, 2):
        return args[0]
    if name in ("view", "reshape") and len(args) == 3 and axis(args[1]) == -1 and axis(args[2]) == 1:
        return args[0]
    return None


def _indexed(module: ReadModule, node: ast.expr, found: _PickedScore) -> bool:
    """``scores[torch.arange(n), labels]``"""
    match node:
        case ast.Subscript(value=scores, slice=ast.Tuple(elts=[rows, labels])):
            made = operation(module, rows)[0]
            each = made == "arange" or (isinstance(rows, ast.Call) and module.is_builtin(rows.func, "range"))
            if each and isinstance(labels, (ast.Name, ast.Attribute, ast.Call)):
                found.scores, found.labels, found.axis = scores, labels, 1
                return True
    return False


def _multiplied(module: ReadModule, node: ast.expr, found: _PickedScore) -> bool:
    """Returns whether the scores are picked by ``(one_hot * scores).sum(-1)``, and fills ``found``. Inside a sum over
    all elements, ``one_hot * scores`` without ``.sum(-1)`` also counts.
    """
    name, args = operation(module, node)
    dim = axis(option(node, args, 1, "dim", "axis"))
    inner = node
    if name == "sum" and args and dim in (1, -1):
        inner = args[0]
    elif found.reduction != "sum":
        return False
    while isinstance(inner, ast.UnaryOp) and isinstance(inner.op, ast.USub):
        found.sign, inner = -found.sign, inner.operand
    parts = arithmetic(module, inner)
    if parts is None or parts[0] != "*" or found.at is None:
        return False
    sides = list(parts[1:])
    for side in sides:
        if isinstance(side, ast.UnaryOp) and isinstance(side.op, ast.USub):
            found.sign = -found.sign
    sides = [
        side.operand if isinstance(side, ast.UnaryOp) and isinstance(side.op, ast.USub) else side for side in sides
    ]
    for ones, scores in (sides, reversed(sides)):
        labels = hot_labels(module, ones, found.at, found.followed)
        if labels is not None:
            found.scores, found.labels, found.axis = scores, labels, dim if dim is not None else -1
            return True
    return False


def hot_labels(module: ReadModule, node: ast.expr, at: ast.stmt, followed: dict[ast.stmt, str]) -> ast.expr | None:
    """Returns the labels of ``F.one_hot(labels, n).float()``, also behind a name; None for another expression.

    followed: gets the statements that were followed, and the names that they bind.
    """
    if isinstance(node, ast.Name):
        change = last_change(module, node.id, at)
        value = assigned(change, node.id)
        labels = None if change is None or value is None else hot_labels(module, value, change, followed)
        if labels is not None and change is not None:
            followed[change] = node.id
        return labels
    name, args = operation(module, node)
    if name in ("float", "to", "type_as", "double", "half", "bfloat16") and args:
        return hot_labels(module, args[0], at, followed)
    return args[0] if name == "one_hot" and args else None


CHANGE = CrossEntropyByHand()
