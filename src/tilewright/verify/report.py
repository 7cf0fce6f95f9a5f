"""A verdict as JSON and as the command that shows its failing case again."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tilewright.ledger.codec import Encodable
from tilewright.verify.cases import shell_word
from tilewright.verify.examining import Result
from tilewright.verify.verdict import Verdict

if TYPE_CHECKING:
    from tilewright.tileir.watch.findings import Finding

WORDS = ("correct", "unverified", "incorrect")
"""From the best to the worst."""


def worst(verdicts: Sequence[Verdict]) -> str:
    """The verdict on a task and its backward together."""
    return max((verdict.verdict for verdict in verdicts), key=WORDS.index)


def command(verdict: Verdict, where: str, options: Sequence[str] = ()) -> str | None:
    """What shows the failing case again, alone; None where nothing failed."""
    failed = verdict.smallest
    if failed is None:
        return None
    words = ["tilewright", "check", where, "--case", str(failed.case), *options]
    if failed.configuration != verdict.shipped:
        words += ["--config", str(failed.configuration)]
    return " ".join(shell_word(word) for word in words)


def to_json(verdict: Verdict, where: str, options: Sequence[str] = ()) -> dict[str, Encodable]:
    """As `codec.to_json` takes it; scripts rely on these names."""
    return {
        "verdict": verdict.verdict,
        "reason": verdict.reason,
        "engine": verdict.engine,
        "task": verdict.task,
        "seed": verdict.seed,
        "configurations": [dict(configuration) for configuration in verdict.configurations],
        "yardstick": verdict.yardstick,
        "tools": list(verdict.tools),
        "cases": [_result(result) for result in verdict.results],
        "unverified": list(verdict.unverified),
        "findings": [_finding(finding) for finding in verdict.findings],
        "reproduce": command(verdict, where, options),
        "seconds": round(verdict.seconds, 3),
    }


def all_to_json(verdicts: Sequence[Verdict], where: str, options: Sequence[str] = ()) -> dict[str, Encodable]:
    """The value of `check --json`: that of the task, with ``backward`` beside it where there is one."""
    first, *others = verdicts
    backward = to_json(others[0], beside(where, others[0]), options) if others else None
    return {**to_json(first, where, options), "verdict": worst(verdicts), "backward": backward}


def beside(where: str, verdict: Verdict) -> str:
    """``FILE:TASK`` of another task of the file that ``where`` names."""
    file, _, _ = where.rpartition(":")
    return f"{file if file and Path(file).is_file() else where}:{verdict.task}"


def _result(result: Result) -> dict[str, Encodable]:
    case, compared, error = result.case, result.error, None
    if compared is not None:
        of_element = vars(compared.error)
        error = {
            "output": compared.output, "worst": compared.error.worst, "allowed": compared.allowed.worst,
            "why": compared.allowed.why, **{name: of_element[name] for name in ("index", "got", "wanted")},
            "trusted": compared.trusted,
        }  # fmt: skip
    return {
        "case": str(case),
        "dims": case.sizes,
        **{name: value for name, value in vars(case).items() if name != "dims"},
        "configuration": dict(result.configuration),
        "verdict": result.verdict,
        "reason": result.reason,
        "error": error,
        "findings": [_finding(finding) for finding in result.findings],
        "seconds": round(result.seconds, 3),
    }


def _finding(finding: Finding) -> dict[str, Encodable]:
    return {**vars(finding), "location": str(finding.location) if finding.location else None}
