"""`--on ray` where no cluster runs."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from tests.tune.test_tune import OPS

from tilewright.cli.main import main

LINES = {
    False: "error: --on ray needs the package ray; fix: pip install 'tilewright[ray]'",
    True: "error: no Ray cluster runs on this machine; fix: --on ray:ADDRESS, or start one with ray start",
}
"""By whether Ray is installed."""


def test_the_fix_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "ops.py").write_text(OPS)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    assert main(["tune", str(tmp_path / "ops.py"), "--on", "ray", "--no-store"]) == 3
    assert capsys.readouterr().err.strip() == LINES[find_spec("ray") is not None]


def test_a_folder_called_ray_is_not_the_package(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    if find_spec("ray") is not None:
        pytest.skip("the package is installed")
    (tmp_path / "ray").mkdir()
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "ops.py").write_text(OPS)
    assert main(["tune", str(tmp_path / "ops.py"), "--on", "ray", "--no-store"]) == 3
    assert capsys.readouterr().err.strip() == LINES[False]
    sys.modules.pop("ray", None)
