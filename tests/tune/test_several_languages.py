"""A task with several implementations, in several languages: one table, one winner for each workload."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tilewright.compile.compile import Unit, compile_all, languages_of, lower, one_language
from tilewright.compile.identity import code_of
from tilewright.errors import TaskError
from tilewright.hardware.architectures import default_board
from tilewright.languages.base import Lowered
from tilewright.optimize.broken_code import refuse_broken_code
from tilewright.records import Failed
from tilewright.space.space import Space
from tilewright.space.union import implementation_of
from tilewright.strategies import strategy_of
from tilewright.strategies.base import SearchSpace
from tilewright.task.loading import load_task
from tilewright.task.task import Implementation, Launch, Task
from tilewright.testing.strategies import searched
from tilewright.tune.tune import tune
from tilewright.verify.check import check

pytest.importorskip("triton")
EXAMPLE = Path(__file__).parents[2] / "examples" / "several_languages.py"
BOARD = default_board("sm_90")


@pytest.fixture(scope="module")
def task() -> Task:
    return load_task(str(EXAMPLE))


def lowered(task: Task, text: str) -> Lowered:
    found = lower(task, Unit(task.workload("odd"), task.space.parse(text), BOARD))
    assert not isinstance(found, Failed), found
    return found[1]


def test_each_implementation_is_lowered_by_its_language(task: Task) -> None:
    assert languages_of(task, task.selected(None), BOARD) == ("cutile", "triton")
    assert lowered(task, "implementation=cutile").is_tile_ir
    assert lowered(task, "implementation=triton_tileir").is_tile_ir
    assert not lowered(task, "implementation=triton_ptx").is_tile_ir


def test_tune_gives_one_table_and_one_winner(task: Task) -> None:
    result = tune(task, arch="sm_90", workloads="odd", store=False)
    (odd,) = result.workloads
    assert odd.best is not None and odd.best.checked is not None and odd.best.checked.right
    assert odd.shipped == task.space.shipped
    tried = {implementation_of(each.configuration) for each in odd.candidates if each.checked and each.checked.right}
    assert tried == set(task.implementations), "the best of each implementation is verified"
    us = {each.configuration: each.predicted.us for each in odd.candidates if each.predicted}
    right = [each.configuration for each in odd.candidates if each.checked and each.checked.right]
    assert odd.best.configuration == min(right, key=us.__getitem__)


@pytest.mark.long
def test_no_implementation_is_screened_for_the_prediction_of_another(task: Task) -> None:
    """Predictions of kernels in several languages differ by more than the screen's factor of 2, and mean little."""
    result = tune(task, arch="sm_90", workloads="large", store=False)
    (large,) = result.workloads
    alive = {implementation_of(each.configuration) for each in large.candidates if each.status == "predicted"}
    assert alive == set(task.implementations)


def test_check_tests_what_ships_of_each_implementation(task: Task) -> None:
    verdict, *_ = check(task, quick=True)
    assert verdict.verdict == "correct on reduced shapes"
    assert {result.configuration for result in verdict.results} == set(task.space.every_shipped)


def test_the_digest_of_a_run_has_the_code_of_all_implementations(task: Task) -> None:
    def launch(x: Any, out: Any, M: int, N: int) -> Launch:
        made = task.implementations["triton_ptx"].launch(x, out, M, N)
        return replace(made, grid=(M + 1,))

    changed = {**task.implementations, "triton_ptx": replace(task.implementations["triton_ptx"], launch=launch)}
    other = Task(**{name: getattr(task, name) for name in ("name", "tensors", "reference", "flops", "workloads")},
                 implementations=changed, file=task.file)  # fmt: skip
    before, after = (code_of(each, each.selected("odd"), BOARD) for each in (task, other))
    assert before != after


@pytest.mark.parametrize("name", ["local", "halving", "bayesian"])
def test_strategies_search_all_implementations(task: Task, name: str) -> None:
    if name == "bayesian":
        pytest.importorskip("optuna")
    space = SearchSpace(task.space, 90, task.workloads["odd"], 10)
    batches = searched(strategy_of(name), space, lambda _: "raced", us=lambda config: len(str(config)))
    found = [config for batch in batches for config in batch]
    assert len(found) == len(set(found)) == 10
    assert all(space.allows(config) for config in found)


def test_a_program_that_changes_one_kernel_refuses_several(task: Task) -> None:
    with pytest.raises(TaskError, match="has 3 implementations.*fix: write a task with one of them"):
        one_language(task, task.selected("odd"), BOARD)
    with pytest.raises(TaskError, match="has 3 implementations.*fix: write a task with one of them"):
        refuse_broken_code(task, BOARD, None, Path.cwd())


def test_one_implementation_has_one_language(task: Task) -> None:
    tile, triton = (task.implementations[name].launch for name in ("cutile", "triton_ptx"))
    space = Space(constants={"WHICH": (0, 1)}, shipped={"WHICH": 0})
    mixed = Implementation(launch=lambda x, out, M, N, config: (tile, triton)[config.WHICH](x, out, M, N), space=space)
    other = replace(task, implementations={"mixed": mixed})
    with pytest.raises(
        TaskError, match="mixes languages: implementation=mixed,WHICH=0 .*'cutile'.*fix: write one impl"
    ):
        languages_of(other, other.selected("odd"), BOARD)


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (lambda each: [each], "implementations of task .* is a list; pass a dict: name"),
        (lambda each: {1: each}, "has an implementation called 1; use letters, digits"),
        (lambda each: {"a,b=c": each}, "has an implementation called 'a,b=c'; use letters, digits"),
        (lambda each: {"a": each.launch}, "implementation 'a' of task .* is a function; pass tilewright.Impl"),
    ],
)
def test_wrong_implementations_are_refused(task: Task, given: Callable[[Implementation], Any], why: str) -> None:
    with pytest.raises(TaskError, match=why):
        replace(task, implementations=given(task.implementations["cutile"]))


def test_a_missing_language_fails_only_its_implementation(task: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: object, **__: object) -> Launch:
        raise ModuleNotFoundError("No module named 'another_language'")

    broken = {**task.implementations, "triton_ptx": replace(task.implementations["triton_ptx"], launch=missing)}
    result = tune(replace(task, implementations=broken), arch="sm_90", workloads="odd", store=False)
    (odd,) = result.workloads
    failed = {implementation_of(each.configuration) for each in odd.candidates if each.status == "failed"}
    assert failed == {"triton_ptx"} and odd.best is not None


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"implementations": {}}, "has no launch: give launch= and space=, or implementations="),
        ({"implementations": {"a": 1}}, "implementation 'a' of task .* is a int; pass tilewright.Implementation"),
        ({"space": Space(shipped={})}, "has implementations, and also a launch or space of its own"),
    ],
)
def test_bad_input_is_one_clear_line(task: Task, changes: dict[str, Any], said: str) -> None:
    parts = {name: getattr(task, name) for name in ("name", "tensors", "reference", "flops", "workloads")}
    with pytest.raises(TaskError, match=said):
        Task(**{**parts, "implementations": task.implementations, **changes})


def test_all_implementations_compile(task: Task) -> None:
    units = [Unit(task.workload("odd"), config, BOARD) for config in task.space.every_shipped]
    assert [each.built for each in compile_all(task, units) if isinstance(each.built, Failed)] == []
