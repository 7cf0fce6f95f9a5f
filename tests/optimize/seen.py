"""A step that only the worker process of `test_version_racing` answers: what it was asked so far."""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.worker.messages import Message, OpenTask, Step


@dataclass(frozen=True)
class LookedBack(Message):
    seeds: tuple[tuple[int, bool], ...]
    opened: OpenTask
    checks: tuple[str, ...]


@dataclass(frozen=True)
class LookBack(Step[LookedBack]):
    answer = LookedBack
