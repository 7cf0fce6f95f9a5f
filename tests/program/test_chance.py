"""Runs that agree by chance prove nothing; runs that differ by rounding first, and wildly later, do."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from tilewright.program.outputs import ComparedRuns, compare
from tilewright.program.run import ObservedTensor, ProgramOutputs, ProgramRun

STEPS = 9


def run_of(losses: Sequence[Sequence[float]] = (), printed: Sequence[str] = ()) -> ProgramRun:
    """A run that computes a loss of some values in each step, and prints one number a step."""
    tensors = tuple(
        ObservedTensor(f"backward {n} loss 0", (len(each),), "float32", hash(tuple(each)), 0, tuple(each))
        for n, each in enumerate(losses, 1)
    )
    outputs = ProgramOutputs(tensors, ((1, 1),) * STEPS, 2.0**-23)
    return ProgramRun("optimizer step", STEPS, "", (), 1.0, "cpu", outputs=outputs, stdout="\n".join(printed))


def judged(*columns: Sequence[str]) -> ComparedRuns:
    """The verdict on a printed column of the unchanged program, of the changed one, and of the noise run."""
    return compare(*(run_of(printed=each) for each in columns))


@pytest.mark.parametrize("form", ["{}", "{:.6f}", "{:.4f}", "{:.3f}", "{:.2f}"])
def test_columns_of_unrelated_numbers_are_unverified(form: str) -> None:
    """In one of fifty, the first row of two runs differs by less than a hundredth."""
    draw, near = random.Random(1), 0
    for _ in range(2000):
        one, other, noise = ([form.format(draw.random()) for _ in range(STEPS)] for _ in range(3))
        near += abs(float(one[0]) - float(noise[0])) < 0.01 * max(map(float, one))
        assert judged(one, other, noise).verdict == "unverified", (one, other, noise)
    assert near > 10


@pytest.mark.parametrize("size", [1, 4])
def test_losses_of_unrelated_numbers_are_unverified(size: int) -> None:
    draw = random.Random(2)
    for _ in range(2000):
        one, other, noise = (
            run_of([[draw.uniform(0.0, 3.0) for _ in range(size)] for _ in range(STEPS)]) for _ in range(3)
        )
        assert compare(one, other, noise).verdict == "unverified"


CHAOTIC = ["2.3026", "1.8814", "0.9127", "2.2040"]


@pytest.mark.parametrize("noise", [["2.3026", "1.4021"], ["2.3025", "1.4021"], ["2.3024", "1.8801"]])
def test_rows_that_differ_by_rounding_are_compared_though_later_ones_are_chaotic(noise: list[str]) -> None:
    noise = [*noise, "1.7214", "1.1090"]
    assert judged(CHAOTIC, ["2.3026", "1.8821", "1.9124", "0.1090"], noise).right
    found = judged(CHAOTIC, ["2.4517", *CHAOTIC[1:]], noise)
    assert (found.verdict, found.reason) == ("different", "'#' prints 2.4517 instead of 2.3026")


def test_many_rows_that_nearly_agree_are_compared() -> None:
    rows = [f"{1.0 + 0.01 * n:.6f}" for n in range(8)]
    near = [f"{float(row) * 1.004:.6f}" for row in rows]
    wild = ["1.9", "1.2"]
    assert judged([*rows, *wild], [*rows[:-1], "1.9", *wild], [*near, *wild[::-1]]).verdict == "different"
    assert judged([*rows[6:], *wild], ["1.9", "1.3", *wild], [*near[6:], *wild[::-1]]).verdict == "unverified"


def test_a_noise_run_that_prints_nan_is_no_proof() -> None:
    assert judged(["nan", "1.5"], ["0.5", "1.5"], ["0.7", "1.5"]).verdict == "unverified"


def test_losses_that_differ_by_rounding_are_compared_though_later_ones_are_chaotic() -> None:
    losses = [[2.0], [1.9], [1.7], [0.4]]
    noise = run_of([[2.0000002], [1.90001], [1.703], [1.9]])
    wrong = compare(run_of(losses), run_of([[2.3], *losses[1:]]), noise)
    assert (wrong.verdict, wrong.reason[:17]) == ("different", "backward 1 loss 0")
    assert compare(run_of(losses), run_of([[2.0000005], [1.90002], [1.71], [1.1]]), noise).right
