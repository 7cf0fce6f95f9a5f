"""The profiling specialist: a trace is answered with measured numbers anywhere, a program where a GPU is."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.profile.made_traces import eager_training, graph_replay

from tilewright.errors import NoGpu, RequestError
from tilewright.hardware.gpu import detect
from tilewright.profile.profile import profile
from tilewright.specialists import specialist_of
from tilewright.specialists.delegation import Delegation


def asked(file: str) -> Delegation:
    return Delegation("profiling", "find where the time goes", "one training step", ("time",), file=file)


def test_a_trace_is_answered_with_measured_numbers(tmp_path: Path) -> None:
    path = eager_training().write(tmp_path / "trace.json.gz")
    answer, found = specialist_of("profiling").answer(asked(str(path))), profile(path)
    assert answer.outcome == "analysed" and answer.summary == found.findings[0].text
    assert dict(answer.findings) == {finding.id: finding.text for finding in found.findings}
    measured = {measure.metric: measure for measure in answer.measures}
    assert measured["compute, GPU 0"].before == found.gpus[0].value("compute")
    digest = found.traces[0].digest
    assert all(measure.evidence.startswith(f"trace {digest}") for measure in answer.measures)
    assert "trace.json.gz:" in measured["compute, GPU 0"].evidence


def test_a_trace_without_fault_has_no_finding(tmp_path: Path) -> None:
    answer = specialist_of("profiling").answer(asked(str(graph_replay().write(tmp_path / "trace.json"))))
    assert (answer.summary, dict(answer.findings)) == ("no number is beyond its limit", {})


def test_what_it_cannot_answer_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWRIGHT_HOME", str(tmp_path))
    for file, why in (("", "name the file"), ("gone.py", "no such program: gone.py"), ("gone.json", "No such file")):
        with pytest.raises(RequestError, match=why):
            specialist_of("profiling").answer(asked(file))


@pytest.mark.skipif(detect() is not None, reason="there is a GPU")
def test_a_program_needs_a_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWRIGHT_HOME", str(tmp_path / "home"))
    (program := tmp_path / "train.py").write_text("open('ran', 'w')")
    with pytest.raises(NoGpu, match="needs a GPU"):
        specialist_of("profiling").answer(asked(str(program)))
    assert not (tmp_path / "ran").exists()
