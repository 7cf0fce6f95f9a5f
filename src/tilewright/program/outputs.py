"""Compares the outputs of two versions of a program. A noise run shows how much rounding alone changes them.

The tolerance of a tensor is `FACTOR` times its difference in the noise run. Median, 90th percentile and largest
difference of the sampled values each have their own tolerance. It is at least `FLOOR` units in the last place of the
tensor's largest value. An optimizer such as Adam turns the rounding of a gradient near 0 into a step of full size. The
noise run shows this; a fixed tolerance would not. A tensor whose noise run differs by more than `WILD` is not compared,
nor are the same tensors of earlier steps if they may agree by chance.
Late steps are recorded at powers of two. Differences grow with the steps, in the noise run, too, so they do not count
as errors.

Steps, calls of modules and of backward, names, shapes and types must be the same in every step that was recorded.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np

from tilewright.program.printed import LUCK, JudgedOutput, compare_printed
from tilewright.program.run import ObservedTensor, ProgramOutputs, ProgramRun
from tilewright.race.stats import Array

SameOutputs: TypeAlias = Literal["equal", "within tolerance", "different", "unverified"]

FACTOR, FLOOR, WILD = 16.0, 8.0, 0.1
QUANTILES = (0.5, 0.9, 1.0)
MOVED = 0.25
"""The change of a parameter, from its first recorded value to its last, may differ by this share of the change."""
EPS = {"float64": 2.0**-52, "float32": 2.0**-23, "bfloat16": 2.0**-7, "float16": 2.0**-10,
       "complex64": 2.0**-23, "complex128": 2.0**-52, "float8_e4m3fn": 2.0**-3, "float8_e5m2": 2.0**-2}  # fmt: skip
"""Distance between neighbouring numbers near 1. Types that are not here are compared exactly."""


@dataclass(frozen=True)
class ComparedRuns:
    """The verdict on the outputs of a changed program."""

    verdict: SameOutputs
    reason: str
    """One line; for ``different``, with the place."""
    worst: float | None = None
    """The largest ratio of a difference to its tolerance; above 1 is different. None if nothing was compared."""

    @property
    def right(self) -> bool:
        """Whether the changed program computes the same, up to rounding."""
        return self.verdict in ("equal", "within tolerance")


def compare(before: ProgramRun, after: ProgramRun, noise: ProgramRun | None) -> ComparedRuns:
    """Compares the outputs of a changed program with the outputs of the unchanged program.

    before, after: runs with ``outputs=True`` and the same ``steps``. noise: another such run of the unchanged program,
    made with ``nudged=True``. If it was not nudged, the noise is smaller, and a new order of summation may count as
    different. None: only the smallest tolerance is used.
    """
    yardstick = noise or before
    if unsure := _unsteady(before, yardstick):
        return ComparedRuns("unverified", unsure)
    if wrong := _other_course(before, after, yardstick):
        return ComparedRuns("different", wrong)
    judged = [*_tensors(before, after, yardstick), *compare_printed(before, after, yardstick)]
    if not judged:
        return ComparedRuns("unverified", "the program calls no module and no backward, and prints no steady number")
    if wild := _wild(judged):
        return ComparedRuns("unverified", f"two runs of the unchanged program differ: {wild}")
    worst = max(judged, key=lambda each: each.ratio)
    if worst.ratio > 1.0:
        return ComparedRuns("different", worst.why, worst.ratio)
    compared = [each for each in judged if not each.skipped]
    if all(each.equal for each in judged):
        return ComparedRuns("equal", f"{len(compared)} outputs are equal to the bit", 0.0)
    return ComparedRuns("within tolerance", f"{len(compared)} outputs; the largest: {worst.why}", worst.ratio)


def _wild(judged: Sequence[JudgedOutput]) -> str:
    """Returns where two runs of the unchanged program differ, if no output is steady enough to compare; else an empty
    text.
    """
    skipped = [each for each in judged if each.skipped]
    first = [each for each in skipped if re.match(r"(call|backward) [12] ", each.why)]
    left = [each for each in judged if not each.skipped and not each.weak]
    return first[0].why if first else skipped[0].why if skipped and not left else ""


def _unsteady(before: ProgramRun, noise: ProgramRun) -> str:
    """Returns how the steps of two runs of the unchanged program differ; empty if they do not."""
    if before.unit != noise.unit:
        return f"a step of one run of the unchanged program is a {before.unit}, and of the other a {noise.unit}"
    if before.steps != noise.steps and not _late(before, noise):
        return f"two runs of the unchanged program make {before.steps} and {noise.steps} steps"
    return ""


def _late(*runs: ProgramRun) -> bool:
    """Returns whether a run was ended by its time limit; then its later steps are missing."""
    return any(run.cut == "seconds" for run in runs)


def _other_course(before: ProgramRun, after: ProgramRun, noise: ProgramRun) -> str:
    """Returns how the steps of the two programs differ; an empty string if they do not."""
    if before.unit != after.unit:
        return f"a step was a {before.unit}, and is a {after.unit}"
    if before.steps != after.steps and not _late(before, after):
        return f"makes {after.steps} steps instead of {before.steps}"
    one, other, same = (_recorded(run) for run in (before, after, noise))
    if one.calls[: len(same.calls)] == same.calls[: len(one.calls)]:
        for step, (was, is_) in enumerate(zip(one.calls, other.calls, strict=False), 1):
            if was != is_:
                calls = "calls of modules and of backward up to step"
                return f"makes {is_[0]} and {is_[1]} {calls} {step} instead of {was[0]} and {was[1]}"
    found, steady = ({each.name: each for each in run.tensors} for run in (other, same))
    for each in one.tensors:
        if each.name in steady and (wrong := _other_kind(each, found.get(each.name), steady[each.name])):
            if each.name not in found and _late(before, after, noise):
                continue
            return wrong
    return ""


def _other_kind(before: ObservedTensor, after: ObservedTensor | None, noise: ObservedTensor) -> str:
    if after is None:
        return f"{before.name} is missing"
    if (before.shape, before.dtype) != (noise.shape, noise.dtype):
        return ""
    if before.shape != after.shape:
        return f"{before.name} has the shape {after.shape} instead of {before.shape}"
    if before.dtype != after.dtype:
        return f"{before.name} has the type {after.dtype} instead of {before.dtype}"
    if after.not_finite > before.not_finite == noise.not_finite:
        return f"{before.name} has {after.not_finite} values that are NaN or infinite instead of {before.not_finite}"
    return ""


def _recorded(run: ProgramRun) -> ProgramOutputs:
    return run.outputs or ProgramOutputs((), (), 0.0)


def _tensors(before: ProgramRun, after: ProgramRun, noise: ProgramRun) -> Iterator[JudgedOutput]:
    one, other, same = ({each.name: each for each in _recorded(run).tensors} for run in (before, after, noise))
    names = [name for name in one if name in other and name in same and one[name].shape == same[name].shape]
    eps = _recorded(before).eps
    ways: dict[str, list[str]] = {}
    for name in names:
        ways.setdefault(re.sub(r"\d+", "#", name, count=1), []).append(name)
    judged: dict[str, JudgedOutput] = {}
    for kept in ways.values():
        judged |= zip(kept, _steps([(one[name], other[name], same[name]) for name in kept], eps), strict=True)
    yield from (judged[name] for name in names)
    for place, kept in ways.items():
        if "parameter" in place and len(kept) > 1:
            ends = [[_values(each[name]) for name in (kept[0], kept[-1])] for each in (one, other, same)]
            yield from _way(f"the way of {kept[-1]} from step 1", EPS.get(one[kept[0]].dtype, 0.0), *ends)


def _steps(runs: Sequence[tuple[ObservedTensor, ...]], eps: float) -> list[JudgedOutput]:
    """Judges the same tensor of each recorded step of the three runs. eps: as in `_judged`."""
    shown = np.zeros(len(QUANTILES))  # the largest noise so far, relative to the scale of its step
    luck, wild, judged = 1.0, "", []
    for before, after, noise in runs:
        relative, scale = _noise(before, noise)
        shown = np.maximum(shown, relative)
        if relative[0] > WILD:
            wild = wild or f"{before.name} by {relative[0]:.0%} of its largest value"
        if not wild:
            chance = min(1.0, 2.0 * relative[0] + EPS.get(before.dtype, 0.0))
            luck *= chance ** max(1.0, len(before.sample) / 4)  # half of the values are below the median
        judged.append(_judged(before, after, noise, eps, shown, scale))
    if wild and luck > LUCK:
        return [each if each.equal else JudgedOutput(0.0, wild, skipped=True) for each in judged]
    return judged


def _values(tensor: ObservedTensor) -> Array:
    return np.asarray(tensor.sample)


def _noise(before: ObservedTensor, noise: ObservedTensor) -> tuple[Array, float]:
    """Returns the quantiles of the noise relative to the scale, and the scale: the largest finite value."""
    b, n = _values(before), _values(noise)
    finite = np.isfinite(b) & np.isfinite(n)
    scale = float(np.max(np.abs(b), initial=0.0, where=finite))
    return _quantiles(np.abs(n - b)[finite] / (scale or 1.0)), scale


def _judged(
    before: ObservedTensor, after: ObservedTensor, noise: ObservedTensor, eps: float, seen: Array, scale: float
) -> JudgedOutput:
    """Judges one tensor. eps: the distance of numbers near 1 in the type in which the program computes. seen: the
    largest noise up to this step, relative to the scale. scale: the largest finite value.
    """
    if before.digest == after.digest:
        return JudgedOutput(0.0, f"{before.name} is equal", equal=True)
    if before.dtype not in EPS:
        if before.digest != noise.digest:
            return JudgedOutput(0.0, before.name, skipped=True)
        return JudgedOutput(math.inf, f"{before.name} differs, and is exact ({before.dtype})")
    if seen[0] > WILD:
        return JudgedOutput(0.0, f"{before.name} by {seen[0]:.0%} of its largest value", skipped=True)
    unit = EPS[before.dtype] if "parameter" in before.name else max(EPS[before.dtype], eps)
    b, a, n = (_values(each) for each in (before, after, noise))
    difference = np.abs(a - b)[np.isfinite(b) & np.isfinite(n)]
    if not np.all(np.isfinite(difference)):
        return JudgedOutput(math.inf, f"{before.name} has values that are NaN or infinite")
    tolerance = (FACTOR * seen + FLOOR * unit) * scale
    differences = _quantiles(difference)
    ratio = float(np.max(np.where(differences > 0.0, differences / np.maximum(tolerance, 1e-300), 0.0)))
    error = float(differences[-1]) / scale if scale else math.inf
    return JudgedOutput(ratio, f"{before.name} differs by {error:.2g} of its largest value")


def _quantiles(differences: Array) -> Array:
    return np.quantile(differences, QUANTILES) if differences.size else np.zeros(len(QUANTILES))


def _way(name: str, eps: float, before: list[Array], after: list[Array], noise: list[Array]) -> Iterator[JudgedOutput]:
    """Judges whether a parameter changes in the same direction as before. The tolerance of its values alone could hide
    a parameter that no longer changes.
    """
    b, a, n = (last - first for first, last in (before, after, noise))
    way = _rms(b)
    if not way > 4.0 * eps * float(np.max(np.abs(before[0]), initial=0.0)):
        return
    allowed = max(MOVED, FACTOR * _rms(n - b) / way)
    if allowed < 1.0:
        share = _rms(a - b) / way
        yield JudgedOutput(share / allowed, f"{name} differs by {share:.0%}", equal=share == 0.0)


def _rms(values: Array) -> float:
    return float(np.sqrt(np.mean(np.square(values)))) if values.size else 0.0
