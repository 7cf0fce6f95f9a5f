"""Without nvidia-cutlass-dsl, a task that needs it says so in one line. These tests hide the package where it is."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tilewright.cli.main import main
from tilewright.doctor.probes import examine, healthy
from tilewright.languages.cutedsl import versions
from tilewright.specialists import specialist_of

EXAMPLE = Path(__file__).parents[3] / "examples" / "cute_gemm.py"


def test_a_task_without_its_language_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] in ("cutlass", "cute_dsl")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "cutlass", None)  # its import fails, as that of a missing package
    assert main(["inspect", str(EXAMPLE), "--arch", "sm_90"]) == 3
    said = capsys.readouterr().err
    assert (
        "error: cute_gemm.py:11: needs cutlass, which is not installed; fix: pip install 'tilewright[cutedsl]'" in said
    )
    assert "Traceback" not in said


@pytest.mark.parametrize(
    ("version", "ok", "said"),
    [
        (None, None, "not installed: only kernels in CuTe DSL need it"),
        ("4.8.1", True, "4.8.1, tested; NVIDIA Software License: proprietary, only for systems with NVIDIA GPUs"),
        ("4.9.0", None, "nvidia-cutlass-dsl 4.9.0 is not the tested version (4.8)"),
    ],
)
def test_doctor_names_the_version_and_the_licence(
    monkeypatch: pytest.MonkeyPatch, version: str | None, ok: bool | None, said: str
) -> None:
    monkeypatch.setattr(versions, "installed_version", lambda package: version)
    probes = examine(find_gpu=lambda: None)
    (probe,) = (each for each in probes if each.name == "CuTe DSL")
    assert (probe.ok, probe.detail, probe.required) == (ok, said, False)
    assert probe.fix == ("pip install 'tilewright[cutedsl]'" if version == "4.9.0" else "")
    assert healthy(probes) or any(each.ok is False for each in probes if each.required)


def test_the_specialist_says_what_it_needs() -> None:
    package, gpu = specialist_of("cute-dsl").needs()
    assert package.what == "nvidia-cutlass-dsl" and gpu.what == "a GPU"
    assert package.met or package.detail == "pip install 'tilewright[cutedsl]', under NVIDIA's own licence"
