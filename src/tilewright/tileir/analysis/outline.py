"""Outlines a kernel: what each of its loops computes, loads and stores in one iteration, and how many values are live.

The outline is made from Tile IR, so it is known before the kernel is compiled. Trip counts are not in it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from tilewright.tileir.read.tree import KernelEntry, Op, PointerType, TileType, Type
from tilewright.tileir.run.numbers import bits_of

COSTS = {"exp": 8, "exp2": 4, "log": 8, "log2": 4, "divf": 8, "sqrt": 8, "rsqrt": 8, "tanh": 16, "sin": 16, "cos": 16}
"""Instructions for one element. Other operations count 1, a reduction 2."""
FREE = frozenset((
    "constant", "iota", "broadcast", "reshape", "bitcast", "assume", "get_global", "make_partition_view",
    "make_tensor_view", "make_strided_view", "make_token", "join_tokens", "continue", "break", "yield", "return",
    "for", "loop", "if",
))  # fmt: skip
"""Operations that need no instructions for each element, and whose results need no registers of their own."""
LOOPS, FOLDS = ("for", "loop"), ("reduce", "scan")
SMALL = 32
"""Tiles of up to so many elements need few registers."""
PASSED_ON = ("permute", "reshape", "bitcast", "ftof")


@dataclass
class LoopWork:
    """The operations of one loop, without those of loops inside it; or those outside all loops.

    inside: the place of the loop around it among `Outline.parts`; None for the first part, which is outside all loops.
    """

    inside: int | None
    vector: list[tuple[int, int]] = field(default_factory=list)
    """Elements, and instructions for each element, of each operation outside the tensor cores."""
    folds: int = 0
    """Number of reductions and scans."""
    loaded: float = 0.0
    """Bytes."""
    stored: float = 0.0
    """Bytes."""
    products: list[Op] = field(default_factory=list)
    """Matrix products."""
    factors: float = 0.0
    """Registers of the left factors of matrix products that are computed, and not loaded."""

    @property
    def flop(self) -> float:
        """FLOP of the matrix products."""
        return float(sum(2 * op.tile().size * op.tile("lhs").shape[-1] for op in self.products))

    @property
    def accumulators(self) -> int:
        """Number of elements of the results of all matrix products."""
        return sum(op.tile().size for op in self.products)


@dataclass(frozen=True)
class Outline:
    """The parts of a kernel: first the operations outside all loops, then each loop, outer loops first.

    live: 32-bit registers for the values that are live at the same time, over all threads of a block.
    contiguous: bytes of the shortest row of a loaded or stored tile.
    """

    parts: tuple[LoopWork, ...]
    live: float
    contiguous: float

    @property
    def products(self) -> tuple[Op, ...]:
        return tuple(op for part in self.parts for op in part.products)

    @property
    def on_tensor_cores(self) -> bool:
        """Whether the kernel has matrix products on the tensor cores. Products of float32 are not."""
        return any(map(on_tensor_cores, self.products))


def on_tensor_cores(product: Op) -> bool:
    """Returns whether a matrix product runs on the tensor cores. A product of float32 does not."""
    return product.tile("lhs").element != "f32"


def outline(entry: KernelEntry) -> Outline:
    """Returns the outline of a kernel."""
    reader = _Outlining(entry)
    reader.read(entry.body, 0)
    return Outline(tuple(reader.parts), reader.most_live(), reader.contiguous)


class _Outlining:
    def __init__(self, entry: KernelEntry) -> None:
        self.parts = [LoopWork(None)]
        self.contiguous = float("inf")
        self._users: dict[str, list[Op]] = {}
        for op in entry.walk():
            for name in _operands(op):
                self._users.setdefault(name, []).append(op)
        self._words: dict[str, float] = {}
        """Registers of each value."""
        self._born: dict[str, int] = {}
        self._last: dict[str, int] = {}
        """Places of each value's definition and last use."""
        self._loops: list[int] = []
        """Places of the loops around the present operation."""
        self._late: list[tuple[str, int]] = []
        """Values used in a loop that begins after their definition, with the place of the outermost such loop."""
        self._ends: dict[int, int] = {}
        self._place = 0

    def read(self, body: Sequence[Op], part: int) -> None:
        for op in body:
            self._place += 1
            self._use(op)
            self._count(op, self.parts[part])
            start = self._place
            for region in op.regions if op.name not in FOLDS else ():
                inner = part
                if op.name in LOOPS:
                    self.parts.append(LoopWork(part))
                    self._loops.append(start)
                    inner = len(self.parts) - 1
                for name, kind in region.arguments:
                    self._define(name, _words(kind))
                self.read(region.body, inner)
                if op.name in LOOPS:
                    self._loops.pop()
            self._ends[start] = self._place
            for name, kind in zip(op.results, op.result_types, strict=True):
                self._define(name, 0.0 if self._needs_none(op, name) else _words(kind))

    def _define(self, name: str, words: float) -> None:
        self._born[name], self._words[name] = self._place, words

    def _use(self, op: Op) -> None:
        for name in _operands(op):
            self._last[name] = self._place
            outer = next((loop for loop in self._loops if self._born.get(name, 0) < loop), None)
            if outer is not None:
                self._late.append((name, outer))

    def _needs_none(self, op: Op, name: str) -> bool:
        """Returns whether a value needs no registers: it is computed again where it is used, or stays in shared memory
        until a matrix product reads it."""
        if op.name in FREE or (op.name.startswith("load") and self._only_multiplied(name)):
            return True
        sources = list(_operands(op))
        is_new = op.name.startswith(("load", "mma", "atomic")) or op.name in FOLDS
        return bool(sources) and not is_new and not any(self._words.get(source) for source in sources)

    def _only_multiplied(self, name: str) -> bool:
        def multiplies(user: Op) -> bool:
            if user.name in PASSED_ON:
                return self._only_multiplied(user.results[0])
            return user.name.startswith("mma") and on_tensor_cores(user) and name not in user.operands.get("acc", ())

        users = self._users.get(name, [])
        return bool(users) and all(map(multiplies, users))

    def _count(self, op: Op, part: LoopWork) -> None:
        tiles = [kind for kind in op.result_types if isinstance(kind, TileType)]
        if op.name.startswith("mma"):
            part.products.append(op)
            part.factors += sum(self._words.get(name, 0.0) for name in op.operands["lhs"])
        elif op.name.startswith("load") and tiles:
            part.loaded += self._moved(tiles[0])
            if not self._only_multiplied(op.results[0]):
                part.vector.append((round(_words(tiles[0])), 1))
        elif op.name.startswith(("store", "atomic")):
            kinds = [kind for kinds in op.operand_types.values() for kind in kinds if isinstance(kind, TileType)]
            if stored := [kind for kind in kinds if not isinstance(kind.element, PointerType)]:
                largest = max(stored, key=lambda kind: kind.size)
                part.stored += self._moved(largest)
                part.vector.append((round(_words(largest)), 1))
        elif op.name in FOLDS:
            if op.tile("operands").shape[op.attributes["dim"]] > 1:
                part.folds += 1
                part.vector.append((op.tile("operands").size, 2))
        elif op.name not in FREE and tiles:
            part.vector.append((max(kind.size for kind in tiles), COSTS.get(op.name, 1)))

    def _moved(self, tile: TileType) -> float:
        if tile.size > SMALL:
            self.contiguous = min(self.contiguous, tile.shape[-1] * _bits(tile) / 8)
        return tile.size * _bits(tile) / 8

    def most_live(self) -> float:
        for name, loop in self._late:
            self._last[name] = max(self._last[name], self._ends[loop])
        changes: list[tuple[int, int, float]] = []
        for name, words in self._words.items():
            if words:  # an operand dies before the result of its last use is defined
                changes.append((self._born[name], 1, words))
                changes.append((max(self._last.get(name, 0), self._born[name] + 1), 0, -words))
        live = most = 0.0
        for _, _, change in sorted(changes):
            live += change
            most = max(most, live)
        return most


def _operands(op: Op) -> Iterator[str]:
    return (name for names in op.operands.values() for name in names)


def _words(kind: Type) -> float:
    if not isinstance(kind, TileType) or kind.size <= SMALL or kind.element == "i1":
        return 0.0
    return kind.size * _bits(kind) / 32


def _bits(tile: TileType) -> int:
    return 64 if isinstance(tile.element, PointerType) else bits_of(tile.element)
