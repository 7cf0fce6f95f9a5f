"""A failing case made smaller while it still fails, as far as that is cheap."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace

from tilewright.errors import TaskError
from tilewright.verify import shapes
from tilewright.verify.cases import Case
from tilewright.verify.examining import Examiner, Result

TRIES = 12
SECONDS = 4.0


def minimised(examiner: Examiner, results: Sequence[Result], only: Case | None = None) -> Result | None:
    """The smallest failing case that up to `TRIES` cases and `SECONDS` seconds of trying find; None where none failed.

    only: the case that a person asked for, which stays as it is.
    """
    failed = next((result for result in results if result.verdict == "incorrect"), None)
    if failed is None or only is not None or failed.case.run == "addresses":
        return failed  # no other way to follow addresses would fit in memory
    best, tried, until = failed, {str(failed.case)}, time.monotonic() + SECONDS
    while len(tried) <= TRIES and time.monotonic() < until:
        candidate = next((one for one in _simpler(examiner, best.case) if str(one) not in tried), None)
        if candidate is None:
            break
        tried.add(str(candidate))
        try:
            result = examiner.examine(best.configuration, candidate)
        except TaskError:
            continue
        if result.verdict == "incorrect":
            best = result
    return best


def _simpler(examiner: Examiner, case: Case) -> Iterator[Case]:
    """One step each: friendlier data and memory first, since they say most, then half of a dimension."""
    plain = Case(())
    for name in ("run", "layout", "data"):
        if getattr(case, name) != getattr(plain, name):
            yield replace(case, **{name: getattr(plain, name)})
    task = examiner.task
    for dims in shapes.halved(task, case.sizes, shapes.shape_dims(task, case.sizes)):
        yield replace(case, dims=tuple(dims.items()), why="smaller")
