"""`--on ray` where no cluster runs."""

from __future__ import annotations

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
