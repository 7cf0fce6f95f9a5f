"""What stands beside a check: the compiler that works ahead, and compute-sanitizer where it is installed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tilewright.hardware.architectures import default_board
from tilewright.languages.cutile.cutile import CuTile
from tilewright.records import Built
from tilewright.space.space import Space
from tilewright.task.loading import load_task
from tilewright.task.task import Task
from tilewright.testing.functions import FunctionEngine
from tilewright.tileir.watch.findings import OUT_OF_BOUNDS, Finding
from tilewright.verify import sanitizer_tool as check_watching
from tilewright.verify.cases import Case
from tilewright.verify.check import check_on
from tilewright.verify.planning import Scope
from tilewright.verify.sanitizer_tool import ABSENT, TOOLS, Sanitized, Watching
from tilewright.verify.schedule import Compiling, Equipment
from tilewright.verify.verdict import Verdict

OPS = """\
import cuda.tile as ct
import tilewright as tw

@ct.kernel
def twice(x, y, TILE: ct.Constant[int]):
    ct.store(y, (ct.bid(0),), 2 * ct.load(x, (ct.bid(0),), (TILE,)))

task = tw.Task(
    name="twice",
    tensors={"x": tw.Tensor(("N",), "float32"), "y": tw.Output(("N",), "float32")},
    reference=lambda x: 2 * x,
    launch=lambda x, y, N, config: tw.Launch(twice, (-(-N // config.TILE),), (x, y, config.TILE)),
    flops=lambda N: N, independent=("N",), layouts=("misaligned",),
    space=tw.Space(constants={"TILE": (16, 32)}, shipped={"TILE": 16}),
    workloads={"only": {"N": 1000}},
)
"""
BOARD = default_board("sm_90")


@pytest.fixture
def task(tmp_path: Path) -> Task:
    file = tmp_path / "ops.py"
    file.write_text(OPS)
    return load_task(str(file))


@pytest.fixture
def remembered(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Symbols of the cubins that were put into the launches' cache."""
    found: list[str] = []
    monkeypatch.setattr(CuTile, "remember", lambda self, built: found.extend(one.symbol for one in built))
    return found


def case(n: int, **changes: Any) -> Case:
    return Case((("N", n),), **changes)


def test_what_a_check_will_launch_is_compiled_once_and_remembered(
    task: Task, remembered: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Equal divisibility, equal code: 33 and 35 share one, 32 has its own, and so has a misaligned view."""
    started: list[str] = []
    assemble = CuTile.assemble

    def counting(self: CuTile, lowered: Any, seconds: float) -> Any:
        started.append(lowered.symbol)
        return assemble(self, lowered, seconds)

    monkeypatch.setattr(CuTile, "assemble", counting)
    compiling, config = Compiling(task, BOARD, to_machine_code=True), task.space.shipped
    cases = [case(33), case(35), case(32), case(33, layout="misaligned"), case(33, data="large")]
    compiling.ahead([(config, one) for one in cases])
    assert len(started) == len(remembered) == 3
    assert compiling(config, {"N": 35}, task.arrays({"N": 35})) is None
    assert len(started) == 3, "asked again, it is known"


def test_configurations_that_share_a_cubin_are_each_remembered(task: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    """A launch with a hint looks for the cubin of its own bytecode."""
    keys: list[str | None] = []
    monkeypatch.setattr(CuTile, "remember", lambda self, built: keys.extend(one.cache_key for one in built))
    space = Space(constants={"TILE": (16,)}, hints={"num_ctas": (None, 1)}, shipped={"TILE": 16, "num_ctas": None})
    compiling = Compiling(replace(task, space=space), BOARD, to_machine_code=True)
    compiling.ahead([(space.shipped.replace(num_ctas=value), case(33)) for value in (None, 1)])
    assert len(compiling._known) == 1 and len(set(keys)) == 2


def test_the_interpreter_needs_no_machine_code(task: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CuTile, "assemble", None)
    compiling = Compiling(task, BOARD, to_machine_code=False)
    compiling.ahead([(task.space.shipped, case(33))])
    assert compiling(task.space.shipped, {"N": 33}, task.arrays({"N": 33})) is None
    failed = compiling(task.space.shipped.replace(TILE=17), {"N": 33}, task.arrays({"N": 33}))
    assert failed is not None and failed.stage == "front end" and "power of two" in failed.reason
    failed = compiling(task.space.shipped, {"N": 33}, {})
    assert failed is not None and failed.stage == "launch"


def verdict_of(task: Task) -> Verdict:
    engine = FunctionEngine(task, lambda run: run["y"].__setitem__(..., 2 * run["x"]))
    return check_on(task, Equipment(engine), Scope(quick=True))


def watched(task: Task, monkeypatch: pytest.MonkeyPatch, said: Mapping[str, Sanitized]) -> Verdict:
    monkeypatch.setattr(check_watching, "find", lambda: Path("/usr/bin/compute-sanitizer"))
    monkeypatch.setattr(check_watching, "sanitize", lambda *_, tools: [said.get(t, Sanitized(t)) for t in tools])
    watching = Watching(task)
    watching.start(task.space.shipped, case(33))
    found = watching.joined(verdict_of(task))
    watching.close()
    return found


def test_tools_that_find_nothing_leave_the_verdict(task: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    found = watched(task, monkeypatch, {})
    assert found.verdict.startswith("correct")
    assert found.tools == tuple(f"compute-sanitizer {tool}: no finding" for tool in TOOLS)


def test_what_a_tool_finds_makes_a_kernel_incorrect(task: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    finding = Finding(OUT_OF_BOUNDS, "a write of 4 bytes behind 'y'")
    found = watched(task, monkeypatch, {"memcheck": Sanitized("memcheck", (finding,))})
    assert found.verdict == "incorrect" and "behind 'y'" in found.reason
    assert finding in found.findings and "compute-sanitizer memcheck: 1 finding" in found.tools


def test_a_tool_that_says_nothing_is_no_clean_bill(task: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    """trust.md 13: what was not compared is unverified, by name."""
    found = watched(task, monkeypatch, {"racecheck": Sanitized("racecheck", reason="took longer than 180 s")})
    assert found.verdict.startswith("correct") and "racecheck: took longer than 180 s" in found.unverified


def test_where_it_is_not_installed_that_is_said(task: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check_watching, "find", lambda: None)
    watching = Watching(task)
    watching.start(task.space.shipped, case(33))
    assert watching.joined(verdict_of(task)).tools == (ABSENT,)
    assert verdict_of(task).tools == ()


def test_a_cubin_is_what_was_built(task: Task, remembered: list[str]) -> None:
    compiling = Compiling(task, BOARD, to_machine_code=True)
    compiling.ahead([(task.space.shipped, case(64))])
    (built,) = compiling._known.values()
    assert isinstance(built, Built) and remembered == [built.symbol]
