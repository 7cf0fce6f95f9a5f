"""A-22: a change for one architecture is compiled for the task's others, and refused if it is slower there."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tests.optimize.kit import H200, SCALE, candidates, repository

from tilewright.optimize.attempting import Builder
from tilewright.optimize.elsewhere import OtherArchitectures
from tilewright.optimize.gates.base import Judged
from tilewright.optimize.loop import optimize
from tilewright.task.loading import load_task, where_is

BIG = SCALE.replace('{"N": 4096}', '{"N": 1 << 18}').replace("256", "1024")
BOTH = BIG.replace('name="scale",', 'name="scale", architectures=("sm_90", "sm_100"),')


@pytest.fixture
def builder(tmp_path: Path) -> Builder:
    file = tmp_path / "ops.py"
    file.write_text(BOTH)
    task = load_task(str(file))
    return Builder(candidates(), task, where_is(task), H200, task.selected(None), tmp_path / "versions", seconds=60)


def judged(builder: Builder, old: str, new: str, allowed: bool = False) -> Judged:
    """A change of ``BOTH`` that was kept on sm_90."""
    file = Path(builder.where.partition(":")[0])
    before = builder.build_one("before", {file: BOTH})
    others = OtherArchitectures.of(builder, before, allowed)
    assert list(others.builders) == ["sm_100"]
    after = builder.build_one("after", {file: BOTH.replace(old, new)})
    return others.judged(Judged(best=after, correctness="PASS", keep=True, reason="faster"), before)


def test_a_change_that_is_slower_elsewhere_is_refused_unless_allowed(builder: Builder) -> None:
    """On sm_90 the tile stays as it is; one value for all others is 64 times smaller."""
    changed = BOTH.replace("x, y, N, config", "x, y, N, config, hardware").replace(
        "    return tw", "    tile = 16 if hardware.sm > 90 else config.TILE\n    return tw"
    )
    changed = changed.replace("-(-N // config.TILE)", "-(-N // tile)").replace("(x, y, config.TILE)", "(x, y, tile)")
    refused = judged(builder, BOTH, changed)
    assert not refused.keep and "elsewhere: sm_100 predicted " in refused.reason
    assert refused.reason.endswith("× the time: refused; --allow-slower-elsewhere keeps it")
    allowed = judged(replace(builder, folder=builder.folder / "2"), BOTH, changed, allowed=True)
    assert allowed.keep and allowed.reason.endswith("(--allow-slower-elsewhere)")


def test_a_change_that_fails_elsewhere_is_refused(builder: Builder) -> None:
    changed = BOTH.replace("x, y, N, config", "x, y, N, config, hardware").replace(
        "    return tw", "    assert hardware.sm == 90, 'only Hopper'\n    return tw"
    )
    refused = judged(builder, BOTH, changed)
    assert not refused.keep and "sm_100 fails: " in refused.reason and "only Hopper" in refused.reason


def test_a_value_for_one_architecture_changes_nothing_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The whole loop: a tile that is far too small is replaced on sm_90 alone."""
    monkeypatch.setenv("TILEWRIGHT_HOME", str(tmp_path / "home"))
    small = BOTH.replace('{"TILE": (1024,)}', '{"TILE": (16, 1024)}').replace('{"TILE": 1024}', '{"TILE": 16}')
    file = repository(tmp_path / "user", small)
    done = optimize(str(file), arch="sm_90", iterations=1, only=("tile_sizes",), seconds=60.0, seed=1)
    (kept,) = done.kept
    assert "; elsewhere: sm_100 unchanged" in kept.reason
    (line,) = [line for line in done.patch.splitlines() if line.startswith("+") and "shipped" in line]
    assert 'shipped={"TILE": 16}' in line and 'shipped_for={"sm_90": {"TILE": ' in line


def test_an_unknown_architecture_is_refused(tmp_path: Path) -> None:
    for given, said in (('("sm_9",)', "unknown architecture 'sm_9'"), ('"sm_90"', "is a string")):
        file = tmp_path / "ops.py"
        file.write_text(BIG.replace('name="scale",', f'name="scale", architectures={given},'))
        with pytest.raises(Exception, match=said) as caught:
            load_task(str(file))
        assert "\n" not in str(caught.value)
