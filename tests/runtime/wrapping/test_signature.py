"""The generated look-up: what is asked of each argument, and nothing else."""

from __future__ import annotations

import traceback
from typing import Any

import pytest

from tilewright.runtime.modes import Mode
from tilewright.runtime.wrapping.signature import Kind, Layout, hot_function, key_function, kind_of

torch = pytest.importorskip("torch")


def key(*values: Any, outputs: tuple[str, ...] = (), devices: int = 1, unkeyed: tuple[str, ...] = ()) -> Any:
    names = [f"a{n}" for n in range(len(values))]
    kinds = tuple(kind_of(value, name not in unkeyed) for name, value in zip(names, values, strict=True))
    return key_function(names, kinds, outputs, devices)(*values)


def test_kinds() -> None:
    x = torch.zeros(4)
    kinds = [kind_of(one) for one in (x, [x, x], (x,), 1, True, None, "row", torch.float32, 1.0, [1, 2], {})]
    assert kinds == [Kind.ARRAY, Kind.ARRAYS, Kind.ARRAYS, *[Kind.VALUE] * 5, *[Kind.TYPE] * 3]
    assert kind_of(x, keyed=False) is kind_of(3, keyed=False) is Kind.TYPE


def test_calls_that_are_alike_have_one_key() -> None:
    a, b = torch.zeros(8, 16), torch.ones(8, 16)
    assert key(a, 1.0, 3) == key(b, 2.0, 3)
    assert hash(key(a, 1.0, 3)) == hash(key(b, 2.0, 3))


def test_each_part_changes_the_key() -> None:
    """X-21."""
    x = torch.zeros(8, 16)
    calls = [
        (x, 1),
        (torch.zeros(4, 16), 1),
        (torch.zeros(8, 16, dtype=torch.float16), 1),
        (torch.zeros(16, 8).T, 1),
        (torch.zeros(8, 32)[:, :16], 1),
        (torch.zeros(129)[1:].view(8, 16), 1),
        (torch.zeros(130)[2:].view(8, 16), 1),
        (x, 2),
        (x, None),
        ([x, x], 1),
        ([x, torch.zeros(4)], 1),
    ]
    assert len({key(*call) for call in calls}) == len(calls)


def test_in_place_is_another_call() -> None:
    x, y = torch.zeros(8), torch.zeros(8)
    assert key(x, y, outputs=("a1",)) != key(x, x, outputs=("a1",))
    assert key(x, y) == key(x, x), "where it is not declared as an output"


def test_the_device_counts_where_there_are_several() -> None:
    x = torch.zeros(8)
    assert key(x, devices=2) != key(x, devices=1)
    assert key(x, devices=2)[-1] == -1, "the CPU"


def test_unkeyed_arguments_count_by_type() -> None:
    assert key(3, unkeyed=("a0",)) == key(4, unkeyed=("a0",)) != key(4)


KINDS = (Kind.ARRAY, Kind.TYPE)


def made(launch: Any) -> tuple[Any, dict[str, dict[Any, Any]], list[Any]]:
    missed: list[Any] = []
    tables: dict[str, dict[Any, Any]] = {mode.value: {} for mode in Mode}
    layout = Layout(("x", "eps"), ("x", "TILE", "eps"))
    hot = hot_function(
        "op", layout, KINDS, (), 1, launch, tables, Mode.NOW, lambda *given: missed.append(given)
    )
    return hot, tables, missed


def key_of(x: Any) -> Any:
    return key_function(["x", "eps"], KINDS, (), 1)(x, 1.0)


def test_a_known_key_launches_and_an_unknown_one_does_not() -> None:
    launched: list[Any] = []
    hot, tables, missed = made(lambda *given: launched.append(given))
    x = torch.zeros(8)
    hot("s", x, 1.0)
    assert missed == [(KINDS, ("s", x, 1.0))]
    tables["now"][key_of(x)] = ((4,), "kernel", 16)
    hot("s", x, 2.0)
    hot("s", eps=3.0, x=x)
    assert launched == [("s", (4,), "kernel", (x, 16, 2.0)), ("s", (4,), "kernel", (x, 16, 3.0))]
    hot("s", None, 2.0)
    hot("s", [x], 2.0)
    assert len(missed) == 3


def test_a_launch_that_needs_more_is_a_function() -> None:
    hot, tables, missed = made(None)
    told: list[Any] = []
    x = torch.zeros(8)
    tables["now"][key_of(x)] = (lambda *given: told.append(given), None, None)
    hot("s", x, 5.0)
    assert told == [("s", x, 5.0)] and not missed


def test_the_mode_is_read_before_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    """A-16."""
    for name in ("TILEWRIGHT_TUNING", "DISABLE_AUTOTUNE", "TILEGYM_DISABLE_AUTOTUNE"):
        monkeypatch.delenv(name, raising=False)
    told: list[str] = []
    hot, tables, _ = made(lambda *given: told.append(given[2]))
    x = torch.zeros(8)
    for mode in Mode:
        tables[mode.value][key_of(x)] = ((4,), mode.value, 16)
    for name in ("stored", "off", "background", "now"):
        monkeypatch.setenv("TILEWRIGHT_TUNING", name)
        hot("s", x, 1.0)
    monkeypatch.setenv("DISABLE_AUTOTUNE", "1")
    hot("s", x, 1.0)
    assert told == ["stored", "off", "background", "now", "off"]


def test_what_a_launch_raises_comes_through_with_its_line() -> None:
    def fails(*_: Any) -> None:
        raise KeyError("inside the launch")

    hot, tables, missed = made(fails)
    x = torch.zeros(8)
    tables["now"][key_of(x)] = ((1,), "kernel", 16)
    with pytest.raises(KeyError, match="inside the launch") as raised:
        hot("s", x, 1.0)
    assert not missed
    shown = "".join(traceback.format_tb(raised.tb))
    assert "_ct_launch(stream, _grid, _kernel, (x, _c_TILE, eps, ))" in shown
