"""Defines the protocol of a rule, which finds one kind of problem in the record of a run.

    class HostReads(FindingRule):
        name = "host-reads"
        about = "the host reads values of the device in each step"

        def look(self, run):
            ...

    RULE = HostReads()

Put the file into the folder `rules`. A rule is a pure function of the record, and its threshold is data.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from tilewright.program.findings.record import Line, Operation, RecordedRun


@dataclass(frozen=True)
class FindingThreshold:
    """The least that matters: a share of the step's time or operations, and a number in a step. Both must be
    reached.
    """

    share: float = 0.0
    count: float = 0.0

    def reached(self, share: float, count: float) -> bool:
        return share >= self.share and count >= self.count


@dataclass(frozen=True)
class RunFinding:
    """A problem at a place of the program.

    lines: the lines of the place, in one file; the first is the one that is quoted.
    share: the share of the step's time that the operations of the place take.
    figures: name → number, such as ``times a step``.
    changes: the names of the changes that can mend it.
    """

    rule: str
    lines: tuple[Line, ...]
    text: str
    advice: str
    share: float
    figures: Mapping[str, float] = field(default_factory=dict)
    changes: tuple[str, ...] = ()

    @property
    def place(self) -> Line:
        return self.lines[0]

    @property
    def at(self) -> frozenset[tuple[str, int]]:
        """The files and the numbers of the lines."""
        return frozenset((each.file, each.line) for each in self.lines)

    def meets(self, other: RunFinding) -> bool:
        """Whether a line of this finding is one of another."""
        return not self.at.isdisjoint(other.at)


@dataclass(frozen=True)
class Weight:
    """How much operations of a step matter: their share of its time, and their share of its operations."""

    time: float
    calls: float

    @property
    def most(self) -> float:
        """The larger share. On a GPU, many small operations cost their calls."""
        return max(self.time, self.calls)


class FindingRule(ABC):
    """One kind of problem, without state."""

    name: str
    about: str
    """What is found, in one sentence."""
    threshold = FindingThreshold()
    order: int = 100
    """Rules with a small ``order`` come first."""
    covers: tuple[str, ...] = ()
    """The rules whose findings at the same place have the same cause. They are left out."""

    @abstractmethod
    def look(self, run: RecordedRun) -> Iterator[RunFinding]:
        """Yields the findings in a record."""

    def weight(self, run: RecordedRun, operations: Iterable[Operation]) -> Weight:
        """Returns the weight of operations of one part in a step. A part that is longer than a step is the whole
        then.
        """
        operations = tuple(dict.fromkeys(operations))
        if not operations:
            return Weight(0.0, 0.0)
        part = run.parts[operations[0].part]
        us, count = max(run.step_us, part.step_us), max(run.step_count, part.count)
        return Weight(sum(each.cost for each in operations) / us, len(operations) / count)


def lines_of(operations: Iterable[Operation]) -> tuple[Line, ...]:
    """Returns the innermost lines of operations, in order."""
    found = {each.lines[0] for each in operations if each.lines}
    return tuple(sorted(found))
