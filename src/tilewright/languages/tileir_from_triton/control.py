"""Loops and branches. Their carried values may be pointers, but not descriptors."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.languages.tileir_from_triton.aliasing import branches_of
from tilewright.languages.tileir_from_triton.tokens import Key
from tilewright.languages.tileir_from_triton.translation import Translation, translates
from tilewright.languages.tileir_from_triton.ttir import SsaValue, TtirBlock, TtirOp, Untranslated, ValueType
from tilewright.languages.tileir_from_triton.writer import TOKEN, Handle

LONGEST_LATENCY = 10
UNBOUND = "a value that a loop or branch carries and that is a tensor descriptor"


def _types(values: Sequence[SsaValue], keys: Sequence[Key]) -> list[ValueType]:
    """Returns the types of carried values, and of the memory tokens."""
    if any(value.type.descriptor for value in values):
        raise Untranslated(UNBOUND)
    return [*(value.type for value in values), *[TOKEN] * len(keys)]


@translates("scf.for")
def for_(t: Translation, op: TtirOp) -> Sequence[Handle]:
    """Generates a counted loop. Its ``num_stages`` becomes the latency of the loads and stores in the loop."""
    low, high, step, *initial = op.operands
    keys, block, count = t.tokens.carried([op]), op.body(), len(op.results)
    types, start = _types(initial, keys), [*t.all(initial), *t.tokens.take(keys)]
    unsigned = bool(op.attributes.get("unsignedCmp", False))
    nested = t.emit("For", types, *t.all((low, high, step)), start, unsigned)
    before = t.writer.latency
    if stages := op.attributes.get("tt.num_stages"):
        t.writer.latency = latency_of(stages)
    with t.writer.block(nested, [low.type, *types]) as arguments:
        t.bind(block.arguments, arguments[: count + 1])
        t.tokens.put(keys, arguments[count + 1 :])
        end = t.body(block)
        t.emit("Continue", [*t.all(end.operands), *t.tokens.take(keys)])
    t.writer.latency = before
    return _finished(t, nested, keys, count)


def latency_of(stages: int | None) -> int | None:
    """Returns the latency of loads and stores, 1 to 10, for Triton's ``num_stages``. Returns None without stages."""
    return min(stages, LONGEST_LATENCY) if stages and stages > 0 else None


def _finished(t: Translation, nested: object, keys: Sequence[Key], count: int) -> Sequence[Handle]:
    results: Sequence[Handle] = nested.done()  # type: ignore[attr-defined]
    t.tokens.put(keys, results[count:])
    return results[:count]


@translates("scf.while")
def while_(t: Translation, op: TtirOp) -> Sequence[Handle]:
    """Generates a loop that ends when the condition of its first region is false."""
    (before,), (after,) = op.regions
    keys = t.tokens.carried([op])
    start = [*t.all(op.operands), *t.tokens.take(keys)]
    nested = t.emit("Loop", _types(op.results, keys), start)
    with t.writer.block(nested, _types(op.operands, keys)) as arguments:
        t.bind(before.arguments, arguments[: len(op.operands)])
        t.tokens.put(keys, arguments[len(op.operands) :])
        condition, *passed = t.all(t.body(before).operands)
        branch = t.emit("If", [], condition)
        with t.writer.block(branch, []):
            t.emit("Yield", [])
        with t.writer.block(branch, []):
            t.emit("Break", [*passed, *t.tokens.take(keys)])
        branch.done()
        t.bind(after.arguments, passed)
        end = t.body(after)
        t.emit("Continue", [*t.all(end.operands), *t.tokens.take(keys)])
    return _finished(t, nested, keys, len(op.results))


@translates("scf.if")
def if_(t: Translation, op: TtirOp) -> Sequence[Handle]:
    keys = t.tokens.carried([op])
    tokens = t.tokens.take(keys)
    nested = t.emit("If", _types(op.results, keys), t[op.operands[0]])
    for blocks in (op.regions[0], op.regions[1]):
        t.tokens.put(keys, tokens)
        with t.writer.block(nested, []):
            results = t.all(t.body(blocks[0]).operands) if blocks else []
            t.emit("Yield", [*results, *t.tokens.take(keys)])
    return _finished(t, nested, keys, len(op.results))


# Early returns, which Triton writes as branches between blocks --------------------------------------------------------

Graph = dict[str, TtirBlock]
EXIT = ""
"""A label for the end of the kernel."""


class Lifting:
    """Generates nested ``If`` operations from blocks that branch forwards.

    An ``If`` ends at the block where its two sides meet again.
    """

    def __init__(self, t: Translation, blocks: Sequence[TtirBlock]) -> None:
        self.t, self.graph = t, {block.label: block for block in blocks}
        self._after: dict[str, list[str]] = {}
        self._open: set[str] = set()

    def write(self, label: str, until: str = EXIT) -> list[Handle]:
        """Generates the block ``label`` and all blocks after it, up to ``until``. Returns the values for the arguments
        of ``until``."""
        t = self.t
        while True:
            end = t.body(self.graph[label])
            branches = branches_of(end)
            if not branches:
                return []
            if len(branches) == 1:
                label, passed = branches[0][0], t.all(branches[0][1])
            else:
                label, passed = self.branch(end)
            if label == until:
                return passed
            t.bind(self.graph[label].arguments, passed)

    def branch(self, end: TtirOp) -> tuple[str, list[Handle]]:
        """Generates both sides of a branch. Returns the block where the sides meet, and the values of its arguments."""
        t, sides = self.t, branches_of(end)
        meets = next(one for one in self.after(sides[0][0]) if one in self.after(sides[1][0]))
        arguments = self.graph[meets].arguments if meets else ()
        inside = [op for label in self.between([label for label, _ in sides], meets) for op in self.graph[label].ops]
        keys = t.tokens.carried(inside)
        tokens = t.tokens.take(keys)
        nested = t.emit("If", _types(arguments, keys), t[end.operands[0]])
        for label, passed in sides:
            t.tokens.put(keys, tokens)
            with t.writer.block(nested, []):
                values = t.all(passed)
                if label != meets:
                    t.bind(self.graph[label].arguments, values)
                    values = self.write(label, meets)
                t.emit("Yield", [*values, *t.tokens.take(keys)])
        return meets, list(_finished(t, nested, keys, len(arguments)))

    def after(self, label: str) -> list[str]:
        """Returns the blocks that are on every path from ``label``, in order. The first is ``label``, the last
        `EXIT`."""
        if label not in self._after:
            if label in self._open:
                raise Untranslated("a loop of branches between blocks", self.graph[label].ops[-1])
            self._open.add(label)
            ways = [self.after(target) for target, _ in branches_of(self.graph[label].ops[-1])]
            common = [one for one in ways[0] if all(one in way for way in ways)] if ways else [EXIT]
            self._after[label] = [label, *common]
        return self._after[label]

    def between(self, labels: Sequence[str], until: str) -> list[str]:
        """Returns the blocks that can be reached from ``labels`` without passing ``until``."""
        found: list[str] = []
        waiting = list(labels)
        while waiting:
            if (label := waiting.pop()) not in found and label != until:
                found.append(label)
                waiting += [target for target, _ in branches_of(self.graph[label].ops[-1])]
        return found


def write_body(t: Translation, blocks: Sequence[TtirBlock]) -> None:
    """Generates the body of a kernel. An empty block `EXIT` follows the last block, so that all paths meet there."""
    lifting = Lifting(t, blocks)
    lifting.graph[EXIT] = TtirBlock(EXIT, (), [TtirOp("tt.return", (), (), {})])
    lifting._after[EXIT] = [EXIT]
    lifting.write(blocks[0].label)
    t.emit("Return", [])
