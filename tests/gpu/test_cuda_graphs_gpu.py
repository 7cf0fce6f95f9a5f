"""CUDA graphs on a GPU: a trial shows whether a program can be captured, and the changed program computes the same."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from tests.specialists.graph_answers import SNIPPETS, known  # noqa: E402

from tilewright.program.command import ProgramCommand  # noqa: E402
from tilewright.program.graphs.analysis import analysed  # noqa: E402
from tilewright.program.graphs.changes import GRAPH_CHANGES  # noqa: E402
from tilewright.program.reading.reach import reached_modules  # noqa: E402
from tilewright.specialists import specialist_of  # noqa: E402
from tilewright.specialists.changing import proposal_of  # noqa: E402
from tilewright.specialists.delegation import Delegation  # noqa: E402
from tilewright.specialists.proposal import NoProposal  # noqa: E402

pytestmark = pytest.mark.gpu
EXAMPLES = Path(__file__).parents[2] / "examples" / "launch_bound"


@pytest.mark.parametrize("name", ["nucleus_sampling", "inference_of_a_perceptron", "adam_that_can_be_captured"])
def test_a_model_that_can_be_captured_replays_equally(name: str) -> None:
    trial = analysed(ProgramCommand.of([sys.executable, f"{name}.py"], SNIPPETS), 120.0).trial
    assert trial is not None and trial.right and trial.replays == 20, trial
    assert len(trial.eager_us) == len(trial.replay_us) > 20


@pytest.mark.parametrize("name", ["positive_activations", "prints_in_forward", "cut_to_the_longest"])
def test_a_model_that_cannot_be_captured_is_named_by_line(name: str) -> None:
    found = analysed(ProgramCommand.of([sys.executable, f"{name}.py"], SNIPPETS), 120.0)
    assert found.trial is not None and found.trial.captured is False
    assert {each.line for each in found.trial.hazards} == {line for line, _ in known(SNIPPETS / f"{name}.py")}


def test_replays_that_differ_are_seen() -> None:
    """A capture takes a counter of the host, and repeats its value."""
    trial = analysed(ProgramCommand.of([sys.executable, "warm_up_of_a_scale.py"], SNIPPETS), 120.0).trial
    assert trial is not None and trial.captured and not trial.right


@pytest.mark.parametrize(("script", "change"), [("serve.py", 0), ("train.py", 1)])
def test_a_changed_program_prints_the_same(script: str, change: int, tmp_path: Path) -> None:
    proposal = proposal_of(GRAPH_CHANGES[change], reached_modules(EXAMPLES / script))
    assert proposal is not None
    (tmp_path / "model.py").write_text((EXAMPLES / "model.py").read_text())
    (tmp_path / script).write_text(next(iter(proposal.texts.values())))
    said = [
        subprocess.run(
            [sys.executable, script, "--steps", "40"], cwd=folder, capture_output=True, text=True, check=True
        )
        for folder in (EXAMPLES, tmp_path)
    ]
    assert said[0].stdout == said[1].stdout


def test_the_specialist_measures_and_proposes() -> None:
    words = Delegation("cuda-graph", "Apply CUDA graphs", "requests", ("latency",), file=str(EXAMPLES / "serve.py"))
    (measure,) = specialist_of("cuda-graph").answer(words).measures
    assert measure.after is not None and measure.after < measure.before and measure.evidence.startswith("trial ")
    proposed = specialist_of("cuda-graph").propose(words)
    assert not isinstance(proposed, NoProposal)
    assert [each.name for each in proposed] == ["replayed_forward", "reduce_overhead"]
