"""Screening: decides from the machine code, before anything runs, which candidates are raced.

`tune` and the search in the user's process use the same rules. Many hints change nothing, so candidates with the same
code and launch are timed once. The other rules compare a candidate with the best predicted one, so some candidates
always stay. Spills alone are no reason to drop a candidate. For a 4000×4097×2000 product on an H200, 32 of 40
candidates spill, and the fastest candidate spills, too. If the instructions are not known, the size of the stack shows
which candidates spill (`most_stack`).

The thresholds were chosen, and are checked, on the races in bench/recorded/: no threshold drops a winner there.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from tilewright import records
from tilewright.compile.compile import Compiled, launch_of
from tilewright.compile.skipped import NotCompiled
from tilewright.hardware.architectures import Occupancy
from tilewright.hardware.boards import Board
from tilewright.hardware.executions import Work, occupancy_of
from tilewright.hardware.prediction import Launched
from tilewright.languages import language_of
from tilewright.languages.base import Argument
from tilewright.records import Bound, Candidate, Configuration, Failed, MachineCode, Screened
from tilewright.space.union import implementation_of
from tilewright.task.task import Task
from tilewright.task.tensors import Dims

RACED = 10
"""The number of candidates, best predicted first, that are verified and raced in addition to the shipped candidate."""
ENOUGH_TO_START = 0.3
"""The share of the candidates that must be compiled before the best of them are verified. With a smaller share, most of
the verified candidates would not be among the best in the end."""
SLOWER = 2.0
"""A candidate is not raced if its predicted time is more than this many times the shortest. In the recorded cases, the
predicted time of the fastest is at most 1.14 times the shortest, even if its kernel was not used for the fit."""
SPILL_SHARE = 0.10
"""Spills that take less than this share of the predicted time are ignored: spills before and after the loop cost
little."""
SPILLS_SLOWER = 1.5
"""`SLOWER` for candidates that spill more than `SPILL_SHARE`."""
KEEP = 8
"""At least this many different machine codes remain in the race, if that many can be launched."""
SPILL_BYTES = 128
"""Bytes of stack per thread. If the instructions are not known, a candidate with more stack counts as spilling.

158 of the recorded candidates spill. Those with more stack are 1.19 to 76 times slower than the best. A candidate with
40 bytes is the fastest of its workload.
"""

Verdict: TypeAlias = Literal["race", "last", "out"]


@dataclass(frozen=True)
class ScreenRow:
    """One compiled candidate. ``grid`` counts blocks of the tile language, each of which is a cluster."""

    configuration: Configuration
    grid: tuple[int, ...]
    code: MachineCode
    occupancy: int | None = None
    """CTAs per SM that a hint requests; None if the compiler chooses."""
    arguments: tuple[Argument, ...] = ()
    """The arguments of the compiled kernel (`Language.arguments`)."""


def same_work(code_hash: str, grid: tuple[int, ...], arguments: Iterable[Argument]) -> Hashable:
    """Returns a key that is equal for launches with equal machine code, grid and arguments of the code."""
    return code_hash, grid, tuple((argument, type(argument)) for argument in arguments)


def most_stack(stack_bytes: Iterable[int]) -> int:
    """Returns the limit of the stack per thread, in bytes. Candidates with more stack are not worth a launch.

    The limit is for candidates of which only the headers were read. It is `SPILL_BYTES`, or twice the least of
    ``stack_bytes`` if all candidates spill.
    """
    least = min(stack_bytes, default=0)
    return SPILL_BYTES if least <= SPILL_BYTES else 2 * least


def same_code_as(other: object) -> str:
    """Returns the reason why a candidate is not raced: ``other`` does the same work, and is raced in its place."""
    return f"same machine code as {other}"


def not_raced(place: int, ranked: int, top: int) -> str:
    """Returns the reason, in words, why a candidate is not raced: its rank ``place`` is greater than ``top``.

    ranked: the number of candidates that have a rank.
    """
    return f"predicted {place}. of {ranked}; the first {top} were raced"


def screen(
    rows: Sequence[ScreenRow], work: Work, board: Board, bound: Bound, *, shipped: Configuration | None = None
) -> tuple[Screened, ...]:
    """Returns a verdict for each of ``rows``, in their order: "race", "last" (ranked after the others) or "out" (not
    raced).

    shipped: the baseline. It represents its duplicates, and is never "out": its verdict is "last" at worst.
    """
    members: dict[Hashable, list[ScreenRow]] = {}
    for row in rows:
        members.setdefault(same_work(row.code.code_hash, row.grid, row.arguments), []).append(row)
    groups = []
    for same in members.values():
        code, launched = same[0].code, Launched(same[0].code, same[0].grid, work, board)
        fits = occupancy_of(code, board)
        baseline = next((row for row in same if row.configuration == shipped), same[0])
        groups.append(_Group(tuple(same), baseline, launched.predicted(), launched.spill_us(), fits))
    best = min((group for group in groups if group.fits.ctas), key=_by_time, default=None)
    fitting = [group.row.code for group in groups if group.fits.ctas]
    strongest = max((_strength(code.tensor_path) for code in fitting), default=0)
    most = most_stack(code.stack_bytes for code in fitting)
    judged = [_judged(group, best, strongest, most, bound) for group in groups]
    kept = _keep_enough(_keep_baseline(judged, shipped))
    by_row = {id(row): group for group in kept for row in group.members}
    return tuple(_screened(row, by_row[id(row)]) for row in rows)


def ranking(screened: Mapping[Configuration, Screened | Failed]) -> tuple[Configuration, ...]:
    """Returns the configurations to race: first all with the verdict "race", then all with "last".

    Within one verdict, the shortest predicted time comes first. Duplicates are left out.
    """
    racing = [
        (result.verdict != "race", result.predicted.us, str(config), config)
        for config, result in screened.items()
        if isinstance(result, Screened) and result.duplicate_of is None and result.verdict != "out"
    ]
    return tuple(config for *_, config in sorted(racing, key=lambda entry: entry[:3]))


@dataclass(frozen=True)
class _Group:
    """Rows with equal machine code, grid and arguments, which therefore take the same time."""

    members: tuple[ScreenRow, ...]
    row: ScreenRow
    """The representative: the shipped configuration if it is in the group, else the first row."""
    predicted: records.PredictedTime
    spill_us: float
    fits: Occupancy
    verdict: Verdict = "race"
    reason: str = ""

    def judged(self, verdict: Verdict, reason: str) -> _Group:
        return replace(self, verdict=verdict, reason=reason)


def _judged(group: _Group, best: _Group | None, strongest: int, most: int, bound: Bound) -> _Group:
    if best is None or not group.fits.ctas:
        return group.judged("out", f"cannot be launched: {group.fits.why}")
    times = group.predicted.us / best.predicted.us
    if group is best:
        return group.judged("race", f"predicted {_us(group)}, the shortest")
    behind = f"predicted {times:.2f}× the shortest ({_us(best)})"
    lost = _lost_tensor_path(group, times, strongest, bound)
    for objection in (lost, _spills(group, times, most), _unattained(group)):
        if objection is not None:
            verdict, reason = objection
            return group.judged(verdict, f"{reason}; {behind}")
    if times > SLOWER:
        return group.judged("out", f"{behind}, over {SLOWER:g}×")
    return group.judged("race", behind)


_Objection: TypeAlias = tuple[Verdict, str] | None


def _lost_tensor_path(group: _Group, times: float, strongest: int, bound: Bound) -> _Objection:
    """Returns an objection if the tensor instructions are slower than those of other candidates, else None.

    There is no objection if memory bounds the workload.
    """
    path = group.row.code.tensor_path
    if bound.kind == "memory" or path == "unknown" or _strength(path) >= strongest:
        return None
    lost = "no tensor instructions" if path == "none" else f"only {path}"
    verdict: Verdict = "out" if path == "none" or times > SLOWER else "last"
    return verdict, f"{lost}, but other candidates use a faster tensor path"


def _spills(group: _Group, times: float, most: int) -> _Objection:
    """Returns an objection if spills take a large share of the predicted time, else None.

    If this share is not known, the size of the stack decides.
    """
    code, share = group.row.code, group.spill_us / group.predicted.us
    if code.unread and code.stack_bytes > most:
        return "last", f"spills: {code.stack_bytes:,} B of stack"
    if share < SPILL_SHARE:
        return None
    return ("out" if times > SPILLS_SLOWER else "last"), (
        f"spills: {code.local_stores} local stores and {code.local_loads} loads, {code.stack_bytes:,} B of stack, "
        f"{share:.0%} of its predicted time"
    )


def _unattained(group: _Group) -> _Objection:
    """Returns an objection if an occupancy hint requests more CTAs than fit on an SM, else None."""
    if min(row.occupancy or 1 for row in group.members) <= group.fits.ctas:
        return None
    return "last", f"occupancy={group.row.occupancy} requested, but only {group.fits.why}"


def _strength(path: records.TensorPath) -> int:
    """Returns the rank of tensor instructions: 0 for none, 1 of one warp, 2 of a warpgroup, 3 on tensor memory."""
    return 0 if path == "none" else 3 if path == "UTCMMA" else 2 if path.endswith("GMMA") else 1


def _by_time(group: _Group) -> tuple[float, str, tuple[int, ...]]:
    return group.predicted.us, group.row.code.code_hash, group.row.grid


def _keep_baseline(groups: Sequence[_Group], shipped: Configuration | None) -> list[_Group]:
    """Returns the groups. The one of the shipped configuration has the verdict "last" in place of "out"."""
    kept = []
    for group in groups:
        if group.row.configuration == shipped and group.verdict == "out":
            group = group.judged("last", f"{group.reason}; kept as the baseline, because it is shipped today")
        kept.append(group)
    return kept


def _keep_enough(groups: Sequence[_Group]) -> list[_Group]:
    """Returns the groups with at least `KEEP` groups that are not "out", if so many can be launched.

    The verdict of the best dropped groups becomes "last", because the prediction may be wrong.
    """
    staying = sum(group.verdict != "out" for group in groups)
    dropped = sorted((group for group in groups if group.verdict == "out" and group.fits.ctas), key=_by_time)
    saved = {id(group) for group in dropped[: max(0, KEEP - staying)]}
    reason = f"kept, because fewer than {KEEP} other candidates remain"
    return [group.judged("last", f"{group.reason}; {reason}") if id(group) in saved else group for group in groups]


def _screened(row: ScreenRow, group: _Group) -> Screened:
    if row is group.row:
        return Screened(row.code, group.predicted, group.verdict, group.reason)
    representative = group.row.configuration
    return Screened(row.code, group.predicted, group.verdict, same_code_as(representative), representative)


def _us(group: _Group) -> str:
    return f"{group.predicted.us:,.1f} µs" if group.predicted.us < 100 else f"{group.predicted.us:,.0f} µs"


def screen_compiled(
    task: Task, workload: records.Workload, board: Board, bound: Bound, compiled: Sequence[Compiled]
) -> dict[Configuration, Screened | Failed]:
    """Returns the verdict for each configuration, or the failure if the configuration did not compile.

    Each implementation of the task is judged by itself, because predictions compare kernels of one language best.
    """
    work = work_of(task, workload.dims)
    outcomes: dict[Configuration, Screened | Failed] = {}
    ignored: dict[Configuration, str] = {}
    rows = []
    for each in compiled:
        config = each.unit.configuration
        if isinstance(each.code, Failed):
            outcomes[config] = each.code
        else:
            launch, hints = launch_of(task, each.unit)
            language, asked = language_of(launch.kernel), hints.get("occupancy")
            if without := language.ignored(hints):
                verb, because = "has" if len(without) == 1 else "have", ", ".join(dict.fromkeys(without.values()))
                ignored[config] = f"; {', '.join(without)} {verb} no effect with {because}"
            asked = asked if isinstance(asked, int) and "occupancy" not in without else None
            rows.append(ScreenRow(config, launch.grid, each.code, asked, language.arguments(launch)))
    for shipped in task.space.every_shipped:
        own = [row for row in rows if implementation_of(row.configuration) == implementation_of(shipped)]
        for row, verdict in zip(own, screen(own, work, board, bound, shipped=shipped), strict=True):
            outcomes[row.configuration] = replace(verdict, reason=verdict.reason + ignored.get(row.configuration, ""))
    return outcomes


def work_of(task: Task, dims: Dims) -> Work:
    """Returns the least work of a workload, as the task declares it."""
    arrays = task.arrays(dims)
    written = sum(arrays[name].nbytes for name in task.outputs)
    return Work(task.work(dims), task.traffic(dims), task.compute_dtype, float(written))


def candidate_of(compiled: Compiled, screened: Screened | Failed) -> Candidate:
    """Returns the candidate for the result of `tune`, without the results of check and race."""
    config = compiled.unit.configuration
    seconds = compiled.built.seconds if isinstance(compiled.built, records.Built) else None
    if isinstance(screened, NotCompiled):
        return Candidate(config, "screened", screened.reason)
    if isinstance(screened, Failed):
        return Candidate(config, "failed", f"{screened.stage}: {screened.reason}", compile_seconds=seconds)
    status: records.Status = "screened" if screened.verdict == "out" else "predicted"
    if screened.duplicate_of is not None:
        status = "duplicate"
    return Candidate(config, status, screened.reason, screened.code, seconds, screened.predicted)
