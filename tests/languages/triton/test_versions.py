"""Which triton is supported, and what doctor says of this one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tilewright.languages.triton import versions


@pytest.fixture(autouse=True)
def installed(monkeypatch: pytest.MonkeyPatch) -> dict[str, str | None]:
    known: dict[str, str | None] = {"triton": "3.9.0"}
    monkeypatch.setattr(versions, "installed_version", known.get)
    monkeypatch.setattr(versions.util, "find_spec", lambda name: object())
    return known


@pytest.mark.parametrize(
    ("version", "ok", "said"),
    [
        (None, None, "not installed: only kernels in Triton need it"),
        ("3.9.0", True, "3.9.0, tested"),
        ("3.6.0", True, "3.6.0, tested"),
        ("3.7.1", True, "3.7.1, not tested (tested: 3.6, 3.9)"),
        ("3.5.1", None, "triton 3.5.1 is older than the tested versions (3.6, 3.9)"),
        ("3.10.0", None, "triton 3.10.0 is newer than the tested versions (3.6, 3.9)"),
    ],
)
def test_the_version_is_said(installed: dict[str, str | None], version: str | None, ok: bool | None, said: str) -> None:
    installed["triton"] = version
    found, detail, fix = versions.needs({"CC": "python3"})
    assert (found, detail) == (ok, said)
    assert (fix == versions.FIX) == ("than the tested versions" in said)


def test_without_a_c_compiler_triton_itself_cannot_launch(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    ok, detail, fix = versions.needs({})
    assert ok is True and "without a C compiler" in detail and "set CC" in fix
    assert "compiles" in detail  # which is what Tilewright itself needs
