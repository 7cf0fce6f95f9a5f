"""A verdict as JSON and as the command that shows its failing case again."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tilewright.verify.cases import as_json, shell_word
from tilewright.verify.examining import Result
from tilewright.verify.judge import Compared
from tilewright.verify.verdict import Verdict

WORDS = ("correct", "unverified", "incorrect")
"""From the best to the worst."""


def worst(verdicts: Sequence[Verdict]) -> str:
    """The verdict on a task and its backward together."""
    return max((one.verdict for one in verdicts), key=WORDS.index)


def command(verdict: Verdict, where: str, options: Sequence[str] = ()) -> str | None:
    """What shows the failing case again, alone; None where nothing failed."""
    failed = verdict.smallest
    if failed is None:
        return None
    words = ["tilewright", "check", where, "--case", str(failed.case), *options]
    if failed.configuration != verdict.shipped:
        words += ["--config", str(failed.configuration)]
    return " ".join(shell_word(word) for word in words)


def to_json(verdict: Verdict, where: str, options: Sequence[str] = ()) -> dict[str, Any]:
    """Records as dictionaries; `codec.to_json` writes numbers that JSON lacks."""
    return {
        "verdict": verdict.verdict,
        "reason": verdict.reason,
        "engine": verdict.engine,
        "task": verdict.task,
        "seed": verdict.seed,
        "configurations": [dict(one) for one in verdict.configurations],
        "yardstick": verdict.yardstick,
        "tools": list(verdict.tools),
        "cases": [_result(one) for one in verdict.results],
        "unverified": list(verdict.unverified),
        "findings": [_finding(one) for one in verdict.findings],
        "reproduce": command(verdict, where, options),
        "seconds": round(verdict.seconds, 3),
    }


def all_to_json(verdicts: Sequence[Verdict], where: str, options: Sequence[str] = ()) -> dict[str, Any]:
    """The value of `check --json`: that of the task, with ``backward`` beside it where there is one."""
    first, *others = verdicts
    found = to_json(first, where, options) | {"verdict": worst(verdicts)}
    found["backward"] = to_json(others[0], beside(where, others[0]), options) if others else None
    return found


def beside(where: str, verdict: Verdict) -> str:
    """``FILE:TASK`` of another task of the file that ``where`` names."""
    file, _, _ = where.rpartition(":")
    return f"{file if file and Path(file).is_file() else where}:{verdict.task}"


def _result(result: Result) -> dict[str, Any]:
    return {
        **as_json(result.case),
        "configuration": dict(result.configuration),
        "verdict": result.verdict,
        "reason": result.reason,
        "error": _error(result.error) if result.error else None,
        "findings": [_finding(one) for one in result.findings],
        "seconds": round(result.seconds, 3),
    }


def _error(compared: Compared) -> dict[str, Any]:
    error, allowed = compared.error, compared.allowed
    return {
        "output": compared.output,
        "worst": error.worst,
        "allowed": allowed.worst,
        "why": allowed.why,
        "index": list(error.index),
        "got": error.got,
        "wanted": error.wanted,
        "trusted": compared.trusted,
    }


def _finding(finding: Any) -> dict[str, Any]:
    return {
        "kind": finding.kind,
        "message": finding.message,
        "location": str(finding.location) if finding.location else None,
        "block": list(finding.block) if finding.block is not None else None,
        "tensor": finding.tensor,
        "index": list(finding.index) if finding.index is not None else None,
        "count": finding.count,
    }
