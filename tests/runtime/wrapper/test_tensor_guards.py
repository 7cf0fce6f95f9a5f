"""torch's private check of tensors: what it tells apart, and what happens where it is not to be had."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from tilewright.runtime.wrapper import tensor_guards

torch = pytest.importorskip("torch")


@pytest.fixture(autouse=True)
def _asked_anew() -> Iterator[None]:
    tensor_guards.available.cache_clear()
    yield
    tensor_guards.available.cache_clear()


def test_it_is_to_be_had_with_the_torch_that_the_tests_install() -> None:
    assert tensor_guards.available()
    check = tensor_guards.like((torch.zeros(2, 4), torch.ones(3)))
    assert check is not None
    assert check(torch.ones(2, 4), torch.zeros(3)) and not check(torch.zeros(3), torch.zeros(2, 4))


def test_it_holds_no_tensor() -> None:
    import gc
    import weakref

    x = torch.zeros(4)
    check, gone = tensor_guards.like((x,)), weakref.ref(x)
    del x
    gc.collect()
    assert gone() is None and check is not None and check(torch.ones(4))


def test_what_torch_cannot_guard_has_no_check() -> None:
    assert tensor_guards.like(()) is None
    assert tensor_guards.like((SimpleNamespace(shape=(3,), stride=lambda: (1,)),)) is None


@pytest.mark.parametrize("version", ["2.10.1", "2.14.0", "3.0.0+cu130", "nightly"])
def test_another_torch_is_not_trusted(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "__version__", version)
    assert not tensor_guards.available()
    assert tensor_guards.like((torch.zeros(4),)) is None


def test_versions_between_those_tried_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "__version__", "2.12.0+cu130")
    assert tensor_guards.available()


@pytest.mark.parametrize("check", [lambda *_: True, lambda *_: False, lambda *_: 1 / 0])
def test_a_check_that_does_not_tell_apart_is_not_used(check: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    guards = torch._C._dynamo.guards
    monkeypatch.setattr(guards, "TensorGuards", lambda *_, **__: SimpleNamespace(check=check))
    assert not tensor_guards.available()


def test_without_the_private_class_nothing_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch._C._dynamo.guards, "TensorGuards")
    assert not tensor_guards.available()
