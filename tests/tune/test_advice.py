"""A-04, A-07: `tune` names the kind of a kernel, and the core dimensions of which a space has one value."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from tests.optimize.kit import SCALE
from tests.test_docs import ROOT

import tilewright as tw
from tilewright.cli import main as cli
from tilewright.hardware.architectures import default_board
from tilewright.space.kinds import KINDS
from tilewright.task.loading import load_task
from tilewright.tune.advice import advice


@pytest.mark.parametrize(
    ("file", "kind"),
    [
        ("matmul.py", "persistent matmul"),
        ("fmha.py", "fmha"),
        ("rms_norm.py", "norm"),
        ("naive/softmax.py", "norm"),
        ("naive/matmul.py", "matmul"),
    ],
)
def test_the_kind_is_read_from_the_kernel(file: str, kind: str) -> None:
    task = load_task(str(ROOT / "examples" / file))
    found = advice(task, task.selected(None)[0], default_board("sm_100"))
    assert found is not None and found.kind == kind and kind in KINDS
    assert str(found).startswith(f"kind of kernel: {kind}; ")


@pytest.mark.parametrize(("arch", "clusters"), [("sm_100", 1), ("sm_80", 0)])
def test_a_core_dimension_with_one_value_is_named(arch: str, clusters: int) -> None:
    task = load_task(str(ROOT / "examples" / "matmul.py"))
    space = tw.Space(
        constants={"TILE_M": (128,), "TILE_N": (64, 128), "TILE_K": (64,), "GROUP_SIZE_M": (8,)},
        hints={**task.space.hints, "num_ctas": (None,)},
        shipped=task.space.shipped,
    )
    found = advice(replace(task, space=space), task.selected(None)[0], default_board(arch))
    assert found is not None
    named = [line.partition(" of ")[2].split()[0] for line in found.missing]
    assert named == ["TILE_M", "TILE_K", *["num_ctas"] * clusters]
    full = advice(task, task.selected(None)[0], default_board(arch))
    assert full is not None and not [line for line in full.missing if "TILE_M" in line or "TILE_N" in line]


def test_tune_prints_kind_shrunk_space_next_step_and_gain(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("ops.py").write_text(SCALE.replace("(256,)", "(256, 512)"))
    asked = ("tune", "ops.py", "--arch", "sm_90", "--no-store", "--shrink", "--seeds", "templates")
    assert cli.main(asked) == 0
    said = capsys.readouterr()
    assert "kind of kernel: elementwise; memory-bound" in said.err
    lines = said.out.splitlines()
    assert lines[-2] == "next: measure on a machine with a GPU: tilewright tune ops.py"
    assert lines[-1] == "correctness: PASS; speedup_over_shipped: unknown; predicted, not measured"
    assert "tw.Space(" in lines and any(line.split()[:1] == ["1024"] for line in lines), (
        "1024 is a seed of the templates"
    )
    assert cli.main((*asked, "--json")) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["advice"]["kind"] == "elementwise" and {"TILE": 256} in data["shrunk"]
    assert data["speedup_over_shipped"] is None and data["workloads"][0]["predicted_shipped_us"] > 0
