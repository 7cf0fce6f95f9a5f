"""Triton kernels of a user's program: the arrays that they touch, and Triton's own disk cache."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

triton = pytest.importorskip("triton")

from tests.languages.triton import live_kernels as kernels  # noqa: E402

from tilewright.languages.base import Lowered  # noqa: E402
from tilewright.languages.triton.live import LIVE  # noqa: E402
from tilewright.records import Built, Configuration  # noqa: E402
from tilewright.task.task import Launch  # noqa: E402
from tilewright.task.tensors import ArraySpec, Descriptor  # noqa: E402


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    return tmp_path


def array(name: str, *shape: int) -> ArraySpec:
    return ArraySpec(name, shape or (1024,), "float32")


def launch_of(kernel: Any, *args: Any) -> Launch:
    return Launch(kernel, (4,), args)


def lowered(launch: Launch, **hints: Any) -> Lowered:
    made = LIVE.lower(launch, {"num_warps": 4, **hints}, Configuration(()), "sm_90")
    assert isinstance(made, Lowered), made
    return made


X, Y, Z = array("x"), array("y"), array("z")
TOUCHED: dict[str, tuple[Launch, str, str]] = {
    "a copy": (launch_of(kernels.copied, X, Y, 1000, 256), "x", "y"),
    "in place, and atomics": (launch_of(kernels.counted, X, Y, 256), "xy", "xy"),
    "pointers that a loop carries": (launch_of(kernels.summed, X, Y, 1000, 256), "x", "y"),
    "one of two": (launch_of(kernels.chosen, X, Y, Z, 1, 256), "xy", "z"),
    "descriptors": (
        launch_of(kernels.moved, Descriptor(array("x", 64, 64), [16, 64]), Descriptor(array("y", 64, 64), [16, 64])),
        "x", "y",
    ),
    "inline assembly": (launch_of(kernels.assembly, X, Y, 256), "xy", "xy"),
    "an address in memory": (launch_of(kernels.indirect, replace(X, dtype="int64"), Y, Z, 256), "xyz", "xyz"),
}  # fmt: skip


@pytest.mark.parametrize("case", TOUCHED)
def test_touched(case: str) -> None:
    """More may be said to be touched than is, never less."""
    launch, read, written = TOUCHED[case]
    found = LIVE.touched(lowered(launch), LIVE.arguments(launch))
    assert found == (frozenset(read), frozenset(written))


def test_without_known_parameters_nothing_is_said() -> None:
    launch = TOUCHED["a copy"][0]
    assert LIVE.touched(lowered(launch), LIVE.arguments(launch)[1:]) is None


def test_an_entry_is_stored_once_and_found(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = lowered(launch_of(kernels.copied, X, Y, 1000, 256))
    assert LIVE.found(made) is None
    built = LIVE.assemble(made, 10)
    assert isinstance(built, Built) and {"ttir", "ttgir", "llir", "ptx", "cubin", "json"} <= built.files.keys()
    for _ in range(2):
        assert LIVE.remember([replace(built, cache_key=made.cache_key)]) == 1
    found = LIVE.found(made)
    assert found is not None and (found.cubin, found.facts, found.symbol) == (built.cubin, built.facts, built.symbol)
    assert LIVE.assemble(made, 10) == replace(found, seconds=0.0), "it is not compiled again"
    other = lowered(launch_of(kernels.copied, X, Y, 1000, 256), num_warps=8)
    assert other.cache_key != made.cache_key and LIVE.found(other) is None
    with monkeypatch.context() as patched:
        patched.setattr(triton.knobs.compilation, "always_compile", True)
        assert LIVE.found(made) is None
    next(cache.glob("*/*.cubin")).unlink()
    assert LIVE.found(made) is None, "an entry with a missing file is none"


def test_the_entry_is_the_one_that_triton_writes(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same key, the same files but Triton's first IR, the same metadata and cubin."""
    torch = pytest.importorskip("torch")
    from tests.runtime.triton_on_cpu import on_cpu

    x, y = torch.zeros(1024), torch.zeros(1024)
    with on_cpu({}):
        kernels.copied.warmup(x, y, 1000, 256, num_warps=2, grid=(4,))
    (theirs,) = [folder for folder in cache.iterdir() if list(folder.glob("*.cubin"))]
    expected = {file.name: file.read_bytes() for file in theirs.iterdir() if file.suffix != ".source"}
    monkeypatch.setenv("TRITON_CACHE_DIR", str(cache / "ours"))
    made = lowered(launch_of(kernels.copied, X, Y, 1000, 256), num_warps=2)
    built = LIVE.assemble(made, 10)
    assert isinstance(built, Built) and LIVE.remember([replace(built, cache_key=made.cache_key)]) == 1
    ours = {file.name: file.read_bytes() for file in (cache / "ours" / theirs.name).iterdir()}
    assert ours.keys() == expected.keys() and ours["copied.cubin"] == expected["copied.cubin"]
    assert json.loads(ours["copied.json"]) == json.loads(expected["copied.json"])


def test_the_options_of_a_launch_are_in_the_key() -> None:
    launch = launch_of(kernels.copied, X, Y, 1000, 256)
    assert lowered(launch, enable_fp_fusion=False).cache_key != lowered(launch).cache_key
