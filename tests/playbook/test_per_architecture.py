"""A-22, A-34: what is changed for one architecture leaves what ships on the others as it is."""

from __future__ import annotations

import cuda.tile as ct
import libcst as cst
import pytest

import tilewright as tw
from tilewright.errors import SpaceError
from tilewright.playbook.analyses.configuration_sites import written, written_in_space
from tilewright.playbook.analyses.per_architecture import by_target
from tilewright.playbook.base import NotApplicable, Site
from tilewright.records import Value
from tilewright.source.syntax import Source

KERNEL = "import cuda.tile as ct\n\n\n@ct.kernel{}\ndef scale(x):\n    pass\n"
SPACE = """\
import tilewright as tw

space = tw.Space(constants={"TILE": (64, 128)}, shipped={"TILE": 64})
"""


def hinted(decorator: str, value: Value) -> str:
    source = Source("ops.py", KERNEL.format(decorator))
    (node,) = source.every(cst.Decorator)
    site = Site("scale", *source.place(node), "decorator of scale", (), only_on="sm_90")
    return written(source, site, {"occupancy": value}).splitlines()[3].removeprefix("@ct.kernel")


@pytest.mark.parametrize(
    ("before", "value", "after"),
    [
        ("", 4, "(occupancy=ct.ByTarget(sm_90=4))"),
        ("(occupancy=2)", 4, "(occupancy=ct.ByTarget(sm_90=4, default=2))"),
        ("(occupancy=ct.ByTarget(sm_100=8))", 4, "(occupancy=ct.ByTarget(sm_100=8, sm_90=4))"),
        ("(occupancy=ct.ByTarget(sm_90=8, default=2))", 4, "(occupancy=ct.ByTarget(sm_90=4, default=2))"),
        ("(occupancy=ct.ByTarget(sm_90=8, sm_100=2))", None, "(occupancy=ct.ByTarget(sm_100=2))"),
        ("(occupancy=ct.ByTarget(sm_90=8))", None, ""),
    ],
)
def test_a_hint_gets_a_value_for_one_architecture(before: str, value: Value, after: str) -> None:
    assert hinted(before, value) == after
    others = {"sm_100", "sm_120"}
    (old,), (new,) = ([eval(f"dict{part or '()'}", {"ct": ct})] for part in (before, after))
    assert {arch: _on(old, arch) for arch in others} == {arch: _on(new, arch) for arch in others}
    assert _on(new, "sm_90") == value


def _on(hints: dict[str, object], arch: str) -> object:
    given = hints.get("occupancy")
    if not isinstance(given, ct.ByTarget):
        return given
    default = given._default if isinstance(given._default, int) else None
    return given._by_target.get(arch, default)


@pytest.mark.parametrize("before", ["(occupancy=2)", "(occupancy=ct.ByTarget(sm_90=8, default=2))"])
def test_a_hint_that_others_keep_is_not_removed(before: str) -> None:
    with pytest.raises(NotApplicable):
        hinted(before, None)


def test_targets_are_read_from_the_decorator() -> None:
    source = Source("ops.py", KERNEL.format("(occupancy=ct.ByTarget(sm_100=8), num_ctas=2)"))
    assert list(by_target(source, "scale")) == ["occupancy"]


def test_a_space_gets_a_shipped_value_for_one_architecture() -> None:
    text = SPACE
    for arch, tile in (("sm_90", 256), ("sm_100", 128), ("sm_90", 512)):
        text = written_in_space(Source("ops.py", text), {"TILE": tile, "occupancy": 2}, arch)
    space = _space(text)
    assert dict(space.shipped) == {"TILE": 64, "occupancy": None} == dict(space.on("sm_120").shipped)
    assert dict(space.on("sm_90").shipped) == {"TILE": 512, "occupancy": 2}
    assert dict(space.on("sm_90").on("sm_100").shipped) == {"TILE": 128, "occupancy": 2}
    assert space.on("sm_90").configurations(90, {})[0] == space.on("sm_90").shipped
    assert _space(written_in_space(Source("ops.py", SPACE), {"TILE": 256})).shipped_for == {}


def _space(text: str) -> tw.Space:
    names: dict[str, tw.Space] = {}
    exec(text, names)
    return names["space"]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"90": {"TILE": 64}}, "'90' is no architecture; write it as 'sm_90'"),
        ({"sm_90": {"TILES": 64}}, r"shipped_for\['sm_90'\]: 'TILES' is no knob"),
        (3, "shipped_for= is "),
    ],
)
def test_a_wrong_shipped_for_is_refused(given: object, said: str) -> None:
    with pytest.raises(SpaceError, match=said):
        tw.Space(constants={"TILE": (64,)}, shipped={"TILE": 64}, shipped_for=given)  # type: ignore[arg-type]
