"""A specialist of a kernel language writes a kernel that a delegation asks for, or says that it needs a proposer."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tilewright.errors import RequestError
from tilewright.specialists import specialist_of
from tilewright.specialists.delegation import Delegation
from tilewright.specialists.writing import answering
from tilewright.task.loading import load_task


def job(specialist: str, task: str, **given: object) -> Delegation:
    return Delegation(specialist, task, "one call", ("latency in µs",), **given)  # type: ignore[arg-type]


@pytest.mark.parametrize("language", ["cutile", "triton"])
def test_a_written_kernel_is_a_patch_that_applies(language: str, tmp_path: Path) -> None:
    asked = job(language, f"Write a {language} kernel for fused SiLU-mul", dtype="float16", dims={"M": 64, "N": 96})
    answer = specialist_of(language).answer(asked)
    assert (answer.outcome, answer.measures) == ("analysed", ()), "what is not measured is not applied"
    assert "by the interpreter it is correct" in answer.summary
    subprocess.run(["git", "apply", "-"], cwd=tmp_path, input=answer.patch, text=True, check=True)
    task = load_task(str(tmp_path / f"silu_mul_{language}.py"))
    assert dict(task.workloads["given"]) == {"M": 64, "N": 96}
    assert {each.dtype for each in task.tensors.values()} == {"float16"}


def test_a_reference_in_a_file_is_written(tmp_path: Path) -> None:
    file = tmp_path / "ops.py"
    file.write_text("import numpy as np\n\ndef f(x):\n    return np.tanh(x)\n")
    answer = specialist_of("triton").answer(job("triton", "write it", file=f"{file}:f"))
    assert "wrote f_triton.py" in answer.summary and "+++ b/f_triton.py" in answer.patch


@pytest.mark.parametrize("body", ["np.cumsum(x)", "x @ x @ x"])
def test_what_is_outside_the_forms_needs_a_proposer(body: str, tmp_path: Path) -> None:
    file = tmp_path / "ops.py"
    file.write_text(f"import numpy as np\n\ndef f(x):\n    return {body}\n")
    asked = job("cutile", "write it", file=f"{file}:f")
    answer = specialist_of("cutile").answer(asked)
    assert answer.outcome == "not applied" and not answer.patch
    assert answer.summary.startswith("needs a proposer: ") and answer.summary.endswith(str(asked))


def test_an_unknown_operation_needs_a_proposer() -> None:
    answer = specialist_of("triton").answer(job("triton", "Write a Triton kernel for a sparse convolution"))
    assert "names no operation of the table" in answer.summary and "Task: Write a Triton kernel" in answer.summary


def test_a_wrong_kernel_is_not_handed_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """The writer is made to write a wrong kernel; the check is the real one."""
    right = answering.write_task

    def wrong(*given: object, **options: object) -> object:
        task = right(*given, **options)  # type: ignore[arg-type]
        assert "* factor, mask" in task.text
        return type(task)(task.name, task.text.replace("* factor, mask", "+ factor, mask"), task.form)

    monkeypatch.setattr(answering, "write_task", wrong)
    answer = specialist_of("triton").answer(job("triton", "silu-mul"))
    assert answer.outcome == "not applied" and not answer.patch and "is incorrect" in answer.summary


def test_tileir_never_writes() -> None:
    with pytest.raises(RequestError, match="names no file"):
        specialist_of("tileir").answer(job("tileir", "Write a kernel for softmax"))
