"""What `checks` adds to a verdict: the engine of the machine, and the names of other tasks."""

from __future__ import annotations

from typing import Any

import pytest
from tests.optimize.kit import SCALE

from tilewright.errors import NoGpu, UnknownChoice
from tilewright.space.space import Space
from tilewright.task.task import Task
from tilewright.task.tensors import Output, Tensor
from tilewright.testing.entries import H200, loaded
from tilewright.testing.functions import FunctionEngine
from tilewright.verify import schedule as engines
from tilewright.verify.check import InterpreterChecker, check_on
from tilewright.verify.planning import Scope
from tilewright.verify.verdict import Verdict, beside


def task() -> Task:
    return Task(
        name="twice",
        tensors={"x": Tensor(("N",), "float32"), "y": Output(("N",), "float32")},
        reference=lambda x: 2 * x,
        launch=lambda x: None,  # type: ignore[arg-type,return-value]
        flops=lambda N: N,
        space=Space(constants={"TILE": (16,)}, shipped={"TILE": 16}),
        workloads={"only": {"N": 1000}},
    )


@pytest.fixture
def verdict() -> Verdict:
    engine = FunctionEngine(task(), lambda run: run["y"].__setitem__(..., 2 * run["x"]))
    return check_on(task(), engines.Equipment(engine), Scope(quick=True))


def test_the_engine_is_the_gpu_where_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    class Hopper:
        arch = "sm_90"

    monkeypatch.setattr(engines, "detect", lambda: Hopper)
    assert engines.engine_name(None) == "gpu"
    assert engines.engine_name("interpreter") == "interpreter"
    monkeypatch.setattr(engines, "detect", lambda: None)
    assert engines.engine_name(None) == "interpreter"
    with pytest.raises(NoGpu, match="interpreter needs none"):
        engines.engine_name("gpu")
    with pytest.raises(UnknownChoice, match="known: interpreter, gpu"):
        engines.engine_name("tpu")


def test_another_task_of_the_same_file(verdict: Verdict, tmp_path: Any) -> None:
    file = tmp_path / "ops.py"
    file.touch()
    assert beside(f"{file}:other", verdict) == f"{file}:twice"
    assert beside(str(file), verdict) == f"{file}:twice"


def test_the_cases_in_which_a_version_is_wrong(tmp_path: Any) -> None:
    """Each with its mistake; a version that is right in one of them is wrong in the others still."""
    tile = "ct.load(x, (i,), (TILE,)) * 2"
    wrong, right = (
        loaded(SCALE.replace(tile, f"ct.where(x.shape[0] > {most}, {tile}, 1.0)"), tmp_path) for most in (1, 0)
    )
    checker = InterpreterChecker(right, H200, 0)
    try:
        found = checker.wrong_cases(wrong, right.selected(None), 60)
        assert found and {dict(case.dims)["N"] for case in found} == {1}
        first, *_others = found
        assert "should be" in found[first] and "N=1" in found[first]
        assert checker.wrong_cases(wrong, right.selected(None), 60, first) == {first: found[first]}
        assert not checker.wrong_cases(right, right.selected(None), 60, first)
    finally:
        checker.close()
