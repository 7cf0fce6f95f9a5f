"""Functions that are written by hand → the fused function of torch: GELU, SiLU, softmax, layer norm, RMS norm.

An expression matches if its normal form equals the function's normal form, so spelling does not matter.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property

from tilewright.program.changes.base import ChangeSite, NearMiss, ProgramChange
from tilewright.program.reading.algebra import (
    Form,
    NormalForms,
    add,
    equal,
    is_leaf,
    log_softmax_forms,
    number,
    parts_of,
    power,
    times,
    variance,
)
from tilewright.program.reading.flow import check_move, last_change, used_elsewhere
from tilewright.program.reading.module import Edit, NotSure, ReadModule
from tilewright.program.reading.numbers import is_number
from tilewright.program.reading.operations import operation
from tilewright.source.source_file import stored

PACKAGE = "torch.nn.functional"


@dataclass(frozen=True)
class HandWritten:
    """A fused function: its name, the arguments of a call, and its normal form for an input, an axis and an epsilon."""

    name: str
    form: Callable[[Form, int, Form], Form]
    arguments: str
    axes: tuple[int, ...] = (-1,)
    epsilon: bool = False

    @cached_property
    def heads(self) -> frozenset[str]:
        """The functions and reductions in its normal form. An expression without them need not be compared."""
        return _heads(parts_of(self.form(("leaf", "x", (), (0, 0)), -1, number(1.0))))


def _heads(parts: Iterable[Form]) -> frozenset[str]:
    return frozenset(part[0] for part in parts) - {"leaf", "+", "*"}


def _sigmoid(x: Form) -> Form:
    return power(add(("exp", times(x, factor=-1.0)), constant=1.0), -1.0)


def _gelu_tanh(x: Form, cube: Form) -> Form:
    return times(x, add(("tanh", times(cube, factor=math.sqrt(2 / math.pi))), constant=1.0), factor=0.5)


def _exponentials(x: Form, dim: int) -> Form:
    return ("exp", add(x, times(("amax", x, dim), factor=-1.0)))


def _centred(x: Form) -> Form:
    return add(x, times(("mean", x, -1), factor=-1.0))


LAST = "{x}, {x}.shape[-1:], eps={eps}"
KNOWN = (
    HandWritten("gelu", lambda x, d, e: _gelu_tanh(x, add(x, times(power(x, 3.0), factor=0.044715))),
                '{x}, approximate="tanh"'),
    HandWritten("gelu", lambda x, d, e: _gelu_tanh(x, times(x, add(times(x, x, factor=0.044715), constant=1.0))),
                '{x}, approximate="tanh"'),
    HandWritten("gelu", lambda x, d, e: times(x, add(("erf", times(x, factor=0.5**0.5)), constant=1.0), factor=0.5),
                "{x}"),
    HandWritten("silu", lambda x, d, e: times(x, ("sigmoid", x)), "{x}"),
    HandWritten("silu", lambda x, d, e: times(x, _sigmoid(x)), "{x}"),
    HandWritten("softmax", lambda x, d, e: times(_exponentials(x, d), power(("sum", _exponentials(x, d), d), -1.0)),
                "{x}, dim={dim}", (-1, 0, 1, 2, 3, -2)),
    HandWritten("softmax", lambda x, d, e: times(("exp", x), power(("sum", ("exp", x), d), -1.0)),
                "{x}, dim={dim}", (-1, 0, 1, 2, 3, -2)),
    *(HandWritten("log_softmax", lambda x, d, e, n=n: list(log_softmax_forms(x, d))[n],  # type: ignore[misc]
                  "{x}, dim={dim}", (-1, 0, 1, 2, 3, -2)) for n in range(7)),
    HandWritten("softplus", lambda x, d, e: ("log", add(("exp", x), constant=1.0)), "{x}"),
    HandWritten("sigmoid", lambda x, d, e: _sigmoid(x), "{x}"),
    HandWritten("layer_norm", lambda x, d, e: times(_centred(x), power(add(variance(x, -1), e), -0.5)), LAST,
                epsilon=True),
    HandWritten("rms_norm", lambda x, d, e: times(x, power(add(("mean", power(x, 2.0), -1), e), -0.5)), LAST,
                epsilon=True),
)  # fmt: skip


class FunctionsByHand(ProgramChange):
    name = "functions_by_hand"
    about = "computes the function in one kernel instead of one for each operation"
    words = ("element wise fus*", "elementwise fus*", "fuse* element*", "fuse* small kernel", "fuse* activation*",
             "fuse* layer norm", "fuse* layernorm", "fuse* rms norm", "fuse* rmsnorm", "fuse* gelu", "fuse* softmax",
             "fuse* chain", "kernel fusion", "operator fusion", "fuse* operation")  # fmt: skip
    findings = ("short-kernels", "launch-calls", "host-late")
    ran = (r"(?i)gelu|silu|softmax|layer_?norm|rms_?norm",)
    gone = (r"aten::(tanh|erf|pow|mean|rsqrt|sqrt|exp|sigmoid|div)$",)
    order = 25
    absent = "the program has no activation, softmax or norm that is written by hand"

    def look(self, module: ReadModule) -> Iterator[ChangeSite | NearMiss]:
        done: list[ast.AST] = []
        for node in module.file.nodes:  # the outer expressions come first
            if not isinstance(node, (ast.BinOp, ast.Call)) or any(_inside(module, node, each) for each in done):
                continue
            try:
                site = _site(module, node)
            except NotSure as reason:
                done.append(node)
                yield NearMiss(reason.line, reason.reason)
                continue
            if site is not None:
                done.append(node)
                yield site


def _inside(module: ReadModule, node: ast.AST, whole: ast.AST) -> bool:
    return any(each is whole for each in module.above(node))


def _site(module: ReadModule, node: ast.expr) -> ChangeSite | None:
    if is_leaf(module, node):
        return None
    forms, final = NormalForms(module), module.statement(node)
    whole = forms.of(node, final)
    if whole[0] == "mean" and (site := _squared_error(module, forms, node, whole)) is not None:
        return site
    if whole[0] not in ("*", "+", "log") or _is_call_of(module, node, "log_softmax", "softmax"):
        return None
    parts = list(dict.fromkeys(parts_of(whole)))
    if any(part[0] == "sample variance" for part in parts):
        raise NotSure("its variance divides by n − 1, that of a layer norm by n", node)
    heads = _heads(parts)
    for known in KNOWN if heads else ():
        if not known.heads <= heads:
            continue
        for x in (part for part in parts if part in forms.named):
            for epsilon in _epsilons(module, forms, parts, x) if known.epsilon else [("", number(0))]:
                for dim in known.axes:
                    form = known.form(x, dim, epsilon[1])
                    rest = _rest(whole, form, forms, x) if known.epsilon else ("" if equal(whole, form) else None)
                    if rest is not None:
                        values = {"dim": dim, "eps": epsilon[0]}
                        return _written(module, forms, node, forms.named[x], known, values, rest)
    return None


def _is_call_of(module: ReadModule, node: ast.expr, *names: str) -> bool:
    return operation(module, node)[0] in names


def _rest(whole: Form, form: Form, forms: NormalForms, x: Form) -> str | None:
    """Returns the text of the other factors of ``whole``, such as ``self.weight * ``; None if the norm ``form`` is no
    factor.
    """
    if equal(whole, form):
        return ""
    if whole[0] != "*" or form[0] != "*":
        return None
    left = list(whole[1])
    for factor in form[1]:
        found = next((each for each in left if equal(each, factor)), None)
        if found is None:
            return None
        left.remove(found)
    if any(exponent != 1.0 or base not in forms.codes or base == x for base, exponent in left):
        return None
    return "".join(f"{forms.module.operand(forms.codes[base])} * " for base, _ in left)


def _squared_error(module: ReadModule, forms: NormalForms, node: ast.expr, whole: Form) -> ChangeSite | None:
    """``((a - b) ** 2).mean()`` → ``mse_loss(a, b)``"""
    match whole:
        case ("mean", ("*", ((("+", 0.0, ((one, a), (other, b))), 2.0),)), None) if {one, other} == {1.0, -1.0}:
            texts = [forms.named.get(each) or forms.codes.get(each) for each in (a, b)]
            if forms.followed or not all(isinstance(text, (ast.Name, ast.Attribute)) for text in texts):
                return None  # no edit if a part of the expression is evaluated in another place
            call = ", ".join(module.code(text) for text in texts if text is not None)
            edit = module.replace(node, f"{module.spelled(f'{PACKAGE}.mse_loss', node)}({call})")
            return ChangeSite(node.lineno, "mse_loss", (edit,))
    return None


def _epsilons(module: ReadModule, forms: NormalForms, parts: list[Form], x: Form) -> list[tuple[str, Form]]:
    """Returns the texts and forms of all candidates for the epsilon: constants in a sum, and names of numbers."""
    constants = {part[1] for part in parts if part[0] == "+" and part[1] and part[2]}
    leaves = [part for part in parts if part in forms.codes and part != x and is_number(module, forms.codes[part])]
    return [(repr(value), number(value)) for value in sorted(constants)] + [(leaf[1], leaf) for leaf in leaves]


def _written(
    module: ReadModule,
    forms: NormalForms,
    node: ast.expr,
    name: ast.Name,
    known: HandWritten,
    values: dict[str, object],
    rest: str = "",
) -> ChangeSite:
    final = module.statement(node)
    at = module.statement(name)
    if last_change(module, name.id, final) is not last_change(module, name.id, at):
        raise NotSure(f"'{name.id}' is bound anew before its last use", node)
    for statement in forms.followed:
        check_move(module, name, statement, final, forms.followed)
    function = module.spelled(f"{PACKAGE}.{known.name}", node)
    call = f"{rest}{function}({known.arguments.format(x=name.id, **values)})"
    made = last_change(module, name.id, final)
    unused = unused_edits(module, {s: n for s, n in forms.followed.items() if s is not made}, node, final)
    edits = [module.replace(node, call), *unused]
    return ChangeSite(node.lineno, known.name, tuple(edits))


def unused_edits(module: ReadModule, gone: dict[ast.stmt, str], node: ast.expr, final: ast.stmt) -> list[Edit]:
    """Makes the edits that delete the statements of ``gone`` whose values nothing else reads."""
    while True:
        inner = {each for whole in (node, *gone) for each in ast.walk(whole) if isinstance(each, ast.Name)}
        kept = [
            statement
            for statement, name in gone.items()
            if used_elsewhere(module, name, inner, [s for s, n in gone.items() if n == name], final) is not None
            or not stored(statement) <= {name}
        ]
        if not kept:
            return [module.delete(statement) for statement in gone]
        for statement in kept:
            del gone[statement]


CHANGE = FunctionsByHand()
