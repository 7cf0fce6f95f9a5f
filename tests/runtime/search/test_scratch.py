"""What trials write to is kept and given back, to the byte (requirements A-41)."""

from __future__ import annotations

from typing import Any

import pytest
from tests.runtime.caller_kernels import torch

from tilewright.runtime.search.scratch import (
    DeviceLost,
    Kept,
    NoRoom,
    address_range,
    arrays_of,
    have_overlaps,
    keeping,
    overlapping,
    poison,
)


def numbers(*shape: int) -> Any:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


def held(kept: Kept) -> int:
    """Bytes that the copies take."""
    return sum(copy.numel() * copy.element_size() for _, copy in kept._copies)


def test_overlapping_views_are_kept_once() -> None:
    whole = numbers(64, 32)
    before = whole.clone()
    kept = Kept([whole[:40], whole[20:], whole[10:30], whole])
    assert held(kept) == whole.numel() * 4
    whole.fill_(0)
    kept.restore()
    assert torch.equal(whole, before)


def test_nan_and_its_bits_come_back() -> None:
    bits = torch.arange(0x7F80_0000, 0x7F80_0000 + 64, dtype=torch.int32)
    array = bits.view(torch.float32)
    kept = Kept([array])
    array.fill_(1.0)
    kept.restore()
    assert torch.equal(array.view(torch.int32), torch.arange(0x7F80_0000, 0x7F80_0000 + 64, dtype=torch.int32))


def test_a_sparse_view_is_kept_without_what_lies_between() -> None:
    """One column of a large array: neither copied whole nor given back over what others write meanwhile."""
    whole = numbers(64, 32)
    before = whole.clone()
    kept = Kept([whole[:, 3]])
    assert held(kept) == 64 * 4
    whole.fill_(0)
    kept.restore()
    assert torch.equal(whole[:, 3], before[:, 3]) and bool((whole[:, 4] == 0).all())


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt, SystemExit])
def test_whatever_happens_arrays_are_given_back(error: type[BaseException]) -> None:
    array = numbers(64)
    before = array.clone()

    def fails() -> None:
        with keeping([array]):
            array.fill_(0)
            raise error

    with pytest.raises(error):
        fails()
    assert torch.equal(array, before)


def test_ctrl_c_while_they_are_given_back_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    array = numbers(64)
    before, calls, real = array.clone(), [], Kept.restore

    def interrupted(self: Kept) -> None:
        calls.append(1)
        if len(calls) == 1:
            raise KeyboardInterrupt
        real(self)

    monkeypatch.setattr(Kept, "restore", interrupted)
    with pytest.raises(KeyboardInterrupt), keeping([array]):
        array.fill_(0)
    assert torch.equal(array, before)


def test_after_a_lost_device_nothing_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its error would hide the one that names the configuration."""
    monkeypatch.setattr(Kept, "restore", lambda self: pytest.fail("written to a broken context"))
    with pytest.raises(DeviceLost, match="gone"), keeping([numbers(4)]):
        raise DeviceLost("gone")


def test_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: Any, *_: Any, **__: Any) -> Any:
        raise torch.OutOfMemoryError

    array = torch.zeros(1 << 20, dtype=torch.float32)
    monkeypatch.setattr(torch.Tensor, "clone", full)
    with pytest.raises(NoRoom, match="0.00391 GiB"):
        Kept([array])


@pytest.mark.parametrize(
    "dtype", ["float32", "bfloat16", "float16", "float64", "float8_e4m3fn", "float8_e5m2", "int32", "uint8", "int64"]
)
def test_poison_shows(dtype: str) -> None:
    """trust.md 1: NaN, or a number that no kernel means; views only where they are."""
    whole = torch.ones(8, 4).to(getattr(torch, dtype))
    poison(whole[:, 1])
    wide = whole.to(torch.float64)
    expected = (
        wide[:, 1].isnan() if whole.dtype.is_floating_point else (wide[:, 1] == (255 if dtype == "uint8" else -1))
    )
    assert bool(expected.all()) and bool((wide[:, 2] == 1).all())


def test_names_and_overlaps() -> None:
    whole = numbers(64, 32)
    arrays = arrays_of((whole[:32], 3, [whole[16:48], numbers(4)], "s"), ("a", "n", "list", "s"))
    assert list(arrays) == ["a", "list[0]", "list[1]"]
    assert overlapping(arrays, ["list[0]"]) == {"a", "list[0]"}
    assert have_overlaps(arrays) and not have_overlaps({"a": whole[:32], "b": whole[32:]})
    low, high = address_range(whole[:, 3])
    assert high - low == (63 * 32 + 1) * 4
