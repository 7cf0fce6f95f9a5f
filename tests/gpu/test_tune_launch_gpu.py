"""A candidate of `tune` as a program: the time and the verdict of its language's own launch."""

from __future__ import annotations

from pathlib import Path
from statistics import median

import pytest

torch = pytest.importorskip("torch")

from tilewright.compile.compile import Unit, compile_all  # noqa: E402
from tilewright.hardware.gpu import detect  # noqa: E402
from tilewright.race.protocol import Budget  # noqa: E402
from tilewright.race.rules import Policy  # noqa: E402
from tilewright.task.loading import load_task, where_is  # noqa: E402
from tilewright.worker.messages import CheckOutputs, Configured, PrepareInputs, Program, TimeRounds  # noqa: E402
from tilewright.worker.programs import source_of  # noqa: E402
from tilewright.worker.session import Session  # noqa: E402

pytestmark = pytest.mark.gpu
EXAMPLES = Path(__file__).parents[2] / "examples"
SAME = 0.02
"""Ratio of the medians that counts as the same time."""


@pytest.mark.parametrize(
    ("example", "workload"), [("matmul.py", "4096"), ("rms_norm.py", "16384x4096"), ("fmha.py", "causal")]
)
def test_both_launches_are_the_same(example: str, workload: str) -> None:
    task, gpu = load_task(str(EXAMPLES / example)), detect()
    assert gpu is not None
    (one,) = compile_all(task, [Unit(task.workload(workload), task.space.shipped, gpu.board)], seconds=60)
    program, own = (source_of(task, one, Policy(launch=how)) for how in ("graph", "eager"))  # type: ignore[arg-type]
    assert isinstance(program, Program) and isinstance(own, Configured)
    with Session(where_is(task)) as session:
        session.run(PrepareInputs(workload, 5), silence=120)
        verdicts = [session.run(CheckOutputs(source), silence=120).answer for source in (program, own)]
        timed = session.run(TimeRounds((program, own), Budget(200, 20.0, 100), Policy()), silence=120).answer
    assert None not in (*verdicts, timed), (verdicts, timed)
    first, second = (each.checked for each in verdicts)  # type: ignore[union-attr]
    assert first.verdict == "correct" and (first.verdict, first.error) == (second.verdict, second.error)
    ratio = median(timed.samples_us[0]) / median(timed.samples_us[1])  # type: ignore[union-attr]
    assert abs(ratio - 1) < SAME, ratio
