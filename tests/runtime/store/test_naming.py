"""Kernels of one name are told apart by their modules, and called by no more of them than that takes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from tests.runtime.made_winners import winner

from tilewright.errors import RequestError, UnknownChoice
from tilewright.runtime.store import evidence
from tilewright.runtime.store.evidence import Kernels
from tilewright.runtime.store.winners import Winner, Winners


def of(module: str, kernel: str = "scale", qualname: str = "scale", file: str = "", **changes: Any) -> Winner:
    launch = {"module": module, "qualname": qualname, "file": file}
    key = f"{module} {kernel} {qualname} {file}"
    return winner(**({"key": key, "kernel": kernel, "launches": {"winner": launch}} | changes))


def imported(kernel: str = "scale", module: str = "") -> Winner:
    return winner(f"imported {module}", kernel=kernel, origin="import", machine={"module": module})


def named(winners: Sequence[Winner]) -> Kernels:
    """The names as the store has them, in the order of ``winners``."""
    store = Winners(strict=True)
    store.put_all(winners)
    places = {place[0]: place for place in store.places()}
    assert [kernel for _, kernel, _ in store.places()] == [one.kernel for one in store.each()]
    return Kernels(lambda: [places[one.key] for one in winners])


def test_where_a_kernel_stands() -> None:
    assert evidence.module(of("a.b")) == "a.b"
    assert evidence.module(of("a", qualname="forward.<locals>.kernel")) == "a.forward"
    assert evidence.module(of("__main__", file="/x/train.py")) == "train"
    assert evidence.module(of("__main__", file="/tmp/ipykernel_1/2938.py")) == "__main__"
    assert evidence.module(imported(module="a.b")) == "a.b"
    assert evidence.module(winner()) == "" == evidence.module(winner(launches={"winner": 5}))


@pytest.mark.parametrize(
    ("winners", "called"),
    [
        ((of("a.b"), of("a.b", kernel="other", qualname="other")), ["scale", "other"]),
        ((of("lib_a"), of("lib_b")), ["lib_a.scale", "lib_b.scale"]),
        ((of("x.lib"), of("y.lib")), ["x.lib.scale", "y.lib.scale"]),
        ((of("lib"), of("x.lib")), ["lib.scale", "x.lib.scale"]),
        ((of("a", qualname="f.<locals>.scale"), of("a", qualname="g.<locals>.scale")), ["f.scale", "g.scale"]),
        ((of("a", kernel="my.scale"), of("a")), ["my.scale", "a.scale"]),
        ((of("a"), imported()), ["scale"]),
        ((of("a"), imported(module="a")), ["scale"]),
        ((of("a"), of("b"), imported()), ["a.scale", "b.scale", "unknown.scale"]),
        ((imported(),), ["scale"]),
    ],
)
def test_what_they_are_called(winners: tuple[Winner, ...], called: list[str]) -> None:
    kernels = named(winners)
    assert list(kernels) == called == list(dict.fromkeys(map(kernels.called, winners)))
    for name in called:
        found = list(kernels.of(name, winners))
        assert found and {kernels.called(one) for one in found} == {name}
    assert tuple(kernels.of(None, winners)) == winners and len(kernels) == len(winners)


def test_what_may_be_given() -> None:
    first, second, third = of("x.lib_a"), of("x.lib_b"), of("x.lib_b", kernel="other", qualname="other")
    every = (first, second, third)
    kernels = named(every)
    for name in ("lib_a.scale", "x.lib_a.scale"):
        assert list(kernels.of(name, every)) == [first]
    assert list(kernels.of("x.lib_b.other", every)) == list(kernels.of("other", every)) == [third]
    with pytest.raises(RequestError, match="^'scale' is the name of 2 kernels; give one of: lib_a.scale, lib_b.scale$"):
        kernels.of("scale", every)
    with pytest.raises(UnknownChoice, match="unknown kernel 'cale'; known: lib_a.scale, lib_b.scale, other"):
        kernels.of("cale", every)
