"""`tilewright doctor`: each finding says what is wrong and how to mend it; none ends the examination."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tilewright.doctor import probes as doctor
from tilewright.doctor.probes import Probe
from tilewright.errors import CompilerMissing
from tilewright.hardware.gpu import Gpu
from tilewright.languages.cutile import private as cutile_private
from tilewright.languages.cutile import toolchain
from tilewright.languages.cutile.toolchain import Tool
from tilewright.tileir.read import reader

H200 = Gpu("NVIDIA H200", "sm_90", 132, 141 << 30, 50 << 20, "13.0")
OLD = Gpu("Tesla T4", "sm_75", 40, 16 << 30, 4 << 20, "12.4")


def named(probes: tuple[Probe, ...], name: str) -> Probe:
    return next(probe for probe in probes if probe.name == name)


@pytest.fixture(scope="module")
def here() -> tuple[Probe, ...]:
    """The real examination of this machine as if it had no GPU: it compiles a kernel."""
    return doctor.examine(environ={}, find_gpu=lambda: None)


@pytest.fixture
def forgotten() -> Iterator[None]:
    """`find_tileiras` remembers; this test's answer is no other test's."""
    toolchain._found.cache_clear()
    yield
    toolchain._found.cache_clear()


def system_tool(monkeypatch: pytest.MonkeyPatch, from_pip: bool = False) -> None:
    tool = Tool(Path("/opt/cuda/bin/tileiras"), (13, 4), "release 13.4, V13.4.92", from_pip)
    monkeypatch.setattr(toolchain, "find_tileiras", lambda: tool)


def test_this_machine_compiles_and_without_a_gpu_that_is_healthy(here: tuple[Probe, ...]) -> None:
    assert doctor.healthy(here), [probe for probe in here if probe.ok is False]
    compiling = named(here, "compiling for sm_90")
    assert compiling.ok and "registers" in compiling.detail
    assert {named(here, name).ok for name in (*doctor.TO_MEASURE, "NVML", "compute-sanitizer")} == {None}
    assert "no GPU to measure on" in doctor.verdict(here)
    assert "predicted, not measured" in named(here, "GPU").detail


def test_json_says_what_works_and_what_can_be_measured(here: tuple[Probe, ...]) -> None:
    said = doctor.to_json(here)
    assert (said["ok"], said["measures"]) == (True, False)
    assert set(said["checks"][0]) == {"name", "ok", "detail", "fix", "required"}


def test_a_check_that_breaks_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> str:
        raise OSError("no more processes\nsecond line")

    monkeypatch.setattr(doctor, "compile_probe", broken)
    found = doctor.examine(environ={}, find_gpu=lambda: None)
    assert named(found, "compiling for sm_90").detail == "OSError: no more processes"
    assert not doctor.healthy(found)
    assert doctor.verdict(found) == "not ready: compiling for sm_90"


def test_what_breaks_in_an_optional_check_keeps_no_one_from_predicting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "nvml", lambda gpu: 1 / 0)
    monkeypatch.setattr(doctor, "compile_probe", lambda: (12,))
    found = doctor.examine(environ={}, find_gpu=lambda: H200)
    assert named(found, "NVML").detail.startswith("ZeroDivisionError")
    assert doctor.healthy(found)


def test_a_missing_compiler_is_named_with_its_fix(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, forgotten: None
) -> None:
    monkeypatch.setattr(toolchain, "_from_pip", lambda: None)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CUDA_HOME", raising=False)
    monkeypatch.delenv("CUDA_PATH", raising=False)
    monkeypatch.setattr(toolchain.shutil, "which", lambda *_, **__: None)
    probe = named(doctor.examine(environ={}, find_gpu=lambda: None), "tileiras")
    assert probe.ok is False and probe.required
    assert "tileiras" in probe.detail and probe.fix == doctor.INSTALL


def test_pip_packages_of_different_versions_are_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    versions = dict.fromkeys(toolchain.PIP_PACKAGES, "13.4.92") | {"nvidia-nvvm": "13.2.1"}
    monkeypatch.setattr(doctor, "installed_version", versions.get)
    assert "nvidia-nvvm 13.2.1" in doctor.pip_mismatch()
    monkeypatch.setattr(doctor, "installed_version", {**versions, "nvidia-nvvm": None}.get)
    assert "nvidia-nvvm not installed" in doctor.pip_mismatch()
    monkeypatch.setattr(doctor, "installed_version", {}.get)
    assert doctor.pip_mismatch() == ""


def test_an_unknown_cuda_tile_limits_nothing_but_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cutile_private, "is_known", lambda: False)
    probe = doctor.cuda_tile()
    assert probe.ok is False and not probe.required
    assert "1.7" in probe.fix
    monkeypatch.setattr(doctor, "installed_version", lambda package: None)
    assert doctor.cuda_tile() == Probe("cuda-tile", False, "not installed", doctor.INSTALL)


# CUDA_HOME (measured.md 7) ------------------------------------------------------------------------


def toolkit(folder: Path, version: str) -> Path:
    folder.mkdir()
    (folder / "version.json").write_text(f'{{"cuda": {{"name": "CUDA SDK", "version": "{version}"}}}}')
    return folder


def test_another_toolkit_is_fatal_for_a_system_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    system_tool(monkeypatch)
    probe = doctor.cuda_home({"CUDA_HOME": str(toolkit(tmp_path / "cuda", "12.4.1"))})
    assert probe.ok is False and "CUDA 12.4" in probe.detail
    assert probe.fix.startswith("unset CUDA_HOME, or pip install")


def test_another_toolkit_is_harmless_for_the_pip_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    system_tool(monkeypatch, from_pip=True)
    probe = doctor.cuda_home({"CUDA_PATH": str(toolkit(tmp_path / "cuda", "12.4.1"))})
    assert probe.ok and "harmless" in probe.detail


def test_the_compilers_own_toolkit_is_fine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    system_tool(monkeypatch)
    assert doctor.cuda_home({"CUDA_HOME": str(toolkit(tmp_path / "cuda", "13.4.92"))}).ok
    assert doctor.cuda_home({}).ok is None


def test_a_toolkit_without_version_file_is_asked(tmp_path: Path) -> None:
    nvcc = tmp_path / "bin" / "nvcc"
    nvcc.parent.mkdir()
    nvcc.write_text("#!/bin/sh\necho 'Cuda compilation tools, release 12.8, V12.8.61'\n")
    nvcc.chmod(nvcc.stat().st_mode | stat.S_IXUSR)
    assert doctor.toolkit_version(tmp_path) == (12, 8)
    assert doctor.toolkit_version(tmp_path / "nothing") is None


# The GPU ------------------------------------------------------------------------------------------


def test_a_gpu_that_the_compiler_does_not_know() -> None:
    probe = doctor.gpu_found(OLD, {})
    assert probe.ok is False and "sm_75" in probe.detail and "sm_80" in probe.fix


def test_hidden_gpus_are_said() -> None:
    assert "CUDA_VISIBLE_DEVICES=-1" in doctor.gpu_found(None, {"CUDA_VISIBLE_DEVICES": "-1"}).detail


@pytest.mark.parametrize(
    ("gpu", "version", "ok"),
    [(H200, "580.95.05", True), (H200, "570.10", False), (H200, None, True), (OLD, None, False)],
)
def test_the_driver_is_r580_or_newer(gpu: Gpu, version: str | None, ok: bool) -> None:
    probe = doctor.driver(gpu, version)
    assert probe.ok is ok and bool(probe.fix) is not ok


def test_launches_need_the_drivers_bindings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "installed_version", lambda package: None)
    probe = doctor.cuda_bindings(H200)
    assert (probe.ok, probe.required, probe.fix) == (False, False, "pip install cuda-bindings")
    assert "measuring does not yet: cuda-bindings" in doctor.verdict([probe])
    monkeypatch.setattr(doctor, "installed_version", lambda package: "13.2.0")
    assert doctor.cuda_bindings(H200).ok


def test_measuring_needs_a_torch_with_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "installed_version", lambda package: "2.13.0+cpu")
    monkeypatch.setattr(doctor, "torch_cuda", lambda: None)
    built_without = doctor.torch(H200)
    assert built_without.ok is False and not built_without.required
    assert "without CUDA" in built_without.detail
    monkeypatch.setattr(doctor, "torch_cuda", lambda: "13.0")
    assert doctor.torch(H200).ok
    monkeypatch.setattr(doctor, "installed_version", lambda package: None)
    assert doctor.torch(H200).fix == "pip install torch"


def test_the_examination_does_not_import_torch(tmp_path: Path) -> None:
    """Importing it takes seconds; its version file says what is needed."""
    package = tmp_path / "torch"
    package.mkdir()
    (package / "__init__.py").write_text("raise ImportError")
    (package / "version.py").write_text("cuda: Optional[str] = '13.0'\n")
    sys.path.insert(0, str(tmp_path))
    removed = sys.modules.pop("torch", None)
    try:
        assert doctor.torch_cuda() == "13.0"
    finally:
        sys.path.remove(str(tmp_path))
        if removed is not None:
            sys.modules["torch"] = removed


def test_a_machine_that_cannot_measure_yet_says_what_is_missing(here: tuple[Probe, ...]) -> None:
    kept = [probe for probe in here if probe.name not in ("GPU", "driver", "torch")]
    probes = [*kept, doctor.gpu_found(H200, {}), doctor.driver(H200, "550.1"), doctor.torch(H200)]
    assert doctor.healthy(probes)
    assert "measuring does not yet: driver" in doctor.verdict(probes)


# Where things are kept ----------------------------------------------------------------------------


def test_a_place_that_cannot_be_written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("a file, not a directory")
    monkeypatch.setenv("TILEWRIGHT_HOME", str(blocked / "home"))
    probe = doctor.results_store()
    assert probe.ok is False and str(blocked) in probe.detail
    assert "TILEWRIGHT_HOME" in probe.fix


def test_a_store_that_is_no_store(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TILEWRIGHT_HOME", str(tmp_path))
    (tmp_path / "results.db").write_text("not a database, and long enough to be read as one" * 20)
    probe = doctor.results_store()
    assert probe.ok is False and "results.db" in probe.detail


def test_looking_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TILEWRIGHT_HOME", str(tmp_path / "not" / "yet"))
    assert doctor.results_store().ok and doctor.free_disk().ok
    assert os.listdir(tmp_path) == []


def test_a_full_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "FREE_BYTES", 1 << 62)
    probe = doctor.free_disk()
    assert probe.ok is False and "free at least" in probe.fix


def test_a_cache_that_is_switched_off_is_no_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cutile_private, "cache_directory", lambda: None)
    probe = doctor.cutile_cache()
    assert probe.ok is None and not probe.required


def test_a_missing_disassembler_of_tile_ir_limits_little(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "find_tileiras", lambda: Tool(Path("/opt/cuda/bin/tileiras"), (13, 4), "", False))
    probe = doctor.tileirdisasm()
    assert probe.ok is False and not probe.required
    assert probe.detail.startswith("tileirdisasm cannot be started (")
    assert "tileirdisasm does not work" in doctor.verdict([probe])


def test_the_errors_that_mean_no_compiler_are_findings(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> Tool:
        raise CompilerMissing("tileiras is not installed")

    monkeypatch.setattr(toolchain, "find_tileiras", missing)
    found = doctor.examine(environ={"CUDA_HOME": "/nowhere"}, find_gpu=lambda: None)
    assert [probe.name for probe in found if probe.ok is False][:1] == ["tileiras"]
    assert not doctor.healthy(found)
