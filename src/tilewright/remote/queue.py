"""What SLURM's queue says, in one line with what to do. It runs on the login node, with the standard library alone."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tilewright.errors import choices

LONG_SECONDS = 600.0
"""A queue is long if a job would wait for more than this."""
SHORTEST_MINUTES = 5
"""No shorter walltime is offered."""
SPEC = "in job_spec.json"
_TOO_LONG = "walltime {walltime} is longer than partition {partition} allows; fix: a shorter walltime " + SPEC
_NOT_YOURS = "account {account} may not use partition {partition}; fix: account or partition " + SPEC
_TOO_FEW = "partition {partition} has no node with {gpus_per_node} GPUs; fix: gpus_per_node or partition " + SPEC
_EXPECTED = re.compile(r"to start at (\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)")
_HOPELESS = {
    "PartitionTimeLimit": _TOO_LONG,
    "PartitionNodeLimit": "partition {partition} does not give one node; fix: another partition " + SPEC,
    "BadConstraints": _TOO_FEW,
    "InvalidAccount": "account {account} cannot be charged; fix: account " + SPEC,
    "AccountNotAllowed": _NOT_YOURS,
    "InvalidQOS": "your default quality of service cannot be used; fix: account " + SPEC,
    "JobHeldAdmin": "an administrator holds the job; fix: ask why, then run the same command",
    "JobHeldUser": "the job is held; fix: scontrol release it, or run the same command again",
    "PartitionDown": "partition {partition} is down; fix: another partition " + SPEC,
    "PartitionInactive": "partition {partition} takes no jobs; fix: another partition " + SPEC,
}  # fmt: skip
"""Reasons for which a waiting job will not start by itself."""


def minutes(walltime: str) -> int:
    """Returns the minutes of a walltime as ``sbatch`` reads it."""
    days, _, rest = str(walltime).rpartition("-")
    parts = [int(part) for part in rest.split(":")]
    if days:
        hours, least = parts[0], parts[1] if len(parts) > 1 else 0
        return int(days) * 1440 + hours * 60 + least
    if len(parts) == 3:
        return parts[0] * 60 + parts[1] + (parts[2] > 0)
    return parts[0] + (len(parts) == 2 and parts[1] > 0)


def expected(said: str, now: float) -> float | None:
    """Returns in how many seconds a job would start, by what ``sbatch --test-only`` said; None if it did not say."""
    found = _EXPECTED.search(said)
    return None if found is None else time.mktime(time.strptime(found[1], "%Y-%m-%dT%H:%M:%S")) - now


def alternatives(asked: Mapping[str, Any], partitions: Sequence[str]) -> Iterator[dict[str, str]]:
    """Yields changes of a request that may start earlier: shorter walltimes, then other partitions."""
    whole = minutes(asked["walltime"])
    for part in (2, 4, 8):
        if whole // part >= SHORTEST_MINUTES:
            yield {"walltime": str(whole // part)}
    yield from ({"partition": name} for name in partitions[:6] if name != asked["partition"])


def offer(seconds: float, others: Sequence[tuple[Mapping[str, str], float]]) -> str:
    """Returns the line for a long queue. ``others``: changes of the request, and the seconds until they would start."""
    said = f"the queue is long: SLURM expects the start in {_span(seconds)}"
    if not others:
        return f"{said}, and no shorter walltime or other partition would start earlier"
    best = sorted(others, key=lambda each: each[1])[:3]
    listed = " or ".join(
        f"{name} {value}{' minutes' if name == 'walltime' else ''} ({_span(after)})"
        for change, after in best
        for name, value in change.items()
    )
    return f"{said}; earlier would start: {listed}; fix: change that {SPEC}"


def _span(seconds: float) -> str:
    whole = max(0, round(seconds / 60))
    return "at once" if whole < 1 else f"{whole} minutes" if whole < 120 else f"{whole / 60:.0f} hours"


def hopeless(reason: str, asked: Mapping[str, Any]) -> str | None:
    """Returns why a waiting job will not start by itself, for the reason that SLURM gives; None if it may."""
    words = _HOPELESS.get(reason)
    if words is None and "MaxWall" in reason:
        words = _TOO_LONG
    if words is None and "account" in reason.lower():
        words = _NOT_YOURS
    return None if words is None else f"{words.format_map(_named(asked))} ({reason})"


def refusal(stderr: str, asked: Mapping[str, Any], partitions: Sequence[str]) -> str:
    """Returns what a program of SLURM said when it refused a request, in one line with the fix."""
    named = _named(asked)
    if "invalid partition" in stderr.lower():
        return f"unknown partition '{named['partition']}'; {choices(named['partition'], partitions)}"
    for sign, why in (
        ("Invalid account", "account {account} may not be charged on partition {partition}; fix: account or partition"),
        ("time limit is invalid", "walltime {walltime} is longer than partition {partition} allows; fix: walltime"),
        ("node configuration is not available", "partition {partition} has no node with {gpus_per_node} GPUs and what "
         "else is asked for; fix: gpus_per_node, cpus_per_task or partition"),
        ("Invalid generic resource", "partition {partition} has no GPUs of that kind; fix: gpus_per_node or partition"),
        ("Access/permission denied", "you may not use partition {partition}; fix: account or partition"),
        ("User's group not permitted", "you may not use partition {partition}; fix: partition"),
        ("violates accounting/QOS", "the limits of account {account} do not allow this job; fix: account or walltime"),
    ):  # fmt: skip
        if sign in stderr:
            return f"{why.format_map(named)} {SPEC}"
    last = [line.partition("error: ")[2] or line for line in stderr.splitlines() if line.strip()]
    if any(sign in stderr for sign in ("Unable to contact", "configuration source", "configuration file")):
        return f"SLURM's controller does not answer ({last[-1].strip()}); fix: try again when sinfo works there"
    return f"SLURM refuses the allocation: {last[-1].strip() if last else 'no message'}; fix: {SPEC[3:]}"


def _named(asked: Mapping[str, Any]) -> dict[str, str]:
    found = {name: str(value) for name, value in asked.items() if value is not None}
    return {"partition": "(the default)", "account": "(your default)", "walltime": "", "gpus_per_node": "", **found}
