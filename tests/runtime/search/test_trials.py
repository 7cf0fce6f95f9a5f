"""From a space and its functions to trials; mistakes of the caller (requirements A-45, A-47, Part 7 check 5)."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
from tests.runtime.caller_kernels import scale, torch

from tilewright.errors import RequestError
from tilewright.runtime.search.cutile_trials import trials
from tilewright.runtime.search.trials import FailedTrial, Trial, array_spec, label


class Named(NamedTuple):
    TILE: int


@dataclass(frozen=True)
class Record:
    TILE: int
    occupancy: int | None = None


def made(space: Any, **given: Any) -> list[Any]:
    functions = {"grid_fn": lambda c: (4,), "kernel": scale, "args_fn": lambda c: (), "hints_fn": None}
    return trials(space, **{**functions, **given})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("space", "fix"),
    [
        ({64: "a", 128: "b"}, r"list\(space.values\(\)\)"),
        ((n for n in (64, 128)), r"pass list\(space\)"),
        (iter([64]), r"pass list\(space\)"),
        ([], "at least one configuration"),
        ("64", "pass a list"),
        (64, "pass a list"),
    ],
)
def test_a_space_that_is_no_list_is_a_mistake_with_its_fix(space: Any, fix: str) -> None:
    """A-45: a generator is empty the second time, a dict yields its keys."""
    with pytest.raises(RequestError, match=fix):
        made(space)


@pytest.mark.parametrize(
    ("config", "shown"),
    [
        ({"TILE": 64, "occupancy": None}, "TILE=64 occupancy=auto"),
        (Named(64), "TILE=64"),
        (Record(64, 2), "TILE=64 occupancy=2"),
        (SimpleNamespace(TILE=64), "TILE=64"),
        ((64, 2), "(64, 2)"),
        (64, "64"),
    ],
)
def test_how_a_configuration_is_shown(config: Any, shown: str) -> None:
    assert label(config) == shown


def test_a_trial_is_what_would_be_launched() -> None:
    space = [Record(64, 2), Record(128, 2)]
    first, second = made(
        space, grid_fn=lambda c: 1024 // c.TILE, args_fn=lambda c: [c.TILE], hints_fn=lambda c: {"occupancy": 2}
    )
    assert isinstance(first, Trial) and first.config is space[0]
    assert (first.grid, second.grid) == ((16,), (8,))
    assert (first.arguments(), second.arguments()) == ((64,), (128,))
    assert first.kernel is second.kernel is not scale
    assert first.hints == {"occupancy": 2}


def test_without_hints_the_kernel_itself_is_launched() -> None:
    """A-47: its JIT cache is kept."""
    assert made([64])[0].kernel is scale
    assert made([64], kernel=lambda config: scale)[0].kernel is scale


@pytest.mark.parametrize(
    ("given", "error", "says"),
    [
        ({"grid_fn": lambda c: 1 // c}, ZeroDivisionError, "division"),
        ({"grid_fn": lambda c: (c, 1)}, ValueError, "not 1 to 3 positive"),
        ({"grid_fn": lambda c: (1, 1, 1, 1)}, ValueError, "not 1 to 3 positive"),
        ({"grid_fn": lambda c: (1.5,)}, TypeError, "integer"),
        ({"hints_fn": lambda c: {"ocupancy": 2}}, TypeError, "ocupancy"),
        ({"kernel": lambda c: 3}, TypeError, "the kernel is a int"),
    ],
)
def test_what_a_function_raises_is_its_configurations_failure(
    given: dict[str, Any], error: type[Exception], says: str
) -> None:
    (failed,) = made([0], **given)
    assert isinstance(failed, FailedTrial)
    assert failed.error is error and says in failed.reason and failed.stage == "launch" and failed.label == "0"


def test_a_live_tensor_as_a_specification() -> None:
    wide = torch.zeros(64, 32, dtype=torch.bfloat16)
    whole, view = array_spec(wide, "x"), array_spec(wide[1:, 3:].T)
    assert (whole.shape, whole.dtype, whole.strides, whole.name) == ((64, 32), "bfloat16", (32, 1), "x")
    assert (view.shape, view.strides) == ((29, 63), (1, 32))
    assert (view.address_offset - whole.address_offset) % 256 == (32 + 3) * 2


def test_an_array_of_another_library() -> None:
    interface = {"typestr": "<f4", "shape": (8, 4), "strides": (32, 4), "data": (4096 + 48, False), "version": 3}
    spec = array_spec(SimpleNamespace(__cuda_array_interface__=interface))
    assert (spec.dtype, spec.shape, spec.strides, spec.address_offset) == ("float32", (8, 4), (8, 1), 48)
    spec = array_spec(SimpleNamespace(__cuda_array_interface__={**interface, "strides": None}))
    assert spec.strides == (4, 1)


def test_what_is_no_array_or_has_no_known_dtype() -> None:
    with pytest.raises(RequestError, match="int is no array"):
        array_spec(3)
    with pytest.raises(RequestError, match="complex64 are not known; known: bool"):
        array_spec(torch.zeros(2, dtype=torch.complex64))
