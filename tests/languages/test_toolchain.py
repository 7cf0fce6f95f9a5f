"""Finding tileiras: the one that cuda-tile itself would start, and one clear line when there is none."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tilewright.errors import CompilerMissing
from tilewright.languages.cutile import toolchain
from tilewright.languages.cutile.cutile import CuTile
from tilewright.languages.cutile.toolchain import Tool, find_tileiras, major_minor


@pytest.fixture(autouse=True)
def _forget() -> Iterator[None]:
    toolchain._found.cache_clear()
    yield
    toolchain._found.cache_clear()


@pytest.fixture
def no_pip(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A machine without the pip packages and without a toolkit."""
    monkeypatch.setattr(toolchain, "_pip_versions", dict)
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    for name in ("CUDA_HOME", "CUDA_PATH"):
        monkeypatch.delenv(name, raising=False)
    if Path("/usr/local/cuda/bin/tileiras").exists():
        pytest.skip("this machine has a toolkit in /usr/local/cuda")


def compiler(folder: Path, says: str = "Cuda compilation tools, release 13.2, V13.2.51") -> Path:
    folder.mkdir(parents=True)
    path = folder / "tileiras"
    path.write_text(f"#!/bin/sh\necho '{says}'\n")
    path.chmod(0o755)
    return path


def test_the_pip_compiler_comes_first(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    other = compiler(tmp_path / "cuda" / "bin")
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "cuda"))
    found = find_tileiras()
    assert found.from_pip and found.path != other
    assert found.version >= (13, 1)
    assert str(found.version[0]) in found.version_text


def test_it_is_the_compiler_that_cuda_tile_starts() -> None:
    """Else the launch would not find our cubins: the compiler's version is part of the cache's key."""
    from cuda.tile import _compile

    found = find_tileiras()
    assert found.path.samefile(_compile._find_compiler_bin().path)
    assert found.version_text == _compile._get_compiler_version_string()


def test_the_pip_compiler_does_not_see_the_machines_toolkit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_HOME", "/opt/cuda-12")
    monkeypatch.setenv("CUDA_PATH", "/opt/cuda-12")
    monkeypatch.setenv("KEPT", "yes")
    pip = Tool(Path("tileiras"), (13, 3), "", from_pip=True).environment()
    own = Tool(Path("tileiras"), (13, 3), "", from_pip=False).environment()
    assert "CUDA_HOME" not in pip and "CUDA_PATH" not in pip and pip["KEPT"] == "yes"
    assert own["CUDA_HOME"] == "/opt/cuda-12"


@pytest.mark.usefixtures("no_pip")
def test_without_pip_the_path_comes_before_cuda_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    home, on_path = compiler(tmp_path / "cuda" / "bin"), compiler(tmp_path / "bin")
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "cuda"))
    assert find_tileiras() == Tool(home, (13, 2), home_says(), from_pip=False)
    toolchain._found.cache_clear()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    assert find_tileiras().path == on_path


def home_says() -> str:
    return "Cuda compilation tools, release 13.2, V13.2.51\n"


@pytest.mark.usefixtures("no_pip")
def test_no_compiler_at_all_is_one_line_with_the_fix() -> None:
    with pytest.raises(CompilerMissing) as caught:
        find_tileiras()
    assert str(caught.value) == (
        "tileiras, the cuTile compiler, is not installed; fix: pip install 'cuda-tile[tileiras]'"
    )
    assert caught.value.exit_code == 3


@pytest.mark.usefixtures("no_pip")
def test_packages_that_disagree_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    versions = dict(zip(toolchain.PIP_PACKAGES, ("13.4.92", "13.4.92", "13.1.5"), strict=True))
    monkeypatch.setattr(toolchain, "_pip_versions", lambda: versions)
    with pytest.raises(CompilerMissing, match=r"packages disagree in version: .*nvidia-nvvm 13\.1\.5") as caught:
        find_tileiras()
    assert "\n" not in str(caught.value)


@pytest.mark.usefixtures("no_pip")
@pytest.mark.parametrize("script", ["exit 1", "kill -SEGV $$"])
def test_a_compiler_that_does_not_run_is_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, script: str) -> None:
    path = compiler(tmp_path / "cuda" / "bin")
    path.write_text(f"#!/bin/sh\n{script}\n")
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "cuda"))
    with pytest.raises(CompilerMissing, match="does not run .*; fix: pip install") as caught:
        find_tileiras()
    assert "\n" not in str(caught.value)


@pytest.mark.usefixtures("no_pip")
@pytest.mark.parametrize(("says", "version"), [("release 13.1, V13.1.80", (13, 1)), ("tileiras 14.0", (14, 0))])
def test_the_version_is_read_from_what_it_says(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, says: str, version: tuple[int, int]
) -> None:
    compiler(tmp_path / "cuda" / "bin", says)
    monkeypatch.setenv("CUDA_PATH", str(tmp_path / "cuda"))
    found = find_tileiras()
    assert found.version == version and found.version_text == says + "\n"


@pytest.mark.usefixtures("no_pip")
@pytest.mark.parametrize("says", ["no number", "\\377\\376\\n"])
def test_a_compiler_that_prints_no_version_is_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, says: str) -> None:
    path = compiler(tmp_path / "cuda" / "bin")
    path.write_text(f"#!/bin/sh\nprintf '{says}'\n")
    monkeypatch.setenv("CUDA_PATH", str(tmp_path / "cuda"))
    with pytest.raises(CompilerMissing, match="prints no version but '.*; fix: pip install") as caught:
        find_tileiras()
    assert "\n" not in str(caught.value)


@pytest.mark.usefixtures("no_pip")
def test_a_compiler_without_its_execute_bit_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = compiler(tmp_path / "cuda" / "bin")
    path.chmod(0o644)
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "cuda"))
    monkeypatch.setattr(toolchain, "_pip_folders", list)
    with pytest.raises(CompilerMissing) as caught:
        find_tileiras()
    assert str(caught.value) == f"tileiras cannot be started (permission denied); fix: chmod +x {path}"


def test_it_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    find_tileiras()
    monkeypatch.setattr(toolchain, "_tool", None)
    assert find_tileiras().from_pip


def test_versions_are_compared_by_major_and_minor() -> None:
    assert major_minor("13.4.92") == major_minor("13.4.1") != major_minor("13.10.0")


def test_the_compiler_is_found_once_while_a_task_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two threads ask for it: the one that began with the task's text, and the one that lowers the first kernel."""
    asked, real = list[str](), toolchain._tool

    def tool(path: Path, from_pip: bool) -> Tool:
        asked.append(threading.current_thread().name)
        return real(path, from_pip)

    monkeypatch.setattr(toolchain, "_tool", tool)
    CuTile().expect("import cuda.tile as ct")
    find_tileiras()
    assert len(asked) == 1
