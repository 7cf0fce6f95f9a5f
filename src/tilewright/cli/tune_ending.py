"""The end of the output of `tilewright tune`: the shrunk space, what to do next, and the gain over what ships."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from tilewright.cli.candidate_table import microseconds
from tilewright.printable import plural
from tilewright.tune.as_json import shipped_of, speedup_of, speedup_over_shipped
from tilewright.tune.shrink import MOST, Shrunk, code

if TYPE_CHECKING:
    from tilewright.records import TuningResult
    from tilewright.space.space import Space
    from tilewright.tune.advice import TuningAdvice

NO_GAIN = 1.02
"""A gain below this factor means that the space, as it is, does not help."""


def shrunk_space(shrunk: Shrunk, space: Space, workloads: int) -> Iterator[str]:
    """Yields the shrunk space as code, and what to know about it."""
    yield f"the space to ship, {len(shrunk.kept)} of at most {MOST} configurations:"
    yield code(shrunk, space)
    if space.where:
        yield "keep where= of your space: it is not part of this text"
    if shrunk.unserved:
        yield f"within 5 % of the winner no longer: {', '.join(shrunk.unserved)}"
    if workloads < 2:
        yield "from one workload; two or three representative ones choose better"
    if not shrunk.measured:
        yield "chosen by predicted times; tune on a GPU before you ship it"


def next_steps(result: TuningResult, advice: TuningAdvice | None, where: str, shrunk: bool) -> Iterator[str]:
    """Yields what to do next."""
    if not result.measured:
        yield f"next: measure on a machine with a GPU: tilewright tune {where}"
        return
    speedup = speedup_over_shipped(result)
    if speedup is None:
        yield "next: find out why no gain is known: --all shows the outcome of each candidate"
        return
    if speedup < NO_GAIN and advice is not None and advice.missing:
        yield f"next: the space does not help as it is; widen it: {'; '.join(advice.missing)}"
    elif speedup < NO_GAIN:
        yield f"next: the space does not help; change the code: tilewright optimize {where}"
    elif not shrunk:
        yield f"next: ship the best configuration, or a few of them: tilewright tune {where} --shrink"
    if speedup >= NO_GAIN:
        yield f"then: change the code: tilewright optimize {where}"


def last_line(result: TuningResult) -> str:
    """Returns the verdict in one line: correctness, and the gain over the shipped configurations."""
    right = all(each.best is not None and each.best.checked and each.best.checked.right for each in result.workloads)
    shipped = []
    for each in result.workloads:
        before, speedup = shipped_of(each), speedup_of(each)
        if before is not None and before.measured is not None and speedup is not None:
            shipped.append(f"{each.workload.name} {microseconds(before.measured.us)}")
    speedup = speedup_over_shipped(result)
    gain = "unknown" if result.measured else "unknown; predicted, not measured"
    if speedup is not None:
        gain = f"{speedup:.3g} over {plural(len(result.workloads), 'workload')}; shipped_us: {', '.join(shipped)}"
    return f"correctness: {'PASS' if right else 'not shown'}; speedup_over_shipped: {gain}"
