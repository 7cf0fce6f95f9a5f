"""Finds loops that keep a running maximum of scores, and scale what they sum by it: the online form of softmax.

    higher = max(highest, ct.max(score, axis=1))         `OnlineLoop.new`, `OnlineLoop.old`
    part = ct.exp2(score - higher[:, None])              terms
    fade = ct.exp2(highest - higher)
    weight = weight * fade + ct.sum(part, axis=1)        sums
    total = ct.mma(part.astype(v.dtype), values, total * fade[:, None])
    highest = higher

Statements are matched by data flow. Each statement that reads the maximum, the terms, the factor or the sums is one of
these forms. So any other number may stand for the maximum: all terms and sums are multiplied by the same power.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import libcst as cst

from tilewright.playbook.analyses.chunk_loops import assigned_value, plain_target
from tilewright.playbook.analyses.constants import is_constant
from tilewright.playbook.analyses.dataflow import names_assigned, names_read, range_of
from tilewright.playbook.analyses.masked_tiles import negated
from tilewright.playbook.analyses.tile_shapes import same_elements, tile_call, with_new_axes
from tilewright.playbook.base import NotApplicable, refused_at
from tilewright.source.syntax import Expression, Function, Line, Source, argument, dotted

EXPONENTIALS = ("exp", "exp2")
_ENDS = (cst.Break, cst.Continue, cst.Return)


@dataclass(frozen=True, eq=False)
class Update:
    """The ``statement`` that computes the new maximum. ``guards``: tests of constants without which it is not
    compiled."""

    statement: Line
    old: str
    new: str
    guards: tuple[str, ...]
    other: frozenset[cst.CSTNode]
    """The branches that are not compiled with it."""


@dataclass(frozen=True, eq=False)
class OnlineLoop:
    """A loop with a running maximum, as it is compiled if the guards of ``update`` hold.

    scores: what the maximum is subtracted from. exponential: ``exp`` or ``exp2``. dtypes: those to which terms are
    converted. before: the statements that would scale the sums of earlier iterations to the new maximum. sums: their
    names. own: the names of all that depends on the new maximum. uses: the names in the loop that read the old maximum
    or a sum. assigned: the statements that assign them.
    """

    loop: cst.For
    update: Update
    scores: Expression
    exponential: str
    dtypes: tuple[Expression, ...]
    before: tuple[str, ...]
    sums: frozenset[str]
    own: frozenset[str]
    uses: frozenset[cst.CSTNode]
    assigned: frozenset[cst.CSTNode]


def updates_of(source: Source, function: Function, loop: cst.For) -> Iterator[Update]:
    """Yields the statements ``new = max(old, …)`` of a loop without loops inside, for which it has ``old = new``."""
    lines = source.every(Line, loop)
    carried = {
        plain_target(line): value.value for line in lines
        if source.parent(line) is loop.body and isinstance(value := assigned_value(line), cst.Name)
    }  # fmt: skip
    for line in lines if not any(source.every(kind, loop.body) for kind in (cst.For, cst.While)) else ():
        new = plain_target(line)
        operands = [dotted(each) for each in _operands_of_max(source, assigned_value(line))]
        old = next((name for name in operands if name and name != new and carried.get(name) == new), "")
        if old and source.calls("max", inside=line):
            guards, other = _guards(source, function, loop, line)
            yield Update(line, old, new, guards, other)


def _operands_of_max(source: Source, node: Expression | None) -> list[Expression]:
    """Returns the operands of ``max(a, b)`` and ``ct.maximum(a, b)``; none for any other expression."""
    if not isinstance(node, cst.Call):
        return []
    is_max = tile_call(source, node) == "maximum" or (dotted(node.func) == "max" and "max" not in source.functions)
    return [arg.value for arg in node.args if arg.keyword is None] if is_max else []


def _guards(
    source: Source, function: Function, loop: cst.For, line: Line
) -> tuple[tuple[str, ...], frozenset[cst.CSTNode]]:
    """Returns the tests of the branches around a statement of a loop, and the branches beside them."""
    guards, other = list[str](), list[cst.CSTNode]()
    below: cst.CSTNode = line
    for above in source.parents(line):
        if above is loop:
            break
        if isinstance(above, cst.If):
            if not is_constant(source, function, above.test):
                raise NotApplicable(f"line {source.place(above)[0]} decides whether there is a maximum")
            text = source.code(above.test)
            guards.append(text if below is above.body else negated(text))
            other += [each for each in (above.body, above.orelse) if each is not None and each is not below]
        below = above
    return tuple(guards[::-1]), frozenset(other)


def online_loop(source: Source, loop: cst.For, update: Update) -> OnlineLoop:
    """Returns what a loop does with its maximum. Raises `NotApplicable` if the maximum cannot be any other number."""
    return _LoopReader(source, loop, update).read()


@dataclass
class _LoopReader:
    source: Source
    loop: cst.For
    update: Update
    scores: list[Expression] = field(default_factory=list)
    exponentials: list[str] = field(default_factory=list)
    dtypes: list[Expression] = field(default_factory=list)
    factors: list[tuple[str, str]] = field(default_factory=list)
    """The factor by which the sums shrink: name, "" for none, and statement."""
    products: dict[cst.CSTNode, str] = field(default_factory=dict)
    """A product of a sum with the factor → the name of the sum."""
    consumed: set[cst.CSTNode] = field(default_factory=set)
    """Products that a term is added to."""
    added: list[tuple[str, Line]] = field(default_factory=list)
    terms: set[str] = field(default_factory=set)
    uses: set[cst.CSTNode] = field(default_factory=set)
    assigned: set[cst.CSTNode] = field(default_factory=set)

    def read(self) -> OnlineLoop:
        old = self.update.old
        if any(self.source.every(kind, self.loop) for kind in _ENDS) or not range_of(self.loop):
            raise self._refused(self.loop, "this loop is no simple loop over a range")
        carry = next(line for line in self.loop.body.body if plain_target(line) == old)
        assert isinstance(carry, Line)
        self.assigned |= {carry, self.update.statement}
        self.uses |= {name for each in self.update.other for name in self.source.every(cst.Name, each)}
        self._maximum(carry)
        self._follow_maximum()
        self._check_sums()
        return self._found()

    def _found(self) -> OnlineLoop:
        if len(self.scores) != 1 or not self.products or len(set(self.exponentials)) != 1:
            raise self._refused(self.loop, f"the terms do not read {self.update.new} in one subtraction")
        before = [f"{name} = {text}" for name, text in self.factors if name]
        before += [f"{each} = {self.source.code(product)}" for product, each in self.products.items()]
        return OnlineLoop(
            self.loop, self.update, self.scores[0], self.exponentials[0], tuple(self.dtypes),
            tuple(before), frozenset(self.products.values()), frozenset({self.update.new, *self.terms}),
            frozenset(self.uses), frozenset(self.assigned),
        )  # fmt: skip

    def _maximum(self, carry: Line) -> None:
        """Checks that nothing else assigns both maxima, and that the old one is read before it is assigned."""
        old, new = self.update.old, self.update.new
        maxima = [each for each in self.source.every(Line, self.loop) if plain_target(each) == new]
        others = [each for each in maxima if each is not self.update.statement and self._is_live(each)]
        if names_assigned(self.loop)[old] != 1 or names_assigned(self.loop)[new] != len(maxima) or others:
            raise self._refused(self.loop, f"{old} is assigned more than once")
        last = self.loop.body.body.index(carry)
        for each in self.reads(old):
            if self._top(each) >= last:
                raise self._refused(each, f"{old} is read after it is assigned")
            if self.source.parent(self.source.parent(each) or each) is assigned_value(self.update.statement):
                self.uses.add(each)
        self._defined(new, self.update.statement)

    def _follow_maximum(self) -> None:
        terms = list[cst.BinaryOperation]()
        for each in self.reads(self.update.new):
            node = with_new_axes(self.source, each)
            above = self.source.parent(node)
            self.uses.add(each)
            if isinstance(above, cst.Assign) and plain_target(self._line(each)) == self.update.old:
                continue
            if not (isinstance(above, cst.BinaryOperation) and isinstance(above.operator, cst.Subtract)):
                raise self._refused(each, f"{each.value} is read for more than a difference")
            if above.right is not node:
                raise self._refused(each, f"{each.value} is not subtracted")
            if dotted(above.left) == self.update.old:
                self.uses.add(above.left)
                self._factor(above)
            else:
                terms.append(above)
        for difference in terms:
            self.scores.append(difference.left)
            self._exponent(difference)
        unknown = [each for each in self.reads(self.update.old) if each not in self.uses]
        if unknown:
            raise self._refused(unknown[0], f"{self.update.old} is read for more than a maximum")

    def _factor(self, difference: cst.BinaryOperation) -> None:
        call = self._exponential(difference)
        line = self._line(call)
        named = isinstance(self.source.parent(call), cst.Assign)
        name = plain_target(line) if named else ""
        self.factors.append((name, self.source.code(call)))
        uses = self._named(line) if named else [call]
        for use in uses:
            node = with_new_axes(self.source, use)
            above = self.source.parent(node)
            if not (isinstance(above, cst.BinaryOperation) and isinstance(above.operator, cst.Multiply)):
                raise self._refused(use, "the factor of the sums is read for more than a product")
            other = above.right if above.left is node else above.left
            if not isinstance(other, cst.Name) or self._assigns(above) != other.value:
                raise self._refused(use, "the factor of the sums is read for more than a sum")
            self.products[above] = other.value
            self.uses.add(other)

    def _exponent(self, difference: cst.BinaryOperation) -> None:
        named = isinstance(self.source.parent(difference), cst.Assign)
        for use in self._named(self._line(difference)) if named else [difference]:
            self._follow(self._exponential(use))

    def _exponential(self, inside: Expression) -> cst.Call:
        """Returns the exponential of an expression, which is all that reads it."""
        argument_ = self.source.parent(inside)
        call = self.source.parent(argument_) if isinstance(argument_, cst.Arg) else None
        if not isinstance(call, cst.Call) or tile_call(self.source, call) not in EXPONENTIALS:
            raise self._refused(inside, f"{self.source.code(inside)} is no exponent")
        if argument(call, "x", 0) is not inside or any(
            names_read(arg.value) & set(names_assigned(self.loop)) for arg in call.args[1:]
        ):
            raise self._refused(inside, f"{self.source.code(inside)} is no exponent")
        self.exponentials.append(tile_call(self.source, call))
        return call

    def _follow(self, term: Expression) -> None:
        """Follows a term to the sums that it is added to."""
        above = self.source.parent(term)
        call = self.source.parent(above) if isinstance(above, (cst.Arg, cst.Attribute)) else None
        match above:
            case cst.Assign():
                for use in self._named(self._line(term)):
                    self._follow(use)
                return
            case cst.AugAssign(operator=cst.AddAssign(), target=cst.Name(value=name)):
                return self._added(term, above.target, name)
            case cst.BinaryOperation(operator=cst.Add()) if isinstance(self.source.parent(above), cst.Assign):
                other = above.right if above.left is term else above.left
                return self._added(term, other, self._assigns(above))
        if isinstance(call, cst.Call) and same_elements(self.source, call) is term:
            dtype = argument(call, "dtype", 0 if isinstance(above, cst.Attribute) else 1)
            if dtype is not None:
                self.dtypes.append(dtype)
                return self._follow(call)
        if isinstance(call, cst.Call) and call.args[0] is above and tile_call(self.source, call) == "sum":
            return self._follow(call)
        if isinstance(call, cst.Call) and tile_call(self.source, call) == "mma":
            total = argument(call, "acc", 2)
            if total is not None and total is not term and isinstance(self.source.parent(call), cst.Assign):
                return self._added(term, total, self._assigns(call))
        raise self._refused(term, f"{self.source.code(term)} is read for more than a sum")

    def _added(self, term: Expression, total: Expression, name: str) -> None:
        """Checks that a term is added to the sum ``name``, which ``total`` is."""
        if total in self.products and self.products[total] == name:
            self.consumed.add(total)
        elif dotted(total) != name or not name:
            raise self._refused(term, f"{self.source.code(total)} is no sum of terms")
        line = self._line(term)
        if self.source.parent(line) is not self.loop.body:
            raise self._refused(line, f"a branch decides what is added to {name}")
        for call in self.source.calls("mma", inside=line):
            factors = [argument(call, "x", 0), argument(call, "y", 1)]
            if sum(bool(each and names_read(each) & self.terms) for each in factors) > 1:
                raise self._refused(term, "a product of two terms is no sum of terms")
        self.uses.add(total)
        self.added.append((name, line))

    def _check_sums(self) -> None:
        """Checks that each iteration scales each sum once, before it adds to it, and reads it for nothing else."""
        names = list(self.products.values())
        scaled = {name: self._line(product) for product, name in self.products.items()}
        for product, name in self.products.items():
            alone = isinstance(self.source.parent(product), cst.Assign)
            if (product not in self.consumed and not alone) or self.source.parent(scaled[name]) is not self.loop.body:
                raise self._refused(product, f"{name} is no sum of terms")
        for name, line in self.added:
            if name not in scaled or self._top(line) < self._top(scaled[name]):
                raise self._refused(line, f"{name} is not scaled before terms are added")
        for name in names:
            lines = {line for each, line in self.added if each == name} | {scaled[name]}
            other = [each for each in self.reads(name) if each not in self.uses]
            if names.count(name) != 1 or names_assigned(self.loop)[name] != len(lines) or other:
                raise self._refused(scaled[name], f"{name} is more than a sum of terms")
            self.assigned |= lines

    # Places and names --------------------------------------------------------------------------

    def reads(self, name: str) -> list[cst.Name]:
        """Returns the places in the loop that read a name, but for those that are not compiled."""
        return [each for each in reads_of(self.source, name, self.loop) if self._is_live(each)]

    def _is_live(self, node: cst.CSTNode) -> bool:
        return not self.update.other & set(self.source.parents(node))

    def _always_runs(self, line: Line) -> bool:
        around = set(self.source.parents(self.update.statement))
        return all(each in around for each in self.source.parents(line) if isinstance(each, cst.If))

    def _named(self, line: Line) -> list[cst.Name]:
        """Returns the reads of the name of a term, or of a factor, that a statement assigns."""
        self.terms.add(plain_target(line))
        return self._defined(plain_target(line), line)

    def _defined(self, name: str, line: Line) -> list[cst.Name]:
        """Returns the reads of a name from the statement that assigns it to the next one. No iteration may read a value
        of the one before."""
        lines = [each for each in self.source.every(Line, self.loop) if names_assigned(each)[name]]
        lines = [each for each in lines if self._is_live(each)]
        after = lines[lines.index(line) + 1 :] if line in lines else []
        if not name or not all(map(self._always_runs, (lines[0], line, *after))):
            raise self._refused(line, "a branch decides what a term is")
        reads = [(self.source.place(self._line(each)), each) for each in self.reads(name)]
        if any(place <= self.source.place(lines[0]) for place, _ in reads):
            raise self._refused(line, f"{name} is read before it is assigned")
        end = self.source.place(after[0]) if after else (1 << 31, 0)
        return [each for place, each in reads if self.source.place(line) < place <= end]

    def _assigns(self, node: cst.CSTNode) -> str:
        """Returns the name of the statement that a node is in, which is one of the loop's own."""
        line = self._line(node)
        target = line.body[0].target if len(line.body) == 1 and isinstance(line.body[0], cst.AugAssign) else None
        return plain_target(line) or (dotted(target) if target is not None else "")

    def _line(self, node: cst.CSTNode) -> Line:
        return line_around(self.source, node)

    def _top(self, node: cst.CSTNode) -> int:
        """Returns the place of the loop's own statement around a node."""
        around = {node, *self.source.parents(node)}
        return next(index for index, each in enumerate(self.loop.body.body) if each in around)

    def _refused(self, node: cst.CSTNode, reason: str) -> NotApplicable:
        return refused_at(self.source, node, reason)


def reads_of(source: Source, name: str, inside: cst.CSTNode) -> list[cst.Name]:
    """Returns the places below a node that read a name."""
    return [each for each in source.every(cst.Name, inside) if each.value == name and not _is_label(source, each)]


def _is_label(source: Source, node: cst.Name) -> bool:
    """Returns whether a name is assigned, or names an attribute or an argument."""
    match source.parent(node):
        case cst.AssignTarget() | cst.Param() | cst.FunctionDef():
            return True
        case cst.AugAssign(target=target) | cst.AnnAssign(target=target) | cst.For(target=target):
            return target is node
        case cst.Arg(keyword=label) | cst.Attribute(attr=label):
            return label is node
        case cst.Element() as element:
            return isinstance(source.parent(source.parent(element) or element), (cst.AssignTarget, cst.For))
    return False


def line_around(source: Source, node: cst.CSTNode) -> Line:
    """Returns the statement around a node, which is one line. Raises `NotApplicable` if the node is in a condition."""
    for each in (node, *source.parents(node)):
        if isinstance(each, Line):
            return each
        if isinstance(each, cst.BaseCompoundStatement):
            break
    raise refused_at(source, node, "a condition reads the maximum, scores or sums")


def block_around(source: Source, nodes: Sequence[cst.CSTNode]) -> cst.IndentedBlock:
    """Returns the innermost block that contains all nodes."""
    shared = set(source.parents(nodes[0])).intersection(*(source.parents(each) for each in nodes[1:]))
    return next(each for each in source.parents(nodes[0]) if each in shared and isinstance(each, cst.IndentedBlock))
