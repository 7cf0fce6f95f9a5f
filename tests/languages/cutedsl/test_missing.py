"""Without nvidia-cutlass-dsl, a task that needs it says so in one line. These tests hide the package where it is."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tilewright.doctor.probes import examine, healthy
from tilewright.languages.cutedsl import versions
from tilewright.specialists import specialist_of

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("command", ["inspect", "check"])
def test_a_task_without_its_language_is_one_line(command: str, tmp_path: Path) -> None:
    (tmp_path / "cutlass.py").write_text("raise ModuleNotFoundError('gone', name='cutlass')\n")
    whole = {**os.environ, "PYTHONPATH": os.pathsep.join((str(tmp_path), str(ROOT / "src")))}
    command_line = [sys.executable, "-m", "tilewright", command, str(ROOT / "examples" / "cute_gemm.py")]
    done = subprocess.run(command_line, env=whole, capture_output=True, text=True)
    assert done.returncode == 3 and "Traceback" not in done.stderr
    assert "needs cutlass, which is not installed; fix: pip install 'tilewright[cutedsl]'" in done.stderr


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
    assert package.name == "nvidia-cutlass-dsl" and gpu.name == "a GPU"
    assert package.met or package.detail == "pip install 'tilewright[cutedsl]', under NVIDIA's own licence"
