"""Every shipped specialist keeps the contract (C-01, X-20); aliases, delegations, and what a machine lacks."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilewright.errors import MachineError, RequestError, UnknownChoice
from tilewright.specialists import needs, specialist_of, specialists
from tilewright.specialists.base import Need, Specialist
from tilewright.specialists.delegation import Delegation, Measure
from tilewright.testing.specialists import SpecialistContract, delegation_to

NAMES = ("profiling", "cuda-graph", "cutile", "triton", "tileir", "cute-dsl", "distributed")
ALIASES = {
    "perf-profiling-specialist": "profiling", "perf-torch-cuda-graph-specialist": "cuda-graph",
    "kernel-triton-specialist": "triton", "kernel-tileir-specialist": "tileir", "kernel-cute-specialist": "cute-dsl",
    "distributed-specialist": "distributed",
}  # fmt: skip


def contract(name: str) -> type[SpecialistContract]:
    return type("Contract", (SpecialistContract,), {"specialist": specialist_of(name)})


globals().update({f"Test_{name}": contract(name) for name in NAMES})


class Sparsity(Specialist):
    """A specialist in one file, with the one method that must be written."""

    name = "sparsity"
    domain = "2:4 structured sparsity of weights"
    returns = "the time of the layer before and after, interleaved"
    names = ("structured sparsity", "2:4 sparsity")
    examples = ("Use 2:4 sparsity in my model",)

    def needs(self) -> tuple[Need, ...]:
        return (needs.need_of_package("no-such-package"), needs.need_of_gpu(99))


class TestToy(SpecialistContract):
    specialist = Sparsity()


def test_they_are_listed_in_the_order_of_the_work() -> None:
    assert tuple(each.name for each in specialists()) == NAMES


def test_the_names_of_others_are_aliases() -> None:
    assert {alias: specialist_of(alias).name for alias in ALIASES} == ALIASES
    with pytest.raises(UnknownChoice, match="unknown specialist 'tritn'; did you mean 'triton'. known: profiling"):
        specialist_of("tritn")


def test_a_machine_without_the_needs_says_what_is_missing() -> None:
    missing = TestToy.specialist.needs()
    assert [need.met for need in missing] == [False, False]
    with pytest.raises(MachineError) as raised:
        TestToy.specialist.answer(delegation_to(TestToy.specialist))
    assert "no-such-package: pip install no-such-package; 99 GPUs of one host: " in str(raised.value)


def test_a_delegation_without_metrics_is_refused() -> None:
    for metrics in ((), ("",), (" ", "")):
        with pytest.raises(RequestError, match="names no metric; name what is measured before and after"):
            Delegation("triton", "write a kernel", "one step", metrics)


def test_a_delegation_states_the_outcome_and_quotes_findings() -> None:
    text = str(
        Delegation("triton", "write a kernel", "one step", ("latency",), dims={"M": 8, "N": 4}, dtype="bfloat16",
                   flops=64, constraints=("outputs equal",), context="this machine", findings=("F1", "F2"))
    )  # fmt: skip
    for line in ("Task: write a kernel", "Workload: one step", "Dimensions: M = 8, N = 4", "Data type: bfloat16",
                 "FLOP: 64", "Metrics: latency", "Constraints: outputs equal", "Findings: F1, F2",
                 "Execution context: this machine"):  # fmt: skip
        assert line in text.splitlines()


@given(st.text(), st.text(), st.text())
def test_a_delegation_has_one_line_for_each_field(task: str, workload: str, metric: str) -> None:
    try:
        made = Delegation("triton", task, workload, (metric,))
    except RequestError as error:
        assert not metric.strip()
        assert len(str(error).splitlines()) == 1
    else:
        assert metric.strip()
        assert [line.partition(":")[0] for line in str(made).splitlines()] == [
            "Task", "File", "Workload", "Dimensions", "Data type", "FLOP", "Metrics", "Constraints", "Findings",
            "Time limit", "Execution context",
        ]  # fmt: skip


def test_a_measure_without_evidence_is_refused() -> None:
    with pytest.raises(RequestError, match="latency has no evidence; give the id of its measurement in the ledger"):
        Measure("latency", "ms", 2.0, 1.0, "")
