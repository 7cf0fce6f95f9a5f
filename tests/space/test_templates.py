"""The templates: each list of K10 as written, the laws for the corrected ones (Part 7 check 4, K9)."""

from __future__ import annotations

import pytest

from tilewright.errors import UnknownChoice
from tilewright.records import Configuration
from tilewright.space import templates
from tilewright.space.knobs import CLUSTER_ARCHITECTURES
from tilewright.space.space import Space
from tilewright.space.templates import ADDED, CORRECTIONS, EVERY, GROUPS, WRITTEN, knob_names, place, read, template

ARCHITECTURES = [arch for members in GROUPS.values() for arch in members]
PRE_HOPPER, HOPPER, BLACKWELL, CONSUMER = 80, 90, 100, 120

# K10 once more, in the words of the requirements: "M×N×K/num_ctas/occupancy", sizes as listed there.
K10: dict[tuple[str, int], str] = {
    ("elementwise", 90): "1024//1, 1024//2, 1024//4, 1024//8",
    ("in place", 120): "1024//1, 1024//2, 1024//4, 1024//8",
    ("matmul", CONSUMER): "128×64×64/1/1, 128×64×32/1/2, 64×64×64/1/1, 64×64×32/1/2, 256×256×64/1/1",
    ("matmul", HOPPER): "32×32×64/1/2, 64×32×32/1/2, 64×128×32/1/2, 64×256×32/1/2, 128×64×32/1/2, "
    "128×64×64/1/2, 128×128×32/1/2",
    ("matmul", PRE_HOPPER): "64×64×32/1/1, 64×128×32/1/1, 128×64×32/1/1, 128×128×32/1/1",
    ("matmul", BLACKWELL): "128×128×32/1/1, 256×256×64/2/1, 256×256×64/4/1, 512×256×64/2/1",
    ("persistent matmul", CONSUMER): "64×64×64/1/2, 64×64×64/1/4, 64×64×64/1/1, 128×64×64/1/2, 128×64×64/1/1, "
    "128×64×64/1/4, 256×256×64/1/1",
    ("persistent matmul", PRE_HOPPER): "64×128×64/1/1, 128×64×64/1/1, 128×128×32/1/1, 128×128×64/1/1",
    ("persistent matmul", HOPPER): "64×128×64/1/2, 64×256×64/1/2, 128×64×64/1/2, 128×128×64/1/2, 128×256×64/2/1, "
    "256×256×64/2/1",
    ("persistent matmul", BLACKWELL): "128×512×64/4/1, 256×256×64/2/1, 256×256×64/1/1, 256×256×128/2/1",
    ("fmha", CONSUMER): "64×64/1/2, 128×64/1/2",
    ("fmha", PRE_HOPPER): "64×64/1/2, 128×64/1/2, 128×128/1/1",
    ("fmha", HOPPER): "128×128/1/2, 256×128/1/1, 256×128/1/2, 256×128/2/2",
    ("fmha", BLACKWELL): "128×128/1/2, 256×128/1/1, 256×128/1/2, 256×128/2/2",
    ("fmha dkdv 64", 90): "32×64, 32×128, 64×64, 64×128, 128×64, 128×128",
    ("fmha dkdv 128", 90): "16×32, 16×64, 32×32, 32×64, 64×32, 64×64",
    ("fmha dkdv 256", 90): "32×32, 32×64",
    ("fmha dq 64", 90): "64×32, 64×64, 64×128, 128×32, 128×64, 128×128",
    ("fmha dq 128", 90): "32×16, 32×32, 32×64, 64×16, 64×32, 64×64",
    ("fmha dq 256", 90): "64×32, 64×64",
    ("grouped gemm", 90): "128×64//1, 128×64//2, 128×64//4, 128×64//8",
    ("varlen attention", BLACKWELL): "64×64/1/2, 64×128/1/2, 128×64/1/2, 128×128/1/1, 128×128/1/2, 256×128/1/1, "
    "256×128/1/2, 256×128/2/2, 256×64/1/1",
    ("varlen attention", HOPPER): "64×64/1/2, 128×64/1/2, 128×128/1/1, 128×128/1/2, 64×128/1/2",
    ("varlen attention", PRE_HOPPER): "64×64/1/2, 128×64/1/1, 128×64/1/2, 128×128/1/1",
    ("dual gemm", BLACKWELL): "128×128×64/1/1, 128×128×64/1/2, 128×256×64/1/1, 256×128×64/1/1, 256×128×64/2/1, "
    "256×256×64/1/1, 256×256×64/2/1, 128×256×64/2/1, 256×128×64/2/2, 128×128×64/2/2, 256×256×64/2/2",
    ("dual gemm", HOPPER): "64×128×64/1/1, 128×64×64/1/1, 128×128×64/1/1, 128×128×64/1/2",
    ("dual gemm", PRE_HOPPER): "64×128×32/1/1, 128×64×32/1/1, 128×128×32/1/1",
}


def as_written(name: str, arch: int) -> list[Configuration]:
    """The source's own rows."""
    (group,) = [group for group, members in GROUPS.items() if arch in members]
    rows = WRITTEN[name]
    return [read(name, text) for text in rows.get(EVERY, rows.get(group, "")).split()]


def in_the_words_of_k10(name: str, row: Configuration) -> str:
    sizes = "×".join(str(row[axis]) for axis in templates.AXES.get(name, ("M", "N")))
    hints = [str(row.get(hint, "")) for hint in ("num_ctas", "occupancy")]
    return "/".join([sizes, *hints]).rstrip("/")


@pytest.mark.parametrize(("name", "arch"), K10)
def test_every_list_of_k10_is_reproduced_as_written(name: str, arch: int) -> None:
    """Part 7 check 4."""
    assert [in_the_words_of_k10(name, row) for row in as_written(name, arch)] == K10[name, arch].split(", ")


def test_t6_is_block_m_times_occupancy_times_swap() -> None:
    """K10 T6 and K8: at most 24."""
    rows = template("fp8 matmul", 120)
    found = {(row["M"], row["occupancy"], row["swap_ab"]) for row in rows}
    assert len(rows) == len(found) == 24
    assert found == {(m, occ, swap) for m in (16, 32, 64, 128) for occ in (1, 2, 4) for swap in (False, True)}


@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize("name", WRITTEN)
def test_every_template_obeys_the_laws_on_every_architecture(name: str, arch: int) -> None:
    """Part 7 check 4 and K9: clusters where they pay, powers of two, never empty, nothing twice."""
    rows = template(name, arch)
    assert rows
    assert len(set(rows)) == len(rows)
    for row in (*rows, *as_written(name, arch)):
        assert row.get("num_ctas", 1) == 1 or arch in CLUSTER_ARCHITECTURES
        for axis in templates.AXES.get(name, ("M", "N")):
            size = row[axis]
            assert isinstance(size, int)
            assert size >= 16 and size & (size - 1) == 0


def test_what_machine_code_contradicts_is_corrected() -> None:
    """cutile-facts 7.3, by name of the row."""
    rows = {name: set(map(str, template(name, 90))) for name in ("matmul", "persistent matmul")}
    assert "M=32,N=32,K=64,num_ctas=1,occupancy=2" not in rows["matmul"]
    assert {"M=64,N=64,K=64,num_ctas=1,occupancy=2", "M=64,N=256,K=32,num_ctas=1,occupancy=1"} <= rows["matmul"]
    assert "wgmma" in CORRECTIONS["matmul", "sm_90"]["32x32x64/1/2"][1]
    assert "M=256,N=256,K=64,num_ctas=4,occupancy=1" in rows["persistent matmul"]
    for name in ("matmul", "persistent matmul"):
        assert (256, 256) not in [(row["M"], row["N"]) for row in template(name, 120)]
    assert read("persistent matmul", "128x64x64/1/4") in as_written("persistent matmul", 120)
    assert read("persistent matmul", "128x64x64/1/4") not in template("persistent matmul", 120)
    assert read("persistent matmul", "128x128x64/1/1") in template("persistent matmul", 80)


def test_good_candidates_that_the_source_lacks_are_added() -> None:
    """cutile-facts 7.3 and 8.3, measured.md 5."""
    added = {str(row) for row in template("matmul", 90) if row not in as_written("matmul", 90)}
    assert "M=128,N=256,K=64,num_ctas=2,occupancy=1" in added
    assert "M=256,N=128,K=64,num_ctas=2,occupancy=1" in added
    assert "M=256,N=128,K=64,num_ctas=1,occupancy=1,num_worker_warps=8" in added
    assert "M=64,N=128,num_ctas=1,occupancy=2,num_worker_warps=4" in map(str, template("fmha", 90))


def test_every_correction_and_addition_is_of_a_listed_row() -> None:
    for (name, group), corrections in CORRECTIONS.items():
        assert set(corrections) <= set(WRITTEN[name][group].split())
        assert all(reason for _, reason in corrections.values())
    assert all(group in WRITTEN[name] and all(why for _, why in rows) for (name, group), rows in ADDED.items())
    assert set(templates.AXES) <= set(WRITTEN)


def test_unknown_names_tell_the_choices() -> None:
    with pytest.raises(UnknownChoice, match="unknown template 'conv'; known: elementwise, in place, matmul"):
        template("conv", 90)
    with pytest.raises(UnknownChoice, match="unknown architecture '75'; known: 80, 86"):
        template("matmul", 75)


def matmul(**hints: list[int | None]) -> Space:
    return Space(
        constants={"TILE_SIZE_M": [64, 128], "TILE_SIZE_N": [64, 128], "TILE_SIZE_K": [32, 64], "GROUP": [8]},
        hints=hints,
        shipped={"TILE_SIZE_M": 128, "TILE_SIZE_N": 128, "TILE_SIZE_K": 64, "GROUP": 8, **dict.fromkeys(hints, None)},
        where=[lambda TILE_SIZE_N, N: TILE_SIZE_N <= N],
    )


@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize("name", WRITTEN)
def test_a_seed_is_allowed_by_its_space(name: str, arch: int) -> None:
    space = matmul(occupancy=[None, 1], num_ctas=[None, 1], num_worker_warps=[None, 8])
    dims = {"N": 128}
    found = place(space, template(name, arch), arch, dims)
    assert len(set(found)) == len(found)
    assert all(space.allows(config, arch, dims) is None for config in found)


def test_a_seed_maps_sizes_to_the_names_of_the_space() -> None:
    space = matmul(occupancy=[None, 1], num_ctas=[None, 1])
    found = [str(config) for config in place(space, template("matmul", 100), 100, {"N": 256})]
    assert found[1] == "TILE_SIZE_M=256,TILE_SIZE_N=256,TILE_SIZE_K=64,GROUP=8,occupancy=1,num_ctas=2"
    assert len(found) == len(template("matmul", 100))


def test_a_seed_leaves_out_what_the_space_cannot_say() -> None:
    """Without num_ctas, 256×256/2/1 would be another configuration; an occupancy is passed over."""
    tiles = [(c["TILE_SIZE_M"], c["TILE_SIZE_N"]) for c in place(matmul(), template("matmul", 100), 100, {"N": 256})]
    assert tiles == [(128, 128)]


def test_one_is_the_choice_of_the_compiler_where_the_space_says_so() -> None:
    """cutile-facts 7.1 and X-09: occupancy 1 and num_ctas 1 give the code of the compiler's choice."""
    space = matmul(occupancy=[None, 2], num_ctas=[None, 2])
    found = {(c.TILE_SIZE_N, c.occupancy, c.num_ctas) for c in place(space, template("matmul", 90), 90, {"N": 64})}
    assert found == {(32, 2, None), (64, 2, None)}


def test_names_are_those_of_the_space() -> None:
    space = Space(
        constants={"TILE_M": [64, 128], "BLOCK_N": [64], "SWAP_AB": [False, True]},
        shipped={"TILE_M": 128, "BLOCK_N": 64, "SWAP_AB": False},
    )
    assert knob_names(space) == {"M": "TILE_M", "N": "BLOCK_N", "swap_ab": "SWAP_AB"}
    found = place(space, [{"M": 64, "N": 64, "swap_ab": True}], 90, {})
    assert [str(config) for config in found] == ["TILE_M=64,BLOCK_N=64,SWAP_AB=True"]
