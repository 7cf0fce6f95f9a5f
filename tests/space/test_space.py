"""The laws of a space: requirements Part 7 check 4, A-14, K9, X-10, X-19, F-6."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilewright.errors import SpaceError, UnknownChoice
from tilewright.records import Configuration, Value
from tilewright.space.knobs import CLUSTER_ARCHITECTURES, hints
from tilewright.space.space import Space

HINTS = {name: hint.values for name, hint in hints().items()}

ARCHITECTURES = (80, 86, 87, 88, 89, 90, 100, 103, 107, 110, 120, 121)

SIZES = st.sampled_from((1, 16, 32, 48, 64, 96, 128, 256))
LISTED = st.sampled_from((1, 16, 32, 64, 128, 256))
LISTS: st.SearchStrategy[dict[str, Sequence[Value]]] = st.fixed_dictionaries(
    {
        "TILE_M": st.lists(LISTED, min_size=1, max_size=3),
        "BLOCK_K": st.lists(LISTED, min_size=1, max_size=2),
        "GROUP": st.lists(st.sampled_from((3, 4, 5, 8)), min_size=1, max_size=3),
        "swap": st.lists(st.booleans(), min_size=1, max_size=2),
    }
)
HINT_LISTS: st.SearchStrategy[dict[str, Sequence[int | None]]] = st.fixed_dictionaries(
    {name: st.lists(st.sampled_from(values), min_size=1, max_size=2) for name, values in HINTS.items()}
)


def area(TILE_M: int, BLOCK_K: int, M: int) -> bool:
    """The tile fits the problem"""
    return TILE_M <= M and TILE_M * BLOCK_K <= 128 * 128


@st.composite
def spaces(draw: st.DrawFn) -> Space:
    constants, hints = draw(LISTS), draw(HINT_LISTS)
    point = st.fixed_dictionaries(
        {
            "TILE_M": SIZES,
            "BLOCK_K": SIZES,
            "GROUP": st.integers(1, 9),
            "swap": st.booleans(),
            **{name: st.sampled_from(values) for name, values in HINTS.items()},
        }
    )
    return Space(
        constants=constants,
        hints=hints,
        shipped=draw(point),
        where=[area] if draw(st.booleans()) else [],
        include=draw(st.lists(point, max_size=2)),
        only=draw(st.none() | st.lists(point, min_size=1, max_size=5)),
    )


DIMS = st.fixed_dictionaries({"M": st.integers(1, 300)})


@given(spaces(), st.sampled_from(ARCHITECTURES), DIMS)
def test_a_space_never_yields_what_it_forbids(space: Space, arch: int, dims: dict[str, int]) -> None:
    """Part 7 check 4: no num_ctas > 1 where K9 forbids it, no odd tile, nothing a predicate refuses."""
    shipped, *others = space.configurations(arch, dims)
    assert shipped == space.shipped
    for config in others:
        assert space.allows(config, arch, dims) is None
        for tile in ("TILE_M", "BLOCK_K"):
            assert config[tile] & (config[tile] - 1) == 0  # type: ignore[operator]
        assert config["num_ctas"] in (None, 1) or arch in CLUSTER_ARCHITECTURES
        if space.where:
            assert area(config.TILE_M, config.BLOCK_K, dims["M"])


@given(spaces(), st.sampled_from(ARCHITECTURES), DIMS)
def test_the_shipped_one_is_first_and_nothing_comes_twice(space: Space, arch: int, dims: dict[str, int]) -> None:
    """A-14 and Part 7 check 4: never empty, never without the original; the order never changes."""
    configurations = space.configurations(arch, dims)
    assert configurations[0] == space.shipped
    assert len(set(configurations)) == len(configurations)
    assert space.configurations(arch, dims) == configurations


@given(spaces(), st.sampled_from(ARCHITECTURES), DIMS, st.data())
def test_neighbours_are_allowed_and_one_step_away(
    space: Space, arch: int, dims: dict[str, int], data: st.DataObject
) -> None:
    centre = data.draw(st.sampled_from(space.configurations(arch, dims)))
    near = space.neighbours(centre, arch, dims)
    assert centre not in near
    assert len(set(near)) == len(near)
    for config in near:
        assert space.allows(config, arch, dims) is None
        changed = [name for name in space.knobs if config[name] != centre[name]]
        assert len(changed) == 1
        numbers = [value for value in space.known_values(changed[0]) if isinstance(value, int)]
        if config[changed[0]] is not None and changed[0] not in ("num_worker_warps", "route"):
            assert min(numbers) / 2 <= config[changed[0]] <= 2 * max(numbers)  # type: ignore[operator]


@given(spaces())
def test_text_is_read_back(space: Space) -> None:
    for config in space.configurations(90, {"M": 300}):
        assert space.parse(str(config)) == config


@given(spaces(), st.sampled_from(ARCHITECTURES), DIMS)
def test_split_declares_what_goes_where(space: Space, arch: int, dims: dict[str, int]) -> None:
    """F-6: constants go to the kernel, hints to the compiler; what the compiler chooses is not passed."""
    for config in space.configurations(arch, dims):
        constants, hints = space.split(config)
        assert {**constants, **hints} == {name: value for name, value in config.items() if value is not None}
        assert set(constants) == {"TILE_M", "BLOCK_K", "GROUP", "swap"}


def matmul(**changes: object) -> Space:
    declared: dict[str, object] = {
        "constants": {"TILE_M": [64, 128], "TILE_N": (64, 128, 256), "swap_ab": [False, True]},
        "hints": {"occupancy": [None, 1, 2], "num_ctas": [None, 1, 2], "num_worker_warps": [None, 8]},
        "shipped": {
            "TILE_M": 128,
            "TILE_N": 128,
            "swap_ab": False,
            "occupancy": None,
            "num_ctas": 1,
            "num_worker_warps": None,
        },
    }
    return Space(**{**declared, **changes})  # type: ignore[arg-type]


def changed(space: Space, config: Configuration, knob: str, arch: int = 90) -> set[object]:
    near = space.neighbours(config, arch, {})
    return {other[knob] for other in near if other[knob] != config[knob]}


def test_order_is_that_of_the_declaration() -> None:
    space = Space(constants={"TILE_M": [64, 128], "TILE_N": [32, 16]}, shipped={"TILE_M": 128, "TILE_N": 32})
    found = [(c.TILE_M, c.TILE_N) for c in space.configurations(90, {})]
    assert found == [(128, 32), (64, 32), (64, 16), (128, 16)]


def test_shipped_outside_the_lists_and_the_laws_is_first_but_its_problem_is_told() -> None:
    """A-14; the shipped one is exempt from pruning, not from the truth."""
    space = matmul(shipped={**matmul().shipped, "TILE_M": 48, "num_ctas": 4})
    assert space.configurations(80, {})[0] == space.shipped
    assert "power of two" in (space.allows(space.shipped, 80, {}) or "")
    assert space.parse(str(space.shipped)) == space.shipped


def test_clusters_only_where_they_pay() -> None:
    """K9 and X-10: sm_80 to 89 ignore num_ctas, sm_120 has no multicast."""
    two = matmul().shipped.replace(num_ctas=2)
    verdicts = {arch: matmul().allows(two, arch, {}) for arch in ARCHITECTURES}
    assert {arch for arch, problem in verdicts.items() if problem is None} == {90, 100, 103, 107, 110}
    assert "ignores it silently" in (verdicts[80] or "")
    assert "multicast" in (verdicts[121] or "")


def test_include_and_only_take_the_rest_from_shipped() -> None:
    space = matmul(include=[{"TILE_M": 256}], only=[{"TILE_N": 64}, {"TILE_N": 48}])
    tiles = [(c.TILE_M, c.TILE_N) for c in space.configurations(90, {})]
    assert tiles == [(128, 128), (256, 128), (128, 64)]


def test_there_is_no_limit_of_thirty() -> None:
    """X-07 and X-16: the control is a compile budget, not a count (A-06)."""
    assert len(matmul().configurations(90, {})) == 216


def test_neighbours_halve_double_flip_and_toggle() -> None:
    space = matmul()
    assert changed(space, space.shipped, "TILE_M") == {64, 256}
    assert changed(space, space.parse("TILE_M=256"), "TILE_M") == {128}
    assert changed(space, space.shipped, "swap_ab") == {True}
    assert changed(space, space.shipped, "occupancy") == {1, 2}
    assert changed(space, space.parse("occupancy=2"), "occupancy") == {None, 1, 4}
    assert changed(space, space.shipped, "num_ctas") == {None, 2}
    assert changed(space, space.shipped, "num_ctas", arch=80) == {None}
    assert changed(space, space.shipped, "num_worker_warps") == {4, 8}
    assert changed(space, space.parse("num_worker_warps=4"), "num_worker_warps") == {None, 8}


def test_neighbours_of_other_knobs_are_adjacent_values() -> None:
    space = Space(
        constants={"GROUP": [3, 6, 12], "order": ["row", "column", "snake"], "HEAD": [128]},
        hints={"opt_level": [None, 1, 3]},
        shipped={"GROUP": 6, "order": "row", "HEAD": 128, "opt_level": None},
    )
    assert changed(space, space.shipped, "GROUP") == {3, 12}
    assert changed(space, space.shipped, "order") == {"column"}
    assert changed(space, space.shipped, "opt_level") == {1, 3}
    assert changed(space, space.parse("opt_level=1"), "opt_level") == {None, 3}


def test_a_knob_with_one_known_value_is_fixed() -> None:
    """K8 pruning 4: a BLOCK_K that must equal group_k is declared with that one value."""
    space = Space(constants={"BLOCK_K": [128], "BLOCK_M": [64, 128]}, shipped={"BLOCK_K": 128, "BLOCK_M": 64})
    assert {config.BLOCK_K for config in space.neighbours(space.shipped, 90, {})} == {128}


def test_predicates_take_dimensions_and_architecture_by_name() -> None:
    space = matmul(where=[lambda TILE_N, N: TILE_N <= N, lambda TILE_M, arch: arch >= 90 or TILE_M < 128, area_limit])
    assert space.allows(space.parse("TILE_N=256"), 90, {"N": 200}) == (
        "'TILE_N <= N' does not hold for TILE_N=256, N=200"
    )
    assert "'arch >= 90 or TILE_M < 128'" in (space.allows(space.shipped, 80, {"N": 200}) or "")
    assert "'area limit' does not hold" in (space.allows(space.parse("TILE_M=256,TILE_N=256"), 90, {"N": 300}) or "")


def area_limit(TILE_M: int, TILE_N: int) -> bool:
    return TILE_M * TILE_N <= 128 * 256


def test_a_default_lets_a_predicate_bind_a_variable() -> None:
    limits = [lambda TILE_M, most=most: most >= TILE_M for most in (64, 256)]
    space = matmul(where=limits)
    assert {config.TILE_M for config in space.configurations(90, {})[1:]} == {64}


def test_a_tile_size_that_no_kernel_can_have_is_refused_when_the_space_is_built() -> None:
    with pytest.raises(SpaceError, match="constants: TILE=96 is not a power of two"):
        Space(constants={"TILE": [64, 96]}, shipped={"TILE": 64})
    kept = Space(constants={"TILE": [64, 96], "GROUP": [3, 96]}, shipped={"TILE": 96, "GROUP": 3})
    assert kept.shipped["TILE"] == 96, "what ships today is always accepted"


def test_values_that_are_never_tried_are_said() -> None:
    space = Space(
        constants={"TILE": [64, 256], "FAST": [False, True]},
        hints={"num_ctas": [None, 2]},
        shipped={"TILE": 64, "FAST": False, "num_ctas": None},
        where=[lambda TILE, N: TILE <= N],
    )
    assert space.dropped(90, {"N": 4096}) == ()
    assert space.dropped(120, {"N": 128}) == (
        "TILE=256: 'TILE <= N' does not hold for TILE=256, N=128",
        "num_ctas=2: sm_120 has no cluster multicast; use num_ctas=1",
    )


def test_a_name_that_is_nearly_right_is_suggested() -> None:
    space = Space(constants={"TILE_M": [64]}, shipped={"TILE_M": 64})
    with pytest.raises(UnknownChoice, match="unknown knob 'TILEM'; did you mean 'TILE_M'. known: TILE_M"):
        space.parse("TILEM=64")
    with pytest.raises(UnknownChoice, match="unknown knob 'tile_m'; did you mean 'TILE_M'. known: TILE_M"):
        space.parse("tile_m=64")
