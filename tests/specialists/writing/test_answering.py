"""A specialist of a kernel language writes a kernel that a delegation asks for, or says that it needs a proposer."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from tilewright.errors import RequestError
from tilewright.specialists import specialist_of
from tilewright.specialists.delegation import Delegation, SpecialistAnswer, handed_on
from tilewright.specialists.writing import attempting
from tilewright.specialists.writing.answering import reference_in
from tilewright.specialists.writing.attempting import CorrectTask, first_correct
from tilewright.specialists.writing.shipped import with_shipped, with_tiles
from tilewright.specialists.writing.writing import ATTEMPTS, source_of, write_task
from tilewright.task.loading import load_task
from tilewright.verify.check import check


def job(specialist: str, task: str, **given: object) -> Delegation:
    return Delegation(specialist, task, "one call", ("latency in µs",), **given)  # type: ignore[arg-type]


def test_a_written_kernel_is_a_patch_that_applies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWRIGHT_HOME", str(tmp_path / "home"))
    asked = job("cutile", "Write a cuTile kernel for softmax", dtype="float16", dims={"M": 64, "N": 96})
    answer = specialist_of("cutile").answer(asked)
    assert (answer.outcome, answer.measures) == ("analysed", ()), "what is not measured is not applied"
    assert "by the interpreter it is correct" in answer.summary and "it ships TILE_N=8192" in answer.summary
    assert any("predicted best: workload given" in text for text in answer.findings.values()), "it was tuned"
    subprocess.run(["git", "apply", "-"], cwd=tmp_path, input=answer.patch, text=True, check=True)
    assert (tmp_path / "softmax_cutile.py").read_text() == Path(answer.file).read_text()
    task = load_task(str(tmp_path / "softmax_cutile.py"))
    assert dict(task.workloads["given"]) == {"M": 64, "N": 96}
    assert {each.dtype for each in task.tensors.values()} == {"float16"}


def test_a_reference_in_a_file_is_read(tmp_path: Path) -> None:
    file = tmp_path / "ops.py"
    file.write_text("import numpy as np\n\ndef f(x):\n    return np.tanh(x)\n")
    source = reference_in(job("triton", "write it", file=f"{file}:f"))
    assert source is not None and (source.function, source.origin) == ("f", str(file))
    assert reference_in(job("triton", "write it", file=f"{file}:g")) is None


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
    """The writer is made to write wrong kernels; the checks are real."""
    right, tried = attempting.write_task, list[str]()

    def wrong(*given: object, **options: object) -> object:
        task = right(*given, **options)  # type: ignore[arg-type]
        assert "* factor, mask" in task.text
        tried.append(task.text)
        return replace(task, text=task.text.replace("* factor, mask", "+ factor, mask"))

    monkeypatch.setattr(attempting, "write_task", wrong)
    answer = specialist_of("triton").answer(job("triton", "silu-mul"))
    assert answer.outcome == "not applied" and not answer.patch and not answer.file
    assert answer.summary.startswith("needs a proposer: the triton kernel for 'silu_mul': gave up after 3 failures: ")
    assert answer.summary.count(": incorrect: ") == len(set(tried)) == 3, "three different attempts"
    assert str(job("triton", "silu-mul")) in answer.summary


FAILING = {
    "does not compile": ("triton", "x: '[M, N]', triton: '[M, N]'", "x * triton", "incorrect: ", "AttributeError"),
    "cannot be verified": ("cutile", "x: 'float32[M, N]'", "np.sin(x * 1e9)", "unverified: ", "of the norm of"),
}  # fmt: skip


@pytest.mark.parametrize("kind", FAILING)
def test_a_reference_that_fails_in_each_attempt(kind: str, tmp_path: Path) -> None:
    language, tensors, result, verdict, reason = FAILING[kind]
    file = tmp_path / "ops.py"
    file.write_text(f"import numpy as np\n\ndef f({tensors}):\n    return {result}\n")
    answer = specialist_of(language).answer(job(language, "write it", file=f"{file}:f"))
    assert answer.outcome == "not applied" and "needs a proposer" in answer.summary
    for attempt in ATTEMPTS:
        assert f"{attempt.name}: {verdict}" in answer.summary
    assert reason in answer.summary and "Task: write it" in answer.summary


@pytest.mark.parametrize("language", ["cutile", "triton"])
@pytest.mark.parametrize("name", ["silu mul", "rms norm", "gemm bias relu"])
def test_the_attempts_differ_and_each_would_do(language: str, name: str, tmp_path: Path) -> None:
    """The form of the last attempt is as right as that of the first: it is only tried when that is not."""
    texts = {
        each: write_task(source_of(name), language, "f.py", dtype="float16", attempt=each).text for each in ATTEMPTS
    }
    assert len(set(texts.values())) == len(ATTEMPTS)
    (tmp_path / "f.py").write_text(texts[ATTEMPTS[-1]])
    (verdict,) = check(str(tmp_path / "f.py"), engine="interpreter", quick=True, workloads=("large", "odd"))
    assert verdict.verdict.startswith("correct"), verdict.reason


def test_a_second_attempt_is_handed_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first kernel is made wrong; the second is the writer's own."""
    right = attempting.write_task

    def first_wrong(*given: object, **options: object) -> object:
        task = right(*given, **options)  # type: ignore[arg-type]
        return replace(task, text=task.text.replace("* factor, mask", "+ factor, mask")) if (
            options["attempt"] is ATTEMPTS[0]) else task  # fmt: skip

    monkeypatch.setattr(attempting, "write_task", first_wrong)
    found = first_correct(source_of("silu mul"), "triton", tmp_path / "f.py", engine="interpreter")
    assert isinstance(found, CorrectTask) and found.attempt == "in the smallest tiles"
    assert 'shipped={"TILE": 512' in (tmp_path / "f.py").read_text()


def test_the_file_ships_what_it_is_told() -> None:
    text = write_task(source_of("gemm bias relu"), "triton", "f.py").text
    changed = with_shipped(text, {"TILE_M": 64, "num_warps": 4})
    assert '"TILE_M": 64, "TILE_N": 256' in changed and '"num_warps": 4' in changed
    assert with_shipped(text, {}) == text and '"TILE_M": 256' in with_tiles(text, max)


def test_a_written_file_is_handed_on() -> None:
    answer, asked = SpecialistAnswer("analysed", "wrote it", (), file="written.py"), job("tileir", "the next step")
    assert handed_on(asked, answer).file == "written.py" and handed_on(asked, replace(answer, file="")) == asked
    assert handed_on(replace(asked, file="mine.py"), answer).file == "mine.py"


def test_tileir_never_writes() -> None:
    with pytest.raises(RequestError, match="names no file"):
        specialist_of("tileir").answer(job("tileir", "Write a kernel for softmax"))
