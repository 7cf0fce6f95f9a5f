"""A question for a new kernel is answered by its specialists in turn; other questions are about a program."""

from __future__ import annotations

import pytest

from tilewright.coordinate.kernel_questions import KernelQuestion, answers, kernel_question

QUESTIONS = {
    "Write a TileIR kernel for fused SiLU-mul": [("triton", ""), ("tileir", "")],
    "Write a Triton kernel for softmax": [("triton", "")],
    "write a cuTile kernel for ops.py:rms_norm": [("cutile", "ops.py:rms_norm")],
    "Write a Triton kernel for a sparse convolution": [("triton", "")],
    "speed up train.py": None,
    "Write a Triton kernel for model.py": None,
    "my softmax kernel is slow": None,
    "write me a cute cat": None,
}


@pytest.mark.parametrize("question", QUESTIONS)
def test_who_writes_what(question: str) -> None:
    asked = kernel_question(question)
    assert (asked and [(each.specialist, each.file) for each in asked.delegations]) == QUESTIONS[question]


def test_without_a_kernel_nobody_goes_on() -> None:
    """Tile IR is not asked to go on with a file that Triton did not write."""
    asked = kernel_question("Write a TileIR kernel for a sparse convolution")
    assert isinstance(asked, KernelQuestion) and len(asked.delegations) == 2
    ((delegation, answer),) = answers(asked)
    assert delegation.specialist == "triton" and answer.summary.startswith("needs a proposer: ") and not answer.file
