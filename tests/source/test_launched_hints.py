"""The hints that a caller launches with are found where that is certain, and only there (TileGym's W1)."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType, SimpleNamespace
from typing import Any

import pytest

from tilewright.source.launched_hints import launched_hints, searches_of


class Kernel:
    def replace_hints(self, **hints: int) -> Kernel:
        return self


KERNEL, OTHER = Kernel(), Kernel()
MODULE = SimpleNamespace(kernel=KERNEL)


def exhaustive_search(space: Any, stream: Any, grid_fn: Any, kernel: Any, args_fn: Any = None) -> Any:
    """Stands where the patched search stands: it is called by the functions below."""
    return launched_hints(sys._getframe(1), kernel)


def cached_replace_hints(kernel: Kernel, **hints: Any) -> Kernel:
    return kernel


def launch(*anything: Any) -> None:
    pass


def with_a_method() -> Any:
    found = exhaustive_search([1, 2], None, lambda c: (1,), KERNEL, lambda c: ())
    launch(KERNEL.replace_hints(occupancy=2, num_ctas=1))
    return found


def with_the_cached_function() -> Any:
    found = exhaustive_search([1], None, None, KERNEL)
    launch(cached_replace_hints(KERNEL, occupancy=4))
    return found


def with_a_dotted_kernel() -> Any:
    found = exhaustive_search([1], None, None, MODULE.kernel)
    launch(MODULE.kernel.replace_hints(occupancy=3))
    return found


def with_a_keyword() -> Any:
    found = exhaustive_search([1], stream=None, grid_fn=None, kernel=KERNEL)
    launch(KERNEL.replace_hints(occupancy=5))
    return found


def with_another_branch_before() -> Any:
    if launch():
        return launch(cached_replace_hints(KERNEL, occupancy=8))
    found = exhaustive_search([1], None, None, KERNEL)
    launch(KERNEL.replace_hints(occupancy=2))
    return found


def logged() -> Any:
    def watched(*given: Any) -> Any:
        return search(*given)

    search = exhaustive_search
    return caller_of(watched)


def caller_of(exhaustive_search: Callable[..., Any]) -> Any:
    found = tuned(SimpleNamespace(exhaustive_search=exhaustive_search))
    return found


def tuned(module: Any) -> Any:
    found = module.exhaustive_search([1], None, None, KERNEL)
    launch(KERNEL.replace_hints(occupancy=6))
    return found


@pytest.mark.parametrize(
    ("caller", "hints"),
    [
        (with_a_method, {"occupancy": 2, "num_ctas": 1}),
        (with_the_cached_function, {"occupancy": 4}),
        (with_a_dotted_kernel, {"occupancy": 3}),
        (with_a_keyword, {"occupancy": 5}),
        (with_another_branch_before, {"occupancy": 2}),
        (logged, {"occupancy": 6}),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_found_where_they_are_certain(caller: Callable[[], Any], hints: dict[str, int]) -> None:
    assert caller() == hints


def the_best_configuration_decides() -> Any:
    found = exhaustive_search([1], None, None, KERNEL)
    launch(KERNEL.replace_hints(occupancy=found.occupancy if found else 1))
    return found


def two_different_ones() -> Any:
    found = exhaustive_search([1], None, None, KERNEL)
    launch(KERNEL.replace_hints(occupancy=1) if found else KERNEL.replace_hints(occupancy=2))
    return found


def a_dictionary_of_them() -> Any:
    found = exhaustive_search([1], None, None, KERNEL)
    launch(KERNEL.replace_hints(**{"occupancy": 2}))
    return found


def also_launched_without() -> Any:
    found = exhaustive_search([1], None, None, KERNEL)
    launch(KERNEL.replace_hints(occupancy=2))
    launch(KERNEL)
    return found


def another_kernel() -> Any:
    found = exhaustive_search([1], None, None, KERNEL)
    launch(OTHER.replace_hints(occupancy=2))
    return found


def only_before() -> Any:
    launch(KERNEL.replace_hints(occupancy=2))
    return exhaustive_search([1], None, None, KERNEL)


def the_name_changes() -> Any:
    kernel = KERNEL
    found = exhaustive_search([1], None, None, kernel)
    kernel = OTHER
    launch(kernel.replace_hints(occupancy=2))
    return found


def a_function_of_the_configuration() -> Any:
    found = exhaustive_search([1], None, None, lambda config: KERNEL)
    launch(KERNEL.replace_hints(occupancy=2))
    return found


@pytest.mark.parametrize(
    "caller",
    [
        the_best_configuration_decides,
        two_different_ones,
        a_dictionary_of_them,
        also_launched_without,
        another_kernel,
        only_before,
        the_name_changes,
        a_function_of_the_configuration,
    ],
    ids=lambda value: value.__name__,
)
def test_left_alone_where_they_are_not(caller: Callable[[], Any]) -> None:
    assert caller() == {}


def test_no_source_and_no_caller() -> None:
    """Code that was typed in has no source to read."""
    space: dict[str, Any] = {"exhaustive_search": exhaustive_search, "KERNEL": KERNEL, "launch": launch}
    exec(
        "def tune():\n"
        "    found = exhaustive_search([1], None, None, KERNEL)\n"
        "    launch(KERNEL.replace_hints(occupancy=2))\n"
        "    return found\n",
        space,
    )
    assert space["tune"]() == {}
    assert launched_hints(None, KERNEL) == {}


TILEGYM = importlib.util.find_spec("tilegym")


@pytest.mark.skipif(TILEGYM is None, reason="needs TileGym (pip install --no-deps tilegym==1.5.1)")
def test_tilegyms_attention() -> None:
    """W1: searched without hints_fn, launched with an occupancy of 2."""
    assert TILEGYM is not None and TILEGYM.origin is not None
    file = Path(TILEGYM.origin).parent / "ops" / "cutile" / "attention.py"
    module = compile(file.read_text(), str(file), "exec")
    found = {code.co_name: searches_of(code) for code in _functions(module)}
    assert [search.hints for search in found["_cutile_autotune_fmha"]] == [(("occupancy", 2),)]
    assert [name for name, searches in found.items() if searches] == ["_cutile_autotune_fmha"]


def _functions(code: CodeType) -> Iterator[CodeType]:
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield constant
            yield from _functions(constant)
