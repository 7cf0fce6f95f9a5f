"""The protocol with a proposer: what it is told, and what it answers. Both are one JSON object.

    request   the incumbent's files, what may be edited, the diagnosis of each workload with its numbers, every earlier
              attempt with the reason for its outcome, and what is left of the limits
    answer    {"title": …, "expected": …, "patch": a unified diff}, or "files": {name: whole text} in place of "patch",
              or {"done": reason} if nothing is left to propose

A proposer is asked once for each proposal. Nothing that it says is trusted: `gate` reads the answer.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tilewright.ledger.records import Iteration, Metrics
from tilewright.optimize.proposed import RefusedProposal, Seen
from tilewright.optimize.proposing.regions import Regions
from tilewright.records import Json

VERSION = 1
"""The version of the protocol. It changes if a field changes its meaning."""
MOST_BYTES = 1 << 20
"""The most bytes of an answer."""
HISTORY = 50
"""The most earlier attempts that a request has, the newest."""
TITLE, EXPECTED = 80, 300
"""The most characters of a title, and of the expected effect."""
ANSWER = (
    "print one JSON object and nothing else: {\"title\": a few words, \"expected\": the expected effect and why, "
    "\"patch\": a unified diff of the files as they are here}; in place of \"patch\" you may give \"files\": "
    "{name: the whole new text}; or {\"done\": the reason} if you have nothing left to propose"
)  # fmt: skip
RULES = (
    "change one thing at a time, in the kernel, the functions it calls, its launch, or the space",
    "whatever else the task says is fixed: reference, tensors, workloads, precision; so is every other file",
    "times, correctness and the ledger are only Tilewright's: code that reaches for files, the environment, timers, "
    "other modules, or results of earlier calls is refused, and recorded as tampering",
)


@dataclass(frozen=True)
class ProposerAnswer:
    """An answer in the right form. ``done``: why the proposer has nothing left; "" if it proposes a change."""

    title: str = ""
    expected: str = ""
    patch: str = ""
    files: Mapping[str, str] = field(default_factory=dict)
    done: str = ""


def names_of(files: Sequence[Path]) -> dict[str, Path]:
    """Returns the names by which a proposer knows the editable files: file names, with folders only where needed."""
    for parts in range(1, max(len(file.parts) for file in files) + 1):
        names = {"/".join(file.parts[-parts:]): file for file in files}
        if len(names) == len(files):
            break
    return names


def request(seen: Seen, regions: Regions, left: int, seconds: float) -> dict[str, Json]:
    """Returns the request for the next proposal.

    left: how many more proposals may follow, this one included.
    seconds: the time limit of the answer.
    """
    facts, names = seen.facts, names_of([*seen.texts])
    return {
        "tilewright": "proposal", "version": VERSION,
        "task": facts.task.name, "task_file": str(facts.task.file or ""), "kernel": facts.kernel,
        "architecture": facts.board.arch, "gpu": facts.board.name,
        "files": {name: seen.texts[path] for name, path in names.items()},
        "may_change": {name: [*sorted(regions.open.get(path, ()))] for name, path in names.items()},
        "protected": {name: dict(regions.protected.get(path, {})) for name, path in names.items()},
        "rules": list(RULES), "answer": ANSWER,
        "workloads": [_workload(metrics) for metrics in seen.metrics()],
        "history": [_attempt(iteration) for iteration in seen.iterations[1:][-HISTORY:]],
        "last_failure": _last_failure(seen.iterations),
        "limits": {
            "proposals_left": left, "seconds_for_this_answer": seconds,
            "seconds_left": None if math.isinf(seen.seconds_left) else round(seen.seconds_left),
        },
    }  # fmt: skip


def read_answer(text: str) -> ProposerAnswer:
    """Reads what a proposer answered. Raises `RefusedProposal` with one line that says what is wrong with it."""
    if len(text.encode(errors="replace")) > MOST_BYTES:
        raise RefusedProposal(
            f"the answer is longer than {MOST_BYTES >> 10} KiB; answer with a patch of the lines that change"
        )
    if not text.strip():
        raise RefusedProposal("the answer is empty; print one JSON object")
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        raise RefusedProposal(
            f"the answer is no JSON object but the text {shown(text, 60)!r}; print one JSON object"
        ) from None
    if not isinstance(data, dict):
        raise RefusedProposal(f"the answer is no JSON object but {shown(text, 60)}; print one JSON object")
    return _checked(data)


def _checked(data: Mapping[str, Any]) -> ProposerAnswer:
    if done := data.get("done"):
        return ProposerAnswer(done=shown(str(done), EXPECTED))
    known = ("version", "title", "expected", "patch", "files", "done")
    if unknown := [name for name in data if name not in known]:
        raise RefusedProposal(f"the answer has the unknown field {shown(unknown[0], 40)!r}; known: {', '.join(known)}")
    patch, files = data.get("patch") or "", data.get("files") or {}
    texts = isinstance(files, dict) and all(isinstance(text, str) for text in files.values())
    if not isinstance(patch, str) or not texts:
        raise RefusedProposal("the answer's patch is no text, or its files are not {name: text}")
    if bool(patch.strip()) == bool(files):
        raise RefusedProposal(
            f"the answer has {'both' if files else 'neither'} a patch {'and' if files else 'nor'} files"
        )
    if any("\0" in text or not _encodable(text) for text in (patch, *files, *files.values())):
        raise RefusedProposal("the answer is binary; only text can be proposed")
    title, expected = (
        shown(str(data.get(name) or ""), most) for name, most in (("title", TITLE), ("expected", EXPECTED))
    )
    return ProposerAnswer(title or "untitled", expected, patch, files)


def shown(text: str, most: int) -> str:
    """Returns untrusted text in one line of printable characters, at most ``most``."""
    line = " ".join("".join(each if each.isprintable() else " " for each in text[: 8 * most]).split())
    return line if len(line) <= most else line[: most - 1] + "…"


def _encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _workload(metrics: Metrics) -> dict[str, Json]:
    time, bound, code = metrics.measured or metrics.predicted, metrics.bound, metrics.code
    return {
        "workload": metrics.workload, "us": time.us if time else None,
        "time_is": "measured" if metrics.measured else "predicted",
        "speed_of_light_us": bound.speed_of_light_us if bound else None, "bound": bound.kind if bound else None,
        "speed_of_light_is": bound.limit if bound else None, "flops": metrics.flops, "bytes": metrics.bytes,
        "machine_code": {
            name: code.known[name]
            for name in ("registers", "stack_bytes", "shared_bytes", "local_loads", "local_stores", "tensor_path")
        } if code else {},
        "diagnosis": metrics.diagnosis.to_json() if metrics.diagnosis else None,
    }  # fmt: skip


def _attempt(iteration: Iteration) -> dict[str, Json]:
    return {
        "n": iteration.n, "change": iteration.optimization, "value": iteration.value, "status": iteration.status,
        "correctness": iteration.correctness, "reason": iteration.reason, "tampering": bool(iteration.tampering),
        "measured_ms": iteration.latency_ms, "predicted_ms": iteration.predicted_ms, "patch": iteration.diff[:4000],
    }  # fmt: skip


def _last_failure(iterations: Sequence[Iteration]) -> str | None:
    """Returns why the proposer's last proposal was not kept; None if it was kept, or if there is none."""
    last = next((each for each in reversed(iterations) if each.by_proposer), None)
    return None if last is None or last.status == "keep" else last.reason
