"""What to tune for which kind of kernel: K8 and the decision tree of A-04."""

from __future__ import annotations

import pytest

from tilewright.errors import UnknownChoice
from tilewright.space.kinds import KINDS, advise, template_for
from tilewright.space.templates import place, template


def test_the_tree_of_a04() -> None:
    reasons = {kind: advise(kind).reason for kind in KINDS}
    assert "fused" in reasons["dual gemm"]
    assert all("tile sizes decide the reuse of data" in reasons[kind] for kind in ("matmul", "fmha", "fp8 matmul"))
    assert "the problem fixes the tiles" in reasons["grouped gemm"]
    assert all("occupancy hint" in reasons[kind] for kind in ("norm", "cross entropy", "elementwise", "in place"))


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
    assert len(place(space, rows, arch, {})) == len(rows)
