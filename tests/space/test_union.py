"""The space of a task with several implementations."""

from __future__ import annotations

import pytest

from tilewright.errors import SpaceError, UnknownChoice
from tilewright.records import Configuration
from tilewright.space.space import Space
from tilewright.space.union import SpaceUnion, implementation_of, split_off

TILES = Space(constants={"TILE": (16, 32, 64)}, shipped={"TILE": 32}, where=[lambda TILE, N: TILE <= N])
WARPS = Space(hints={"occupancy": (None, 2)}, shipped={"occupancy": None}, include=[{"occupancy": 4}])
UNION = SpaceUnion({"first": TILES, "second": WARPS})
DIMS = {"N": 32}


def texts(configurations: object) -> list[str]:
    return [str(each) for each in configurations]  # type: ignore[attr-defined]


def test_each_configuration_has_the_knobs_of_its_implementation_only() -> None:
    assert texts(UNION.configurations(90, DIMS)) == [
        "implementation=first,TILE=32", "implementation=second,occupancy=auto", "implementation=first,TILE=16",
        "implementation=second,occupancy=4", "implementation=second,occupancy=2",
    ]  # fmt: skip
    assert UNION.points == 3 + 2 + 1


def test_the_first_implementation_ships() -> None:
    assert str(UNION.shipped) == "implementation=first,TILE=32"
    assert texts(UNION.every_shipped) == ["implementation=first,TILE=32", "implementation=second,occupancy=auto"]
    assert TILES.every_shipped == (TILES.shipped,)


def test_constraints_and_lists_are_those_of_the_implementation() -> None:
    large, other = (Configuration.of({"implementation": name, "TILE": 64}) for name in ("first", "second"))
    assert UNION.allows(large, 90, DIMS) == "'TILE <= N' does not hold for TILE=64, N=32"
    assert UNION.allows(large, 90, {"N": 64}) is None
    assert "no knob of this space" in str(UNION.allows(other, 90, DIMS))
    assert UNION.declares(large) and not UNION.declares(other)
    assert UNION.dropped(90, DIMS) == ("first: TILE=64: 'TILE <= N' does not hold for TILE=64, N=32",)


def test_neighbours_stay_in_the_implementation() -> None:
    for config in UNION.configurations(90, DIMS):
        near = UNION.neighbours(config, 90, DIMS)
        assert near and {implementation_of(each) for each in near} == {implementation_of(config)}


def test_drawn_configurations_are_of_all_implementations() -> None:
    wide = SpaceUnion(
        {name: Space(constants={"TILE": [1 << n for n in range(12)]}, shipped={"TILE": 1}) for name in "ab"}
    )
    drawn = wide.drawn(6, 90, {}, seed=1)
    assert [implementation_of(each) for each in drawn] == ["a", "b"] * 3
    assert drawn[:2] == wide.every_shipped


def test_what_a_user_writes() -> None:
    assert str(UNION.parse("implementation=second,occupancy=2")) == "implementation=second,occupancy=2"
    assert str(UNION.parse("TILE=16")) == "implementation=first,TILE=16"
    assert texts(UNION.chosen([{"implementation": "second"}, "TILE=16"])) == [
        "implementation=second,occupancy=auto", "implementation=first,TILE=16",
    ]  # fmt: skip
    assert UNION.split(UNION.parse("implementation=second,occupancy=2")) == ({}, {"occupancy": 2})
    assert split_off(UNION.parse("TILE=16")) == ("first", Configuration.of({"TILE": 16}))


def test_bad_input_names_the_choices() -> None:
    with pytest.raises(
        UnknownChoice, match="unknown implementation 'frist'; did you mean 'first'. known: first, second"
    ):
        UNION.parse("implementation=frist,TILE=16")
    with pytest.raises(UnknownChoice, match="unknown knob 'occupancy'"):
        UNION.parse("occupancy=2")
    with pytest.raises(SpaceError, match="'' names no knob; give knob=value, .*; knobs: implementation, "):
        UNION.parse("")
    assert UNION.parse("implementation=second") == UNION.every_shipped[1]
    with pytest.raises(SpaceError, match="'implementation' is given twice in"):
        UNION.parse("implementation=first,implementation=second")
    with pytest.raises(SpaceError, match="'implementation' is not of the form knob=value"):
        UNION.parse("implementation")
    with pytest.raises(SpaceError, match="implementation 'x' has a knob 'implementation'; rename it"):
        SpaceUnion({"x": Space(constants={"implementation": (1, 2)}, shipped={"implementation": 1})})


def test_knobs_that_are_known_by_values() -> None:
    assert UNION.knobs_of({}) == ("implementation",)
    assert UNION.knobs_of({"implementation": "second"}) == ("implementation", "occupancy")
    assert UNION.known_values("implementation") == ("first", "second")
    assert UNION.known_values("occupancy") == (None, 2, 4)
