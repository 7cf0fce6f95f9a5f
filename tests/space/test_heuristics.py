"""Seeds of nvidia-matmul-heuristics (cutile-facts 12), with the real package where it is installed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tilewright.errors import MachineError, RequestError, UnknownChoice
from tilewright.records import PredictedTime
from tilewright.space import heuristics
from tilewright.space.heuristics import Seed, gpu_name, matmul_seeds, place_seeds, seeds_of
from tilewright.space.space import Space
from tilewright.tools.child import run

installed = pytest.mark.skipif(heuristics.missing() is not None, reason=str(heuristics.missing()))

SPACE = Space(
    constants={"TILE_M": [64, 128], "TILE_N": [64, 128], "TILE_K": [32, 64]},
    hints={"num_ctas": [1, 2]},
    shipped={"TILE_M": 128, "TILE_N": 128, "TILE_K": 64, "num_ctas": 1},
)


@installed
def test_the_proposal_for_a_square_product_on_an_h200() -> None:
    """cutile-facts 12: 256×128×64 in a cluster of two at 156 µs, 128×128×64 at 157 µs."""
    seeds = matmul_seeds(4096, 4096, 4096, "float16", "NVIDIA H200", 8)
    assert len(seeds) == 8
    assert ((256, 128, 64), (1, 2)) in [(seed.tile, seed.cluster) for seed in seeds]
    assert seeds[0].predicted.us == pytest.approx(156, abs=2)
    assert [seed.predicted.us for seed in seeds] == sorted(seed.predicted.us for seed in seeds)


@installed
def test_a_second_query_does_not_crash() -> None:
    """A second interface in one process is a segmentation fault, so each query has its own."""
    first = matmul_seeds(16, 4096, 4096, "bfloat16", "RTX 5090", 4)
    assert matmul_seeds(16, 4096, 4096, "bfloat16", "RTX 5090", 4) == first
    assert heuristics.PACKAGE not in sys.modules


@installed
@pytest.mark.parametrize("dtype", heuristics.PRECISIONS)
@pytest.mark.parametrize("gpu", ["H100", "B200", "A100", "RTX 4090", "RTX 5090"])
def test_seeds_are_powers_of_two_and_placed_as_allowed(dtype: str, gpu: str) -> None:
    """Part 7 check 4, for a source that proposes tiles of 192 and clusters on sm_120."""
    arch = {"H100": 90, "B200": 100, "A100": 80, "RTX 4090": 89, "RTX 5090": 120}[gpu]
    seeds = matmul_seeds(2048, 1024, 4096, dtype, gpu, 6)
    for seed in seeds:
        assert all(size & (size - 1) == 0 for size in (*seed.tile, *seed.cluster))
        assert seed.predicted.us > 0 and gpu in seed.predicted.why
    for config in place_seeds(SPACE, seeds, arch, {}):
        assert SPACE.allows(config, arch, {}) is None


def test_the_readings_of_a_seed() -> None:
    """X-11: one grid element is a cluster, so the model's CTA tile may be shared or multiplied."""
    seed = Seed((256, 128, 64), (1, 2), PredictedTime(156.0, "test"))
    assert [str(point) for point in seed.points()] == [
        "M=256,N=128,K=64,num_ctas=1",
        "M=256,N=128,K=64,num_ctas=2",
        "M=256,N=256,K=64,num_ctas=2",
    ]
    assert len(Seed((64, 64, 64), (1, 1), PredictedTime(1.0, "test")).points()) == 1
    assert len(place_seeds(SPACE, (seed,), 90, {})) == 3
    assert [config.num_ctas for config in place_seeds(SPACE, (seed,), 120, {})] == [1]


def test_a_missing_package_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert "pip install 'tilewright[heuristics]'" in str(heuristics.missing())
    with pytest.raises(MachineError, match=r"is not installed; pip install 'tilewright\[heuristics\]'"):
        matmul_seeds(64, 64, 64, "bfloat16", "H200")


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("kill -SEGV $$", "failed with code -11: no message"),
        ("echo no JSON; echo 'no GPU of that name' >&2; exit 1", "failed with code 1: no GPU of that name"),
        ("sleep 3600", "did not end"),
    ],
)
def test_a_child_that_fails_is_one_clear_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, said: str
) -> None:
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\n{script}\n")
    python.chmod(0o755)
    run(["true"], 5)  # the keeper starts with the real Python
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())
    monkeypatch.setattr(heuristics, "QUERY_SECONDS", 1.0)
    monkeypatch.setattr(sys, "executable", str(python))
    with pytest.raises(MachineError, match=f"nvidia-matmul-heuristics.*{said}"):
        matmul_seeds(64, 64, 64, "bfloat16", "H200")


def test_wrong_requests_name_the_choices() -> None:
    with pytest.raises(UnknownChoice, match="unknown dtype 'float4'; did you mean 'float16'. known: bfloat16"):
        matmul_seeds(64, 64, 64, "float4", "H200")
    with pytest.raises(UnknownChoice, match="unknown GPU of nvidia-matmul-heuristics 'TITAN'; known: H200"):
        matmul_seeds(64, 64, 64, "bfloat16", "TITAN")
    with pytest.raises(RequestError, match="m=0, n=64, k=64, count=8; each must be at least 1"):
        matmul_seeds(0, 64, 64, "bfloat16", "H200")


@installed
def test_seeds_of_a_workload_are_configurations_of_its_space() -> None:
    dims = {"M": 4096, "N": 4096, "K": 4096}
    seeds = seeds_of(SPACE, "heuristics", dims, dtype="bfloat16", gpu="NVIDIA H200", arch=90, kind=lambda: None)
    assert seeds and set(seeds) - set(SPACE.configurations(90, dims))
    assert all(SPACE.allows(config, 90, dims) is None for config in seeds)


def test_seeds_that_cannot_be_given_say_why() -> None:
    of_h200 = {"dtype": "bfloat16", "gpu": "NVIDIA H200", "arch": 90}
    with pytest.raises(UnknownChoice, match="'heuristic'; did you mean 'heuristics'. known: templates, heuristics"):
        seeds_of(SPACE, "heuristic", {}, **of_h200, kind=lambda: None)
    with pytest.raises(RequestError, match="they need the dimensions M, N and K, and the workload has M, rows"):
        seeds_of(SPACE, "heuristics", {"M": 1, "rows": 2}, **of_h200, kind=lambda: None)


@pytest.mark.parametrize(
    ("marketing", "name"),
    [
        ("NVIDIA H200", "H200_SXM"),
        ("NVIDIA H100 80GB HBM3", "H100_SXM"),
        ("NVIDIA H100 PCIe", "H100_PCIE"),
        ("NVIDIA H20", "H20_SXM"),
        ("NVIDIA A100-SXM4-80GB", "A100_SXM_80GB"),
        ("NVIDIA A100-PCIE-40GB", "A100_PCIE_80GB"),
        ("NVIDIA GeForce RTX 5090", "RTX_5090"),
        ("NVIDIA L4", "L4"),
        ("NVIDIA B200", "B200"),
        ("GB300_NVL", "GB300_NVL"),
    ],
)
def test_marketing_names(marketing: str, name: str) -> None:
    assert gpu_name(marketing) == name


def test_importing_does_not_import_the_package() -> None:
    """Style rule 8; the licence is proprietary, so it stays optional."""
    code = "import tilewright.space.heuristics, sys; print('nvMatmulHeuristics' in sys.modules)"
    child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert child.stdout.strip() == "False"
