"""The generated look-up: what is asked of each argument, and nothing else."""

from __future__ import annotations

import gc
import random
import sys
import traceback
from typing import Any

import pytest

from tilewright.runtime.modes import Mode
from tilewright.runtime.wrapper import tensor_guards
from tilewright.runtime.wrapper.known import MOST_CHECKS, MOST_KEYS, QUIET, KnownCalls
from tilewright.runtime.wrapper.missed_call import in_place
from tilewright.runtime.wrapper.signature import KeyKind, Layout, Pattern, hot_function, key_function, kind_of

torch = pytest.importorskip("torch")


def key(*values: Any, outputs: tuple[str, ...] = (), devices: int = 1, unkeyed: tuple[str, ...] = ()) -> Any:
    names = [f"a{n}" for n in range(len(values))]
    kinds = tuple(kind_of(value, name not in unkeyed) for name, value in zip(names, values, strict=True))
    return key_function(Pattern(tuple(names), kinds, outputs, devices))(*values)


def test_kinds() -> None:
    x = torch.zeros(4)
    kinds = [kind_of(one) for one in (x, [x, x], (x,), 1, True, None, "row", torch.float32, 1.0, [1, 2], {})]
    assert kinds == [KeyKind.ARRAY, KeyKind.ARRAYS, KeyKind.ARRAYS, *[KeyKind.VALUE] * 5, *[KeyKind.TYPE] * 3]
    assert kind_of(x, keyed=False) is kind_of(3, keyed=False) is KeyKind.TYPE


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


NAMES, KINDS = ("x", "eps"), (KeyKind.ARRAY, KeyKind.TYPE)
PATTERN = Pattern(NAMES, KINDS, (), 1)


@pytest.fixture(params=[True, False], ids=["guessing", "looking up"])
def guessing(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """With torch's check of tensors, and without."""
    assert tensor_guards.available()
    if not request.param:
        monkeypatch.setattr(tensor_guards, "available", lambda: False)
    return bool(request.param)


def made(launch: Any, pattern: Pattern = PATTERN) -> tuple[Any, dict[str, KnownCalls], list[Any]]:
    missed: list[Any] = []
    constants = ("TILE",)
    places = {mode.value: KnownCalls(len(pattern.items), len(constants)) for mode in Mode}
    layout = Layout(pattern.names, (pattern.names[0], *constants, *pattern.names[1:]))
    hot = hot_function("op", layout, pattern, launch, places, Mode.NOW, lambda *given: missed.append(given))
    return hot, places, missed


def key_of(x: Any) -> Any:
    return key_function(PATTERN)(x, 1.0)


@pytest.mark.usefixtures("guessing")
def test_a_known_key_launches_and_an_unknown_one_does_not() -> None:
    launched: list[Any] = []
    hot, places, missed = made(lambda *given: launched.append(given))
    x = torch.zeros(8)
    hot("s", x, 1.0)
    assert missed == [(KINDS, ("s", x, 1.0))]
    places["now"].keep(key_of(x), None, ((4,), "kernel", 16))
    hot("s", x, 2.0)
    hot("s", eps=3.0, x=x)
    assert launched == [("s", (4,), "kernel", (x, 16, 2.0)), ("s", (4,), "kernel", (x, 16, 3.0))]
    hot("s", None, 2.0)
    hot("s", [x], 2.0)
    assert len(missed) == 3


@pytest.mark.usefixtures("guessing")
def test_a_launch_that_needs_more_is_a_function() -> None:
    hot, places, missed = made(None)
    told: list[Any] = []
    x = torch.zeros(8)
    places["now"].keep(key_of(x), None, (lambda *given: told.append(given), None, None))
    for _ in range(3):
        hot("s", x, 5.0)
    assert told == [("s", x, 5.0)] * 3 and not missed


@pytest.mark.usefixtures("guessing")
def test_the_mode_is_read_before_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    """A-16."""
    for name in ("TILEWRIGHT_TUNING", "DISABLE_AUTOTUNE", "TILEGYM_DISABLE_AUTOTUNE"):
        monkeypatch.delenv(name, raising=False)
    told: list[str] = []
    hot, places, _ = made(lambda *given: told.append(given[2]))
    x = torch.zeros(8)
    for mode in Mode:
        places[mode.value].keep(key_of(x), None, ((4,), mode.value, 16))
    for name in ("stored", "off", "background", "now") * 2:
        monkeypatch.setenv("TILEWRIGHT_TUNING", name)
        hot("s", x, 1.0)
    monkeypatch.setenv("DISABLE_AUTOTUNE", "1")
    hot("s", x, 1.0)
    monkeypatch.delenv("DISABLE_AUTOTUNE")
    monkeypatch.delenv("TILEWRIGHT_TUNING")
    hot("s", x, 1.0)
    assert told == [*["stored", "off", "background", "now"] * 2, "off", "now"]


@pytest.mark.usefixtures("guessing")
def test_what_a_launch_raises_comes_through_with_its_line() -> None:
    def fails(*_: Any) -> None:
        raise KeyError("inside the launch")

    hot, places, missed = made(fails)
    x = torch.zeros(8)
    places["now"].keep(key_of(x), None, ((1,), "kernel", 16))
    with pytest.raises(KeyError, match="inside the launch") as raised:
        hot("s", x, 1.0)
    assert not missed
    shown = "".join(traceback.format_tb(raised.tb))
    assert "_ct_launch(stream, _grid, _kernel, (x, _c_TILE, eps, ))" in shown


# A call that is guessed -----------------------------------------------------------------------------

WHOLE = Pattern(
    ("x", "y", "flag", "eps", "left", "more"),
    (KeyKind.ARRAY, KeyKind.ARRAY, KeyKind.VALUE, KeyKind.TYPE, KeyKind.TYPE, KeyKind.ARRAYS),
    ("y",),
    1,
)


def whole() -> dict[str, Any]:
    return {
        "x": torch.zeros(8, 16), "y": torch.zeros(8, 16), "flag": 1000, "eps": 1.0, "left": None,
        "more": [torch.zeros(4)],
    }  # fmt: skip


def guessed(launched: list[Any]) -> tuple[Any, KnownCalls, list[Any]]:
    """A function that expects a call such as `whole`."""
    hot, places, missed = made(lambda *given: launched.append(given[2]), WHOLE)
    places["now"].keep(key_function(WHOLE)(**whole()), None, ((4,), "kernel", 16))
    for _ in range(2):
        hot("s", **whole())
    return hot, places["now"], missed


class Untouched(dict[Any, Any]):
    def __getitem__(self, key: Any) -> Any:
        raise AssertionError("a call that was expected is looked up")


def test_a_call_like_the_last_needs_no_key() -> None:
    launched: list[Any] = []
    hot, place, missed = guessed(launched)
    place.calls = Untouched()
    hot("s", **whole() | {"flag": int("1000"), "eps": 2.0})
    assert launched == ["kernel"] * 3 and not missed


CHANGES: dict[str, Any] = {
    "shape": {"x": lambda: torch.zeros(4, 16)},
    "dtype": {"x": lambda: torch.zeros(8, 16, dtype=torch.int32)},
    "dtype of the same size": {"y": lambda: torch.zeros(8, 16, dtype=torch.int32)},
    "strides": {"x": lambda: torch.zeros(16, 8).T},
    "wider rows": {"x": lambda: torch.zeros(8, 32)[:, :16]},
    "alignment": {"x": lambda: torch.zeros(129)[1:].view(8, 16)},
    "alignment of the output": {"y": lambda: torch.zeros(129)[1:].view(8, 16)},
    "flag": {"flag": lambda: 1001},
    "a flag of another type": {"flag": lambda: "1000"},
    "no flag": {"flag": lambda: None},
    "an array for a flag": {"flag": lambda: torch.zeros(3)},
    "a type": {"eps": lambda: 1},
    "the type of what is unkeyed": {"left": lambda: torch.zeros(1)},
    "a list": {"more": lambda: [torch.zeros(5)]},
    "a longer list": {"more": lambda: [torch.zeros(4)] * 2},
    "no array": {"x": lambda: None},
    "a list for an array": {"y": lambda: [torch.zeros(8, 16)]},
}


@pytest.mark.parametrize("change", CHANGES)
def test_each_part_is_seen_where_another_call_is_expected(change: str) -> None:
    """X-21."""
    launched: list[Any] = []
    hot, _, missed = guessed(launched)
    for _ in range(2):
        hot("s", **whole() | {name: make() for name, make in CHANGES[change].items()})
    assert len(missed) == 2 and len(launched) == 2
    hot("s", **whole())
    assert len(launched) == 3, "and the other is known still"


def test_in_place_is_where_an_output_starts_as_in_the_store() -> None:
    memory = torch.zeros(96)
    x, y, overlapping = memory[:64], memory[64:], memory[32:96]
    assert in_place({"x": x, "y": y, "n": 1}, ("y",)) == [] == in_place({"x": x, "y": overlapping}, ("y",))
    assert in_place({"x": x, "y": x[:32], "n": 1}, ("y",)) == ["y = x"]
    assert in_place({"x": torch.zeros(0), "y": torch.zeros(0)}, ("y",)) == []


def test_a_call_in_place_is_seen_where_another_is_expected() -> None:
    launched: list[Any] = []
    hot, _, missed = guessed(launched)
    given = whole()
    hot("s", **given | {"y": given["x"]})
    assert len(missed) == 1


def test_a_flag_that_only_equals_another_is_another() -> None:
    pattern = Pattern(("x", "flag"), (KeyKind.ARRAY, KeyKind.VALUE), (), 1)
    launched: list[Any] = []
    hot, places, missed = made(lambda *given: launched.append(given[3][-1]), pattern)
    x = torch.zeros(8)
    places["now"].keep(key_function(pattern)(x, 1), None, ((1,), "kernel", 16))
    for flag in (1, 1, True, 1, 2):
        hot("s", x, flag)
    assert launched == [1, 1, 1] and len(missed) == 2


@pytest.mark.usefixtures("guessing")
def test_calls_that_take_turns_are_each_launched_with_their_own() -> None:
    launched: list[Any] = []
    hot, places, missed = made(lambda *given: launched.append(given[2]))
    calls = [torch.zeros(8), torch.zeros(8, 2), torch.zeros(129)[1:]]
    for place, x in enumerate(calls):
        places["now"].keep(key_of(x), None, ((1,), place, 16))
    turns = [0, 1, 2, 0, 1, 2, 0, 0, 1, 0, 2, 2, 2, 1, 0, 1, 0]
    for turn in turns:
        hot("s", calls[turn], 1.0)
    assert launched == turns and not missed


def test_turns_are_learnt() -> None:
    launched: list[Any] = []
    hot, places, _ = made(lambda *given: launched.append(given[2]))
    calls = [torch.zeros(8), torch.zeros(8, 2), torch.zeros(3)]
    for place, x in enumerate(calls):
        places["now"].keep(key_of(x), None, ((1,), place, 16))
    for x in calls * 2:
        hot("s", x, 1.0)
    places["now"].calls = Untouched()
    for x in calls * 2:
        hot("s", x, 1.0)
    assert launched == [0, 1, 2] * 4


@pytest.mark.usefixtures("guessing")
def test_a_switch_is_seen_by_the_next_call() -> None:
    """The mode `background`: the shipped configuration until the winner is verified."""
    launched: list[Any] = []
    hot, places, _ = made(lambda *given: launched.append(given[2]))
    x = torch.zeros(8)
    for kernel in ("shipped", "winner"):
        places["now"].keep(key_of(x), kernel, ((1,), kernel, 16))
        for _ in range(3):
            hot("s", x, 1.0)
    assert launched == ["shipped"] * 3 + ["winner"] * 3
    assert places["now"].calls[key_of(x)].choice == "winner"


@pytest.mark.usefixtures("guessing")
def test_the_key_that_was_not_used_longest_is_forgotten() -> None:
    """A key is used again by a look-up of a key that has become older. A hit of a recent key changes nothing."""
    launched: list[Any] = []
    hot, places, missed = made(lambda *given: launched.append(given[2]))
    known, used, unused = places["now"], torch.zeros(8), torch.zeros(9)
    for x in (used, unused):
        known.keep(key_of(x), None, ((1,), "kernel", 16))
        hot("s", x, 1.0)
    for number in range(2 * MOST_KEYS):
        known.keep(("other", number), None, ((1,), "other", 16))
        if number % (MOST_KEYS // 4) == 0:
            hot("s", used, 1.0)
    assert not missed and len(known.calls) + len(known.calls.older) <= MOST_KEYS
    assert known.get(key_of(used)) and known.get(("other", 2 * MOST_KEYS - 1))
    assert known.get(key_of(unused)) is None is known.get(("other", 0))
    hot("s", unused, 1.0)
    assert len(missed) == 1, "nor is it launched by a guess"


def test_calls_in_no_order_are_not_guessed() -> None:
    """A wrong guess costs a check and a call: after a few, the look-up is direct. Calls in turns are guessed again."""
    launched: list[Any] = []
    hot, places, missed = made(lambda *given: launched.append(given[2]))
    calls = [torch.zeros(1 + number) for number in range(50)]
    for place, x in enumerate(calls):
        places["now"].keep(key_of(x), None, ((1,), place, 16))
    order = random.Random(1).choices(range(len(calls)), k=4000)
    frames = [frames_of(hot, "s", calls[place], 1.0) for place in order]
    assert launched == order and not missed
    guessed = [called for called in frames[1000:] if "looked_up" in called]
    assert len(guessed) < 0.05 * 3000, "8 of 264, and those with a right guess between"
    assert all(called == ["op", "<lambda>"] for called in frames[1000:] if "looked_up" not in called)
    for _ in range(QUIET + 4):
        hot("s", calls[0], 1.0)
    places["now"].calls = Untouched()
    hot("s", calls[0], 1.0)


def frames_of(function: Any, *given: Any) -> list[str]:
    """The names of the Python functions that a call runs."""
    names: list[str] = []
    gc.disable()  # a collection would call functions of other packages, such as Hypothesis
    sys.setprofile(lambda frame, event, _: names.append(frame.f_code.co_name) if event == "call" else None)
    try:
        function(*given)
    finally:
        sys.setprofile(None)
        gc.enable()
    return names


def test_an_entry_that_is_replaced_while_it_is_learnt_is_not_launched(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is no lock on a hit: another thread may keep the winner between the look-up and what is learnt of it."""
    launched: list[Any] = []
    hot, places, _ = made(lambda *given: launched.append(given[2]))
    x, like = torch.zeros(8), tensor_guards.like

    def keep_meanwhile(tensors: Any) -> Any:
        places["now"].keep(key_of(x), None, ((1,), "winner", 16))
        return like(tensors)

    places["now"].keep(key_of(x), None, ((1,), "shipped", 16))
    monkeypatch.setattr(tensor_guards, "like", keep_meanwhile)
    hot("s", x, 1.0)
    monkeypatch.setattr(tensor_guards, "like", like)
    for _ in range(3):
        hot("s", x, 1.0)
    assert launched[1:] == ["winner"] * 3


def test_a_grad_mode_is_no_part_of_the_key() -> None:
    """torch's check takes such tensors for others: they are looked up, and launch the same."""
    launched: list[Any] = []
    hot, places, missed = made(lambda *given: launched.append(given[2]))
    x = torch.zeros(8)
    places["now"].keep(key_of(x), None, ((1,), "kernel", 16))
    for turn in range(100):
        hot("s", torch.zeros(8, requires_grad=turn % 2 == 0), 1.0)
    with torch.inference_mode():
        hot("s", torch.zeros(8), 1.0)
    hot("s", torch.nn.Parameter(x), 1.0)
    assert launched == ["kernel"] * 102 and not missed
    assert places["now"].calls[key_of(x)].checks <= MOST_CHECKS
