"""The text of a case says all of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilewright.errors import RequestError, UnknownChoice
from tilewright.space.space import Space
from tilewright.task.task import Task
from tilewright.task.tensors import LAYOUTS, Output, Tensor
from tilewright.verify.cases import RUNS, Case, parse, requested, shell_word
from tilewright.verify.data import KINDS
from tilewright.verify.images import ROW_MAJOR

TASK = Task(
    name="one",
    tensors={"x": Tensor(("M",), "float32"), "y": Output(("M",), "float32")},
    reference=lambda x: x,
    launch=lambda x: None,  # type: ignore[arg-type,return-value]
    flops=lambda M: M,
    space=Space(constants={"TILE": (16,)}, shipped={"TILE": 16}),
    workloads={"only": {"M": 64, "causal": True, "mode": "fast", "scale": 0.5, "window": None}},
)

cases = st.builds(
    lambda m, causal, mode, scale, data, layout, run, seed: Case(
        (("M", m), ("causal", causal), ("mode", mode), ("scale", scale), ("window", None)),
        data, layout, run, seed,
    ),
    st.integers(1, 10**6),
    st.booleans(),
    st.text() | st.sampled_from(["True", "1", "nan", "fast", "a,b;c=d", "'"]),
    st.floats(allow_nan=False),
    st.sampled_from(tuple(KINDS)),
    st.sampled_from((ROW_MAJOR, *LAYOUTS)),
    st.sampled_from(tuple(RUNS)),
    st.integers(0, 10**9),
)  # fmt: skip


@given(cases)
def test_the_text_of_a_case_reads_back(case: Case) -> None:
    read = parse(str(case), TASK)
    assert replace(read, why="") == case
    assert [type(value) for _, value in read.dims] == [type(value) for _, value in case.dims]


@given(st.text())
def test_any_text_is_read_or_refused_in_one_line(text: str) -> None:
    try:
        parse(text, TASK)
    except RequestError as error:
        assert "\n" not in str(error).replace(text, "").replace(text.strip(), "") or "\n" in text


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("M=3,Q=4", "unknown dimension 'Q'; known: M, causal"),
        ("M=3;data=lage", "unknown data 'lage'; did you mean 'large'? known: declared, small-integers"),
        ("M=3;layout=odd", "unknown layout 'odd'; known: row-major, transposed"),
        ("M=3;run=twice", "unknown run 'twice'; known: plain, relaunched"),
        ("M=3;seed=x", "the seed 'x' is not a whole number"),
        ("M=3;colour=red", "unknown part of a case 'colour'; known: data, layout, run, seed"),
        ("M", "'M' is not of the form name=value; for example: "),
        ("", "'' is not of the form name=value; for example: M=100,N=33;data=large;seed=17"),
        (" ;", "' ;' is not of the form name=value; for example: "),
    ],
)  # fmt: skip
def test_mistakes_name_the_choices(text: str, words: str) -> None:
    with pytest.raises(RequestError) as raised:
        parse(text, TASK)
    assert words in str(raised.value)


def test_what_is_left_out_is_as_the_first_workload_has_it() -> None:
    case = parse("data=large;seed=4", TASK)
    assert (case.sizes, case.data, case.seed) == (dict(TASK.workloads["only"]), "large", 4)
    assert parse("M=3", TASK).sizes == {**TASK.workloads["only"], "M": 3}
    assert isinstance(UnknownChoice("a", "b", ()), RequestError)


def test_a_command_survives_the_shell() -> None:
    import shlex

    for text in ("M=3,N=4;data=large", "a b", "it's", "$HOME"):
        assert shlex.split(shell_word(text)) == [text]


def test_a_case_is_described() -> None:
    values: dict[str, Any] = {"data": "large", "layout": "sliced", "run": "in place"}
    assert Case((("M", 3),), **values).described == "M=3 · large · sliced · in place"
    assert Case((("M", 3),)).described == "M=3 · declared"


def test_a_shape_that_the_task_does_not_serve_is_no_case() -> None:
    """The kernel may be wrong there, which is no mistake."""
    task = replace(TASK, serves=lambda M: M % 16 == 0)
    assert requested(task, None, "M=32", None, quick=False)[0] is not None
    with pytest.raises(RequestError, match=r"does not serve M=33, causal=True.*choose a shape that it serves"):
        requested(task, None, "M=33", None, quick=False)
