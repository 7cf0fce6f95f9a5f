"""Executors: the worker process on this machine, with a stand-in for the GPU worker, and a toy that one file makes."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

import pytest

from tilewright.errors import RequestError, TaskError, UnknownChoice
from tilewright.executors import executor_of, executor_on
from tilewright.executors.base import Executor, ignore
from tilewright.executors.local import Local, local
from tilewright.plugins import plugins
from tilewright.testing.executors import ExecutorContract
from tilewright.worker.early import early_worker
from tilewright.worker.messages import Advanced, Greeting, Hello, PrepareInputs, Step
from tilewright.worker.outcome import Outcome

SRC = str(Path(__file__).parents[2] / "src")
WORKER = f"""\
import os, sys
sys.path.insert(0, {SRC!r})
from tilewright.worker.messages import *
opened = receive(sys.stdin)
if "broken" in opened.where:
    send(sys.stdout, Refused("broken.py:3: does not import"))
    sys.exit()
send(sys.stdout, Started())
while (step := receive(sys.stdin)) is not None:
    if isinstance(step, PrepareInputs):
        os._exit(1)
    send(sys.stdout, Advanced(1))
    send(sys.stdout, Greeting("none", "13.0"))
"""
Answer = TypeVar("Answer")


class Inline(Executor):
    """Runs steps in this process; ``greeting`` is all that it can answer."""

    name = "inline"
    task = ""

    def open(self, task: str, files: Mapping[str, str] | None = None) -> None:
        self.task = task

    def run(
        self, step: Step[Answer], *, silence: float | None = None, on_progress: Callable[[Advanced], None] = ignore
    ) -> Outcome[Answer]:
        if "broken" in self.task:
            raise TaskError(f"{self.task} does not load")
        greeting = Greeting("none", "13.0")
        if isinstance(greeting, step.answer):
            return Outcome("PASSED", greeting)
        return Outcome("FAILED", reason="no such step here")

    def close(self, wait: bool = True) -> None:
        self.task = ""


class Common(ExecutorContract):
    task, broken_task = "ops.py:task", "broken.py:task"
    step, deadly = Hello(), PrepareInputs("deadly", 0)


class TestLocal(Common):
    def make(self) -> Executor:
        return Local(command=[sys.executable, "-u", "-c", WORKER])


class TestToy(Common):
    def make(self) -> Executor:
        return Inline()


def test_progress_is_told() -> None:
    seen: list[Advanced] = []
    with TestLocal().opened() as executor:
        executor.run(Hello(), on_progress=seen.append)
    assert seen == [Advanced(1)]


def test_a_worker_that_was_started_early_is_taken_over(monkeypatch: pytest.MonkeyPatch) -> None:
    from tilewright.worker import early

    monkeypatch.setattr(early, "has_driver", lambda: False)
    assert early_worker() is None and local(None) is None
    process = early.spawned([sys.executable, "-u", "-c", WORKER])
    executor = local(process)
    assert executor is not None
    with executor:
        executor.open("ops.py:task")
        assert executor._process is process and isinstance(executor.run(Hello()).answer, Greeting)


def test_an_unknown_name_is_answered_with_the_choices() -> None:
    with pytest.raises(UnknownChoice, match="unknown executor 'slrum'; did you mean 'slurm'. known: local"):
        executor_of("slrum")


def test_one_from_outside_is_found_by_its_entry_point(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tilewright.plugins.plugins", lambda *where: iter((*plugins(*where), Inline)))
    assert executor_of("inline") is Inline and executor_of("local") is Local


def test_on_names_an_executor_or_lists_the_choices() -> None:
    assert isinstance(executor_on("local"), Local)
    with pytest.raises(UnknownChoice, match="unknown place for --on 'slrum:gpu'; known: local"):
        executor_on("slrum:gpu")
    with pytest.raises(RequestError, match="--on local:3: local takes nothing after it; fix: --on local"):
        executor_on("local:3")
