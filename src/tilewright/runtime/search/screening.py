"""Chooses the trials to verify and race, with the rules and the prediction of `compile.screen`.

The work of a launch in the user's program is not declared. So it is counted in the Tile IR of the configuration that is
needed first (`Building.first`) while compilers run, in another thread: on a few blocks, without data. If it cannot
be counted, or the instructions are not known, the size of the stack decides.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent import futures
from concurrent.futures import Future
from dataclasses import dataclass

from tilewright.compile.screen import RACED, ScreenRow, most_stack, not_raced, ranking, screen
from tilewright.hardware.boards import Board
from tilewright.hardware.executions import Work
from tilewright.inspect.speed_limit import Roofline
from tilewright.inspect.work import CountedWork, classify
from tilewright.race.rules import Policy
from tilewright.records import Configuration
from tilewright.runtime.search.building import Building, Ready, aligned
from tilewright.tools.background import in_thread

COUNTED_BLOCKS = 32
"""The number of blocks on which the work of a launch is counted."""
COUNT_SECONDS = {True: 1.0, False: 0.3}
"""The most seconds for counting, about as long as the first compilers run. The key is True if times will be predicted
from the work."""
EXACT_SECONDS = 5.0
"""The most seconds for counting all blocks of a launch, if its measured time is suspiciously short."""


@dataclass(frozen=True)
class LiveScreen:
    """Screens the trials of a search.

    counting: the result will be the work of a launch; None if it cannot be counted.
    keeps: whether the reference is always raced, because it is the shipped configuration.
    """

    board: Board | None
    counting: Future[CountedWork | None]
    keeps: bool

    @classmethod
    def of(cls, board: Board | None, building: Building) -> LiveScreen:
        """Begins to count. Other trials are compiled, and the first ones are launched, meanwhile."""

        def count() -> CountedWork | None:
            known = board is not None
            work = building.counted(COUNT_SECONDS[building.many], COUNTED_BLOCKS) if known else None
            building.predicts = building.predicts and work is not None
            return work

        return cls(board, in_thread(count, "count"), building.shipped is not None)

    def wait(self) -> None:
        """Waits for the end of counting, which would disturb a race."""
        futures.wait((self.counting,))

    @property
    def work(self) -> CountedWork | None:
        """The work of a launch. Waits until it is counted."""
        work = self.counting.result()
        return work if work is not None and work.bytes else None

    def chosen(
        self, ready: Mapping[int, Ready], reference: int, *, ahead: bool = False
    ) -> tuple[list[int], dict[int, str]]:
        """Returns the trials to verify and race, the best first, and why the others are left out.

        ahead: whether others may still follow. Then a count that is not finished is not waited for.
        """
        ranked = None if ahead and not self.counting.done() else self._ranked(ready, reference)
        if ranked is None:
            return _by_stack(ready, reference if self.keeps else None)
        order, out = ranked
        first = [*order[:RACED], reference] if self.keeps and reference not in order[:RACED] else order[:RACED]
        beyond = {index: not_raced(place, len(order), RACED) for place, index in enumerate(order, 1)}
        return first, {index: why for index, why in (beyond | out).items() if index not in first}

    def too_fast(self, ready: Ready, us: float, reference: Ready, policy: Policy) -> str | None:
        """Returns why a trial cannot have taken this time in µs; None if the time is possible.

        If the time is too short for the known work, the work of trial and reference is counted on all blocks.
        It is not counted if arrays share memory, because shared bytes would count twice.
        """
        if self.board is None or ready.described.shares or reference.described.shares or (work := self.work) is None:
            return None
        roofline = Roofline(self.board, policy)
        if not roofline.refusal(us, [work]):
            return None
        works = [each.counted(EXACT_SECONDS, None) for each in (reference, ready)]
        counted = [each for each in works if each is not None]
        return roofline.refusal(us, counted) if len(counted) == len(works) else None

    def _ranked(self, ready: Mapping[int, Ready], reference: int) -> tuple[list[int], dict[int, str]] | None:
        """Returns the trials by predicted time, and why the others are out; None if nothing can be predicted."""
        rows = {index: row for index, each in ready.items() if (row := _row(index, each)) is not None}
        if self.board is None or len(rows) < len(ready) or (counted := self.work) is None:
            return None
        dtype = next(iter(counted.dtypes), "float32")
        bound = classify(counted.flops, counted.bytes, dtype, self.board)
        work, shipped = Work(counted.flops, counted.bytes, dtype, counted.written), rows[reference].configuration
        screened = dict(zip(rows, screen(list(rows.values()), work, self.board, bound, shipped=shipped), strict=True))
        order = ranking({rows[index].configuration: verdict for index, verdict in screened.items()})
        out = {index: verdict.reason for index, verdict in screened.items() if verdict.verdict == "out"}
        return [int(config.place) for config in order], out


def _row(index: int, ready: Ready) -> ScreenRow | None:
    """Returns a trial as a row for `compile.screen`; None if its instructions are not known."""
    if ready.code.unread:
        return None
    hints = ready.described.language.decorated_hints(ready.trial.kernel, ready.lowered.arch)
    name, arguments = Configuration.of({"place": index}), tuple(map(aligned, ready.flat))
    asked = hints.get("occupancy")
    return ScreenRow(name, ready.trial.grid, ready.code, asked if isinstance(asked, int) else None, arguments)


def _by_stack(ready: Mapping[int, Ready], kept: int | None) -> tuple[list[int], dict[int, str]]:
    stack = {index: each.code.stack_bytes for index, each in ready.items()}
    least, raced = min(stack.values()), max(each.trial.raced_stack for each in ready.values())
    most = max(raced, most_stack(stack.values()))
    order = sorted((index for index in stack if stack[index] <= most or index == kept), key=lambda i: (stack[i], i))
    reason = "spills: {:,} B of stack a thread, where the least is {:,} B"
    return order, {index: reason.format(stack[index], least) for index in stack if index not in order}
