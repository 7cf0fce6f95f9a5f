"""Defines the contract of executors. Inherit `ExecutorContract` in a test file of your executor.

    class TestSlurm(ExecutorContract):
        task = "ops.py:scale"
        step, deadly = Hello(), PrepareInputs("hangs", 0)

        def make(self) -> Executor:
            return Slurm("debug")

The kit runs only the steps that your test names. It needs a GPU only if these steps need a GPU.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import pytest

from tilewright.errors import TaskError
from tilewright.executors.base import Executor
from tilewright.worker.messages import Step
from tilewright.worker.outcome import STATUSES


class ExecutorContract(ABC):
    """Tests one executor.

    broken_task: a task that does not load. With None, the test of such a task is skipped.
    """

    task: str
    broken_task: str | None = None
    step: Step[Any]  # a step that gets an answer
    deadly: Step[Any]  # a step that ends the process in which it runs

    @abstractmethod
    def make(self) -> Executor:
        """Returns a new executor without a task."""

    def opened(self) -> Executor:
        executor = self.make()
        executor.open(self.task)
        return executor

    def test_it_has_a_name(self) -> None:
        name = self.make().name
        assert name == name.strip().lower() != ""

    def test_a_step_gets_its_own_kind_of_answer(self) -> None:
        with self.opened() as executor:
            for _ in range(2):  # one step does not use it up
                outcome = executor.run(self.step)
                assert outcome.status == "PASSED" and isinstance(outcome.answer, self.step.answer), outcome

    def test_what_a_candidate_breaks_is_an_outcome_and_the_next_step_runs(self) -> None:
        with self.opened() as executor:
            lost = executor.run(self.deadly)
            assert lost.status in STATUSES and lost.status != "PASSED" and lost.answer is None
            assert lost.reason and "\n" not in lost.reason
            assert executor.run(self.step).status == "PASSED"

    def test_a_task_that_does_not_load_is_the_users_error(self) -> None:
        if self.broken_task is None:
            pytest.skip("no such task was named")
        with self.make() as executor:
            executor.open(self.broken_task)
            with pytest.raises(TaskError):
                executor.run(self.step)

    def test_it_can_be_closed_twice_and_before_it_is_opened(self) -> None:
        for executor in (self.make(), self.opened()):
            executor.close()
            executor.close()
