"""The record of the operations of a run, as `runtime.operations` wrote it, with what rules ask of it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from tilewright.program.findings.loops import SourceLoop, loops_of

CALL_US = 5.0
"""The time in µs that Python and torch need to call an operation, beside the operation itself; a usual value."""
VIEWS = frozenset((
    "view", "_unsafe_view", "reshape", "t", "transpose.int", "permute", "expand", "unsqueeze", "squeeze", "squeeze.dim",
    "slice.Tensor", "select.int", "alias", "detach", "lift_fresh", "clone", "_to_copy", "unbind.int", "split.Tensor",
    "chunk", "as_strided", "view_as_real", "split_with_sizes",
))  # fmt: skip
"""Operations whose result has values of their first input, unchanged but for their type."""
PURE_VIEWS = VIEWS - {"clone", "_to_copy", "reshape", "_unsafe_view"}
GRADIENTS, BACKWARD = 1, 2


class Line(NamedTuple):
    """A line of the program, and the function that it is in."""

    file: str
    function: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


class Type(NamedTuple):
    shape: tuple[int, ...]
    dtype: str
    device: str
    parameter: bool
    """Whether it is a leaf that gets gradients."""

    @property
    def numel(self) -> int:
        total = 1
        for size in self.shape:
            total *= size
        return total


@dataclass(frozen=True, eq=False)
class Operation:
    """One operation. ``us``: its time. ``number``: equal for results that are computed alike from equal values.

    via: the function of a library that the innermost line called, and in which the operation is; "" if the line itself
    computes.
    """

    part: int
    at: int
    name: str
    via: str
    lines: tuple[Line, ...] = field(repr=False)
    flags: int
    ins: tuple[int, ...]
    outs: tuple[int, ...]
    number: int
    us: float

    @property
    def alike(self) -> tuple[object, ...]:
        """Equal for operations with the same name at the same lines."""
        return self.name, self.via, self.lines, self.flags

    @property
    def cost(self) -> float:
        """The time in µs of the operation and of its call."""
        return self.us + CALL_US

    @property
    def line(self) -> Line | None:
        return self.lines[0] if self.lines else None

    @property
    def base(self) -> str:
        """The name without its overload and without the mark of an operation in place."""
        return self.name.partition(".")[0].rstrip("_")

    @property
    def backward(self) -> bool:
        return bool(self.flags & BACKWARD)

    @property
    def gradients(self) -> bool:
        """Whether it was recorded for a backward pass."""
        return bool(self.flags & GRADIENTS)


@dataclass(frozen=True, eq=False)
class RecordedCall:
    """A call of Python: ``kind`` is ``read``, ``moved``, ``backward``, or ``sized`` for an operation whose result has a
    size that the host waits for. ``moved``: whether the value is on the program's device, or would be with a GPU.
    """

    part: int
    at: int
    kind: str
    name: str
    via: str
    lines: tuple[Line, ...] = field(repr=False)
    ins: tuple[int, ...]
    moved: bool


@dataclass(frozen=True, eq=False)
class RecordedPart:
    """What ran between two steps. ``count``: how many operations; ``operations`` is empty if it is like other parts."""

    index: int
    us: float
    count: int
    operations: tuple[Operation, ...] = field(repr=False)
    events: tuple[RecordedCall, ...] = field(repr=False)
    host: tuple[tuple[tuple[Line, ...], float], ...] = field(repr=False)

    @cached_property
    def step_us(self) -> float:
        """The time of the part's operations and of their calls."""
        return max(1.0, sum(each.cost for each in self.operations))


@dataclass(frozen=True, eq=False)
class RecordedRun:
    """The record of one process."""

    parts: tuple[RecordedPart, ...]
    types: tuple[Type, ...] = field(repr=False)
    """The type of each value."""
    alive: frozenset[int] = field(default=frozenset(), repr=False)
    """The values that the program still had at the end. It may use them later."""
    loops: tuple[SourceLoop, ...] = field(default=(), repr=False)
    """The loops of the program's files."""

    @classmethod
    def read(cls, path: Path, root: Path) -> RecordedRun:
        """Reads the record of a process. root: the folder of the program."""
        record = json.loads(path.read_text())
        return replace(cls.of(record), loops=tuple(loops_of(root, record["files"])))

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> RecordedRun:
        kinds = [Type(tuple(shape), dtype, device, leaf) for shape, dtype, device, leaf in record["kinds"]]
        files = record["files"]
        stacks = [
            (via, tuple(Line(files[file], name, line) for file, name, line in lines)) for via, lines in record["stacks"]
        ]
        parts = _steadied([_part(n, part, stacks, record["names"]) for n, part in enumerate(record["parts"])])
        return cls(parts, tuple(kinds[each] for each in record["types"]), frozenset(record["alive"]))

    @cached_property
    def stored(self) -> tuple[RecordedPart, ...]:
        """The parts whose operations are stored."""
        return tuple(part for part in self.parts if part.operations)

    @cached_property
    def steps(self) -> tuple[RecordedPart, ...]:
        """The stored parts that are steps. The first part has the preparation of the program, and the last one what
        follows the last step. A part with an evaluation is longer than its step, and is left out.
        """
        inner = [part for part in self.stored if 0 < part.index < len(self.parts) - 1]
        if not inner:
            return self.stored
        usual = median(part.count for part in inner)
        return tuple(part for part in inner if usual / 1.5 <= part.count <= 1.5 * usual) or tuple(inner)

    @cached_property
    def step_us(self) -> float:
        """The median time of a step."""
        return median(part.step_us for part in self.steps) if self.steps else 1.0

    @cached_property
    def scenes(self) -> tuple[RecordedPart, ...]:
        """The parts that rules look at: one typical step, and the parts that are no steps, such as an evaluation."""
        if not self.steps:
            return ()
        usual = median(part.count for part in self.steps)
        typical = min(self.steps, key=lambda part: (abs(part.count - usual), part.index))
        others = (part for part in self.stored if part not in self.steps and part.index > 0)
        return (typical, *others)

    @cached_property
    def step_count(self) -> float:
        """The median number of operations of a step."""
        return median(part.count for part in self.steps) if self.steps else 1.0

    @cached_property
    def producers(self) -> Mapping[int, Operation]:
        """Value → the operation that made it."""
        return {out: each for part in self.stored for each in part.operations for out in each.outs}

    @cached_property
    def consumers(self) -> Mapping[int, Sequence[Operation]]:
        """Value → the operations that use it."""
        found: dict[int, list[Operation]] = {}
        for part in self.stored:
            for each in part.operations:
                for value in dict.fromkeys(each.ins):
                    found.setdefault(value, []).append(each)
        return found

    @cached_property
    def writers(self) -> Mapping[int, Sequence[Operation]]:
        """Value → the operations that write to it after it was made."""
        found: dict[int, list[Operation]] = {}
        for part in self.stored:
            for each in part.operations:
                if each.name.partition(".")[0].endswith("_") and each.ins:
                    found.setdefault(self.origin(each.ins[0]), []).append(each)
        return found

    def type_of(self, value: int) -> Type:
        return self.types[value]

    def numel_of(self, made: Operation) -> int:
        """Returns the number of elements of an operation's first result."""
        return self.types[made.outs[0]].numel if made.outs else 0

    def origin(self, value: int) -> int:
        """Returns the value of which a value is a view or a copy."""
        while (made := self.producers.get(value)) is not None and made.name in VIEWS and made.ins:
            value = made.ins[0]
        return value

    def maker(self, value: int) -> Operation | None:
        """Returns the operation that computed a value, behind views and copies."""
        return self.producers.get(self.origin(value))

    def users(self, value: int) -> Iterator[Operation]:
        """Yields the operations that use a value, behind views and copies."""
        for each in self.consumers.get(value, ()):
            if each.name in VIEWS and each.outs:
                yield from self.users(each.outs[0])
            else:
                yield each


def _steadied(parts: Sequence[RecordedPart]) -> tuple[RecordedPart, ...]:
    """Returns the parts with the median time of all operations that are alike. One that was interrupted by chance does
    not look slow then.
    """
    times: dict[tuple[object, ...], list[float]] = {}
    for part in parts:
        for each in part.operations:
            times.setdefault(each.alike, []).append(each.us)
    usual = {key: median(us) for key, us in times.items()}
    return tuple(
        replace(part, operations=tuple(replace(each, us=usual[each.alike]) for each in part.operations))
        for part in parts
    )


def _part(index: int, part: Mapping[str, Any], stacks: Sequence[Any], names: Sequence[str]) -> RecordedPart:
    operations = tuple(
        Operation(
            index, at, names[name], stacks[stack][0], stacks[stack][1], flags, tuple(ins), tuple(outs), number, us
        )
        for at, (stack, name, flags, ins, outs, number, us) in enumerate(part["rows"])
    )
    events = tuple(
        RecordedCall(index, at, kind, name, stacks[stack][0], stacks[stack][1], tuple(ins), moved)
        for at, kind, name, stack, ins, moved in part["events"]
    )
    host = tuple((stacks[stack][1], us) for stack, us in part["host"])
    return RecordedPart(index, part["us"], part["operations"], operations, events, host)
