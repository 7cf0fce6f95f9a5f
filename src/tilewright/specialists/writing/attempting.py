"""Generates a kernel in up to three attempts, until one passes the check against the reference; then tunes it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tilewright.languages import language_named
from tilewright.specialists.writing.shipped import with_shipped
from tilewright.specialists.writing.writing import ATTEMPTS, ReferenceSource, WrittenTask, write_task

if TYPE_CHECKING:
    from tilewright.records import Candidate, Configuration, TuningResult
    from tilewright.verify.verdict import Verdict


RACED = 24
"""All candidates of a written space are raced: predictions are too coarse to choose among them."""


@dataclass(frozen=True)
class CorrectTask:
    """A generated task that passed the check. ``attempt``: a phrase that says how the kernel was generated."""

    task: WrittenTask
    verdict: Verdict
    attempt: str


@dataclass(frozen=True)
class UncheckedTask:
    """A generated task in a language whose kernels run on a GPU only, on a machine without a GPU."""

    task: WrittenTask
    verdict: Verdict
    attempt: str


@dataclass(frozen=True)
class GaveUp:
    """All attempts were incorrect. ``reasons``: one sentence for each attempt."""

    reasons: tuple[str, ...]

    def __str__(self) -> str:
        return f"gave up after {len(self.reasons)} failures: {'; '.join(self.reasons)}"


def first_correct(
    source: ReferenceSource, language: str, file: Path, *, dtype: str = "bfloat16",
    dims: Mapping[str, int] | None = None, outputs: Sequence[str] = (), engine: str | None = None,
) -> CorrectTask | UncheckedTask | GaveUp:  # fmt: skip
    """Generates the task of a reference in ``file``, by the first of `ATTEMPTS` that passes the check.

    If nothing here can check the kernel, the first attempt is returned unchecked.

    engine: ``interpreter`` or ``gpu``; None: the GPU if there is one that the compiler supports.
    If all attempts are incorrect, ``file`` does not exist afterwards. Raises OutsideForms, and TaskError if the
    reference itself fails.
    """
    from tilewright.verify.check import check

    tried: dict[str, str] = {}
    for attempt in ATTEMPTS:
        task = write_task(source, language, file.name, dtype=dtype, dims=dims, outputs=outputs, attempt=attempt)
        if task.text in tried:
            continue
        file.write_text(task.text, encoding="utf-8")
        (verdict, *_) = check(str(file), engine=engine, quick=True)
        if verdict.verdict.startswith("correct"):
            return CorrectTask(task, verdict, attempt.name)
        if verdict.verdict == "unverified" and language_named(language).on_gpu_only and verdict.engine != "gpu":
            return UncheckedTask(task, verdict, attempt.name)
        tried[task.text] = f"{attempt.name}: {verdict.verdict}: {' '.join(verdict.reason.split())}"
    file.unlink()
    return GaveUp(tuple(tried.values()))


def tuned(
    file: Path, allowed: Callable[[Configuration], bool] = lambda config: True
) -> tuple[TuningResult, Configuration]:
    """Tunes a written task on its first workload. Returns the run, and the configuration that the file now ships.

    If the best configuration was measured, the file ships it. Without a GPU, the file changes only if its own
    configuration did not pass the screen. Predictions are too coarse to choose among configurations that pass.

    allowed: whether the file may ship a configuration.
    """
    from tilewright.task.loading import load_task
    from tilewright.tune.tune import tune

    task = load_task(str(file))
    result = tune(task, workloads=next(iter(task.workloads)), top=RACED)
    shipped, candidates = task.space.shipped, [each for each in result.workloads[0].candidates if _passed(each)]
    best = min((each for each in candidates if allowed(each.configuration)), key=_microseconds, default=None)
    if best is None or (not result.measured and shipped in [each.configuration for each in candidates]):
        return result, shipped
    changes = {name: value for name, value in best.configuration.items_ if shipped[name] != value}
    file.write_text(with_shipped(file.read_text(encoding="utf-8"), changes), encoding="utf-8")
    return result, best.configuration


def _passed(candidate: Candidate) -> bool:
    return candidate.status in ("raced", "predicted", "duplicate")


def _microseconds(candidate: Candidate) -> tuple[bool, float]:
    """Returns the sort key of a candidate. Measured candidates come first, sorted by time."""
    time = candidate.measured or candidate.predicted
    return candidate.measured is None, time.us if time is not None else math.inf
