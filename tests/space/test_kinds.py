"""What to tune for which kind of kernel: K8 and the decision tree of A-04."""

from __future__ import annotations

import pytest

from tilewright.errors import UnknownChoice
from tilewright.space.kinds import KINDS, advise, template_for
from tilewright.space.templates import place, template


@pytest.mark.parametrize(
    ("kind", "limit", "gain"),
    [
        ("elementwise", 8, (0.02, 0.15)),
        ("matmul", 30, (0.05, 0.30)),
        ("fmha", 30, (0.05, 0.20)),
        ("fp8 matmul", 30, (0.10, 0.50)),
        ("grouped gemm", 8, (0.02, 0.10)),
        ("cross entropy", 8, (0.0, 0.03)),
    ],
)
def test_the_table_of_k8(kind: str, limit: int, gain: tuple[float, float]) -> None:
    assert (KINDS[kind].limit, KINDS[kind].gain) == (limit, gain)


@pytest.mark.parametrize("kind", KINDS)
def test_a_template_as_written_stays_within_the_limit_of_its_kind(kind: str) -> None:
    """K8 and A-06 for the source's own lists; ours have no such limit (X-07, X-16)."""
    for arch in (80, 90, 100, 120):
        assert len(template(template_for(kind), arch, as_written=True)) <= KINDS[kind].limit


def test_the_tree_of_a04() -> None:
    scopes = {kind: (advise(kind).scope, advise(kind).occupancies) for kind in KINDS}
    assert scopes["dual gemm"] == ("fused", (1, 2))
    assert scopes["matmul"][0] == scopes["fmha"][0] == scopes["fp8 matmul"][0] == "full"
    only_occupancy = ("occupancy", (1, 2, 4, 8))
    for kind in ("grouped gemm", "norm", "cross entropy", "elementwise", "in place"):
        assert scopes[kind] == only_occupancy


def test_advice_for_memory_bound_kernels_names_what_the_source_got_wrong() -> None:
    """A-05 against X-09 and X-10."""
    reason = advise("elementwise").reason
    assert "occupancy hint often leaves the code unchanged" in reason and "num_ctas" in reason
    assert "num_worker_warps" in reason


def test_names_are_found_in_any_spelling() -> None:
    assert template_for("FMHA") == "fmha"
    assert template_for("grouped_gemm") == template_for("Grouped-GEMM") == "grouped gemm"
    with pytest.raises(UnknownChoice, match="unknown kind 'conv'; known: elementwise, norm"):
        advise("conv")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("arch", [80, 90, 100, 120])
def test_a_space_to_start_with_lists_what_the_template_does(kind: str, arch: int) -> None:
    space = advise(kind).space(arch)
    rows = template(template_for(kind), arch)
    assert all(space.allows(config, arch, {}) is None for config in space.configurations(arch, {}))
    assert len(place(space, (row.knobs for row in rows), arch, {})) == len(rows)
