"""Small cuTile kernels made at random, as source for the front end and as a tree that NumPy walks.

The grammar is the table `FORMS`: each row has the type of its value, those of its operands, the text of cuTile and
the same in NumPy. Nothing here is shared with the interpreter. Types, all of 8 elements or scalar:

    i f h   tiles of int32, float32, bfloat16        m   a tile of truth values
    s       a scalar int32                           c   a truth value
    w       a scalar that no loaded number decides   j   a tile of indices that no loaded number decides

cuTile's front end makes one ``fma`` of a product and a sum, across statements. So products of floats here are exact
in their type: by powers of two, or in float32 of bfloat16.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
from hypothesis import strategies as st

BF16 = ml_dtypes.bfloat16
SIZE = 8
"""Elements of every tile."""
LENGTH = 43
"""Of the inputs: no multiple of a tile."""
ROW, SCATTERED = 6 * SIZE - 3, 13
"""Columns of the outputs; a last tile is cut off."""

Values = dict[str, Any]


@dataclass(frozen=True)
class Form:
    type: str
    operands: str
    text: str
    numpy: Callable[..., Any]
    """Gets the values of all names, then the operands."""


@dataclass(frozen=True)
class Expression:
    form: Form
    operands: tuple[Any, ...]
    """Expressions and literals."""

    def __str__(self) -> str:
        return self.form.text.format(*self.operands)

    def value(self, env: Values) -> Any:
        given = [one.value(env) if isinstance(one, Expression) else one for one in self.operands]
        with np.errstate(all="ignore"):
            return self.form.numpy(env, *given)


def _tile(name: str, padding: Any) -> Callable[..., Any]:
    """``SIZE`` elements from tile ``number``, with ``padding`` for what is not there."""

    def load(env: Values, number: Any) -> Any:
        at = int(number) * SIZE + np.arange(SIZE)
        inside = (at >= 0) & (at < LENGTH)
        return np.where(inside, env[name][np.where(inside, at, 0)], env[name].dtype.type(padding))

    return load


def _gathered(env: Values, at: Any, padding: int) -> Any:
    inside = (at >= 0) & (at < LENGTH)
    return np.where(inside, env["x"][np.where(inside, at, 0)], np.int32(padding))


def _counting(step: int, start: Any) -> Any:
    return np.arange(SIZE, dtype=np.int32) * np.int32(step) + start


def _folded(combine: Callable[..., Any], axis: int) -> Callable[..., Any]:
    """Along an axis of (2, 4), spread over it again."""

    def fold(env: Values, a: Any) -> Any:
        return np.broadcast_to(combine(a.reshape(2, 4), axis=axis, keepdims=True), (2, 4)).reshape(SIZE)

    return fold


def _sum(a: Any, **axes: Any) -> Any:
    return np.sum(a, dtype=a.dtype, **axes)


STEPS = {"+": operator.add, "-": operator.sub, "*": operator.mul}


def _arithmetic(kind: str, other: str, signs: str = "+-*") -> list[Form]:
    return [
        Form(kind, kind + other, f"({{}} {sign} {{}})", lambda e, a, b, step=STEPS[sign]: step(a, b)) for sign in signs
    ]


def _compared(kind: str, operands: str) -> list[Form]:
    steps = {"<": np.less, "<=": np.less_equal, ">": np.greater, "==": np.equal}
    return [
        Form(kind, operands, f"({{}} {sign} {{}})", lambda e, a, b, step=step: step(a, b))
        for sign, step in steps.items()
    ]


def _of_any_tile(kind: str) -> list[Form]:
    return [
        Form(kind, f"m{kind}{kind}", "ct.where({}, {}, {})", lambda e, m, a, b: np.where(m, a, b)),
        Form(
            kind, kind, "ct.permute({}.reshape((2, 4)), (1, 0)).reshape((8,))",
            lambda e, a: a.reshape(2, 4).T.reshape(SIZE),
        ),
        Form(
            kind, kind, "ct.permute({}.reshape((2, 2, 2)), (1, 2, 0)).reshape((8,))",
            lambda e, a: a.reshape(2, 2, 2).transpose(1, 2, 0).reshape(SIZE),
        ),
        *_arithmetic(kind, kind, "+-*" if kind == "i" else "+-"),
    ]  # fmt: skip


def _divided(kind: str) -> list[Form]:
    return [
        Form(kind, f"{kind}d", "({} // {})", lambda e, a, b: a // b),
        Form(kind, f"{kind}d", "({} % {})", lambda e, a, b: a % b),
    ]


def _name(kind: str, name: str) -> Form:
    return Form(kind, "", name, lambda e: e[name])


LEAVES = [
    *(_name(name[0], name) for name in ("i0", "i1", "f0", "f1", "h0", "h1", "s0", "s1", "w0", "w1")),
    *(_name("w", name) for name in ("bx", "by", "n")),
    Form("j", "dw", "(ct.arange(8, dtype=ct.int32) * {} + {})", lambda e, k, w: _counting(k, w)),
    Form("m", "ik", "({} > {})", lambda e, a, k: a > k),
    Form("c", "sk", "({} > {})", lambda e, a, k: a > k),
]  # fmt: skip

_FOLDED = "ct.broadcast_to(ct.{}({{}}.reshape((2, 4)), axis={}, keepdims=True), (2, 4)).reshape((8,))"

FORMS = [
    *_of_any_tile("i"), *_of_any_tile("f"), *_of_any_tile("h"),
    *_arithmetic("i", "k"), *_arithmetic("i", "s"), *_divided("i"),
    *_arithmetic("f", "q", "+-"), *_arithmetic("f", "p", "*"),
    *_arithmetic("w", "k"), *_arithmetic("w", "w"), *_divided("w"),
    *_arithmetic("s", "k"), *_arithmetic("s", "s"), *_divided("s"),
    Form("i", "ii", "({} & {})", lambda e, a, b: a & b),
    Form("i", "ii", "({} ^ {})", lambda e, a, b: a ^ b),
    Form("i", "ii", "ct.minimum({}, {})", lambda e, a, b: np.minimum(a, b)),
    Form("i", "ii", "ct.maximum({}, {})", lambda e, a, b: np.maximum(a, b)),
    Form("i", "j", "{}", lambda e, a: a),
    Form("i", "s", "ct.load(x, ({},), (8,), padding_mode=ZERO)", _tile("x", 0)),
    Form("i", "ik", "ct.gather(x, {}, padding_value={})", _gathered),
    Form("i", "i", _FOLDED.format("sum", 0), _folded(_sum, 0)),
    Form("i", "i", _FOLDED.format("max", 1), _folded(np.max, 1)),
    Form("i", "i", _FOLDED.format("min", 1), _folded(np.min, 1)),
    Form("i", "s", "ct.broadcast_to({}, (8,))", lambda e, s: np.broadcast_to(s, SIZE)),
    Form("f", "s", "ct.load(f, ({},), (8,), padding_mode=NEG_ZERO)", _tile("f", -0.0)),
    Form("f", "i", "ct.astype({}, ct.float32)", lambda e, a: a.astype(np.float32)),
    Form("f", "h", "ct.astype({}, ct.float32)", lambda e, a: a.astype(np.float32)),
    # At most 8 · 15 in magnitude: every order of the additions gives the same sum.
    Form("f", "i", "ct.broadcast_to(ct.sum(ct.astype({} % 16, ct.float32)), (8,))",
         lambda e, a: np.broadcast_to(_sum((a % 16).astype(np.float32)), SIZE)),
    Form("h", "s", "ct.load(h, ({},), (8,), padding_mode=ZERO)", _tile("h", 0)),
    Form("h", "hh", "ct.astype(ct.astype({}, ct.float32) * ct.astype({}, ct.float32), ct.bfloat16)",
         lambda e, a, b: (a.astype(np.float32) * b.astype(np.float32)).astype(BF16)),
    Form("h", "f", "ct.astype({}, ct.bfloat16)", lambda e, a: a.astype(BF16)),
    Form("s", "i", "ct.max({}).item()", lambda e, a: np.max(a)),
    Form("s", "i", "ct.sum({}).item()", lambda e, a: _sum(a)),
    Form("s", "s", "ct.gather(x, {}).item()", lambda e, s: _gathered(e, s, 0)[()]),
    Form("s", "w", "{}", lambda e, w: w),
    Form("s", "ss", "min({}, {})", lambda e, a, b: min(a, b)),
    *_compared("m", "ik"), *_compared("m", "ii"), *_compared("m", "fq"), *_compared("m", "ff"),
    Form("m", "mm", "({} & {})", lambda e, a, b: a & b),
    Form("m", "mm", "({} | {})", lambda e, a, b: a | b),
    *_compared("c", "sk"), *_compared("c", "ss"),
    Form("c", "cc", "({} and {})", lambda e, a, b: a and b),
    Form("c", "cc", "({} or {})", lambda e, a, b: a or b),
    Form("c", "c", "(not {})", lambda e, a: not a),
]  # fmt: skip

LITERALS = {
    "k": st.integers(-9, 9),
    "d": st.sampled_from([-7, -3, -2, 2, 3, 5, 8]),
    "p": st.sampled_from([-2.0, -0.5, 0.25, 4.0]),
    "q": st.sampled_from([-1.5, -0.5, 0.0, 0.25, 2.0, 3.0]),
}
DECIDED = {"s": "w", "i": "j"}
"""Of where no loaded number may decide what is accessed or which way is taken: what stands for what there."""


# Statements -------------------------------------------------------------------------------------------


class Leaving(Exception):
    """``break``, ``continue`` or ``return``, by its word."""


@dataclass(frozen=True)
class Assign:
    name: str
    value: Expression

    def lines(self) -> list[str]:
        return [f"{self.name} = {self.value}"]

    def run(self, env: Values) -> None:
        env[self.name] = self.value.value(env)


@dataclass(frozen=True)
class Scatter:
    """Elements of a row of ``sc``, those outside left out."""

    step: int
    start: Expression
    value: Expression

    def lines(self) -> list[str]:
        index = f"ct.arange(8, dtype=ct.int32) * {self.step} + {self.start}"
        return [f"ct.scatter(sc, (place, {index}), {self.value})"]

    def run(self, env: Values) -> None:
        with np.errstate(all="ignore"):
            at = np.arange(SIZE, dtype=np.int32) * np.int32(self.step) + self.start.value(env)
        inside = (at >= 0) & (at < SCATTERED)
        env["sc"][env["place"], at[inside]] = self.value.value(env)[inside]


@dataclass(frozen=True)
class Leave:
    word: str

    def lines(self) -> list[str]:
        return [self.word]

    def run(self, env: Values) -> None:
        raise Leaving(self.word)


@dataclass(frozen=True)
class If:
    condition: Expression
    then: Sequence[Any]
    otherwise: Sequence[Any]

    def lines(self) -> list[str]:
        other = ["else:", *_indented(self.otherwise)] if self.otherwise else []
        return [f"if {self.condition}:", *_indented(self.then), *other]

    def run(self, env: Values) -> None:
        for one in self.then if self.condition.value(env) else self.otherwise:
            one.run(env)


@dataclass(frozen=True)
class For:
    """At most 6 times; ``name`` is assigned in the body, so that it is read there too."""

    name: str
    start: Expression
    end: Expression
    step: int
    body: Sequence[Any]

    def lines(self) -> list[str]:
        head = f"for {self.name} in range({self.start} % 3, {self.end} % 7, {self.step}):"
        return [head, f"    w1 = w1 + {self.name}", *_indented(self.body)]

    def run(self, env: Values) -> None:
        for number in range(self.start.value(env) % 3, self.end.value(env) % 7, self.step):
            with np.errstate(all="ignore"):
                env["w1"] = env["w1"] + np.int32(number)
            if _left(self.body, env):
                return


@dataclass(frozen=True)
class While:
    """``name`` counts, so that it ends."""

    name: str
    end: Expression
    body: Sequence[Any]

    def lines(self) -> list[str]:
        head = [f"{self.name} = 0", f"while {self.name} < {self.end} % 5:"]
        return [*head, f"    {self.name} = {self.name} + 1", *_indented(self.body)]

    def run(self, env: Values) -> None:
        count = 0
        while count < self.end.value(env) % 5:
            count += 1
            if _left(self.body, env):
                return


def _left(body: Sequence[Any], env: Values) -> bool:
    """Runs the body of a loop once; whether it was left for good."""
    try:
        for one in body:
            one.run(env)
    except Leaving as leaving:
        if str(leaving) == "return":
            raise
        return str(leaving) == "break"
    return False


def _indented(body: Sequence[Any]) -> list[str]:
    return [f"    {line}" for one in body for line in one.lines()]


HEAD = """import cuda.tile as ct

ZERO, NEG_ZERO = ct.PaddingMode.ZERO, ct.PaddingMode.NEG_ZERO


@ct.kernel
def kernel(x, f, h, oi, of, oh, sc, n):
    bx, by = ct.bid(0), ct.bid(1)
    place = bx + by * ct.num_blocks(0)
    w0, w1 = bx * 3 - by, n - bx
    s0, s1 = ct.gather(x, place).item(), w0 + 1
    i0, i1 = ct.load(x, (place,), (8,), padding_mode=ZERO), ct.arange(8, dtype=ct.int32) - bx
    f0, f1 = ct.load(f, (place,), (8,), padding_mode=ZERO), ct.astype(i1, ct.float32)
    h0, h1 = ct.load(h, (place,), (8,), padding_mode=ZERO), ct.astype(f1, ct.bfloat16)
"""
TAIL = """    ct.store(oi, (place, 0), i0.reshape((1, 8)))
    ct.store(oi, (place, 1), i1.reshape((1, 8)))
    ct.store(oi, (place, 2), ct.broadcast_to(s0, (1, 8)))
    ct.store(oi, (place, 3), ct.broadcast_to(s1, (1, 8)))
    ct.store(oi, (place, 4), ct.broadcast_to(w0, (1, 8)))
    ct.store(oi, (place, 5), ct.broadcast_to(w1, (1, 8)))
    ct.store(of, (place, 0), f0.reshape((1, 8)))
    ct.store(of, (place, 1), f1.reshape((1, 8)))
    ct.store(oh, (place, 0), h0.reshape((1, 8)))
    ct.store(oh, (place, 1), h1.reshape((1, 8)))
"""
OUTPUTS = ("oi", "of", "oh", "sc")


@dataclass(frozen=True)
class Program:
    body: tuple[Any, ...]
    decided: bool
    """No loaded number decides what is accessed or which way is taken."""

    @property
    def source(self) -> str:
        return HEAD + "".join(f"{line}\n" for line in _indented(self.body)) + TAIL

    def run(self, arrays: Mapping[str, Any], n: int, grid: tuple[int, int]) -> None:
        """Every block, one after the other; the outputs among ``arrays`` are written."""
        for by in range(grid[1]):
            for bx in range(grid[0]):
                self._block({**arrays, "n": np.int32(n)}, np.int32(bx), np.int32(by), grid)

    def _block(self, env: Values, bx: Any, by: Any, grid: tuple[int, int]) -> None:
        place = bx + by * np.int32(grid[0])
        env |= {"bx": bx, "by": by, "place": place, "w0": bx * np.int32(3) - by, "w1": env["n"] - bx}
        env |= {"s0": _gathered(env, place, 0)[()], "s1": env["w0"] + np.int32(1)}
        env |= {"i0": _tile("x", 0)(env, place), "i1": np.arange(SIZE, dtype=np.int32) - bx}
        env |= {"f0": _tile("f", 0)(env, place), "f1": env["i1"].astype(np.float32)}
        env |= {"h0": _tile("h", 0)(env, place), "h1": env["f1"].astype(BF16)}
        try:
            for one in self.body:
                one.run(env)
        except Leaving:
            return
        scalars = np.repeat([env[name] for name in ("s0", "s1", "w0", "w1")], SIZE)
        env["oi"][place] = np.concatenate([env["i0"], env["i1"], scalars])[:ROW]
        env["of"][place] = np.concatenate([env["f0"], env["f1"]])
        env["oh"][place] = np.concatenate([env["h0"], env["h1"]])


# Drawing ----------------------------------------------------------------------------------------------


@dataclass
class _Drawing:
    draw: Any
    decided: bool
    loops: int = 0

    def expression(self, kind: str, depth: int) -> Any:
        if kind in LITERALS:
            return self.draw(LITERALS[kind])
        forms = [one for one in LEAVES if one.type == kind]
        if depth > 0:
            forms = [one for one in FORMS if one.type == kind] or forms
        form = self.draw(st.sampled_from(forms))
        return Expression(form, tuple(self._operand(form, kind, depth - 1) for kind in form.operands))

    def _operand(self, form: Form, kind: str, depth: int) -> Any:
        """Where a program is decided, an address or a condition is made of what no loaded number decides."""
        accessing = form.type == "c" or "ct.load" in form.text or "ct.gather" in form.text
        return self.expression(DECIDED.get(kind, kind) if self.decided and accessing else kind, depth)

    def scalar(self, depth: int = 2) -> Any:
        return self.expression("w" if self.decided else "s", depth)

    def statements(self, depth: int, inside: str = "") -> list[Any]:
        return [self.statement(depth, inside) for _ in range(self.draw(st.integers(1, 3)))]

    def statement(self, depth: int, inside: str) -> Any:
        """``inside``: "" at the top, "loop" in a loop, "if" in a branch at the top."""
        kinds = ["assign", "assign", "scatter"]
        if depth:
            kinds += ["if", "if", "for", "while"]
        if inside != "if":
            kinds.append("leave")
        kind = self.draw(st.sampled_from(kinds))
        if kind == "assign":
            name = self.draw(st.sampled_from(["i0", "i1", "f0", "f1", "h0", "h1", "s0", "s1", "w0", "w1"]))
            return Assign(name, self.expression(name[0], 3))
        if kind == "scatter":
            return Scatter(self.draw(st.sampled_from([1, 2, 3, -1])), self.scalar(), self.expression("i", 2))
        if kind == "leave":  # always in an if, so that something follows
            word = self.draw(st.sampled_from(["break", "continue"])) if inside else "return"
            before = self.statements(0, "if") if self.draw(st.booleans()) else []
            return If(self.expression("c", 2), [*before, Leave(word)], [])
        if kind == "if":
            otherwise = self.statements(depth - 1, inside or "if") if self.draw(st.booleans()) else []
            return If(self.expression("c", 2), self.statements(depth - 1, inside or "if"), otherwise)
        self.loops += 1
        name, number = f"c{self.loops}", self.loops
        if kind == "while":
            return While(name, self.scalar(), self.statements(depth - 1, "loop"))
        step = self.draw(st.integers(1, 3))
        return For(f"v{number}", self.scalar(), self.scalar(), step, self.statements(depth - 1, "loop"))


@st.composite
def programs(draw: Any) -> Program:
    drawing = _Drawing(draw, draw(st.booleans()))
    return Program(tuple(drawing.statements(3) + drawing.statements(2)), drawing.decided)
