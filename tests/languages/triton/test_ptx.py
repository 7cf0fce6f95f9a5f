"""The PTX route: the same cubins as `triton.compile`, one line for what fails, and the facts that a launch needs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from tilewright.languages import language_of
from tilewright.languages.base import Lowered
from tilewright.languages.triton import LANGUAGE, ptx
from tilewright.records import Built, Configuration, Failed, LaunchFacts
from tilewright.task.task import Launch
from tilewright.task.tensors import ArraySpec
from tilewright.testing.languages import LanguageContract

pytest.importorskip("triton")

from tests.languages.triton import kernels as given
from tests.languages.triton import triton_compile

NO_KNOBS = Configuration.of({})
SECONDS = 60.0
PTXAS_TRIES = 12
"""The ptxas of triton 3.6 for Blackwell makes one of two cubins of the same PTX (seen with `descriptor_matmul`)."""
ARCHITECTURES = ("sm_80", "sm_90", "sm_100")


def array(name: str, *shape: int, dtype: str = "bfloat16") -> ArraySpec:
    return ArraySpec(name, shape, dtype)


PRODUCT = (array("a", 512, 512), array("b", 512, 512), array("c", 512, 512), 512, 512, 512)
LAUNCHES = {
    "softmax": (Launch(given.softmax, (64,), (array("out", 64, 3000), array("x", 64, 3000), 3000, 3000, 4096)), {}),
    "matmul": (Launch(given.matmul, (4, 8), (*PRODUCT, 128, 64, 32)), {"num_warps": 4, "num_stages": 3}),
    "descriptor_matmul": (Launch(given.descriptor_matmul, (4, 8), (*PRODUCT, 128, 64, 64)), {"num_warps": 8}),
    "scaled": (Launch(given.scaled, (4,), (array("out", 999), array("x", 999), 2.0, 999, 256)), {"maxnreg": 64}),
    "histogram": (
        Launch(given.histogram, (4,), (array("n", 9, dtype="int32"), array("x", 999, dtype="int32"), 999, 256)), {}
    ),
    "until_small": (
        Launch(given.until_small, (1,), (array("o", 9, dtype="float32"), array("x", 9, dtype="float32"), 9, 1024)),
        {"num_warps": 2},
    ),
}  # fmt: skip


def lowered(name: str, arch: str = "sm_90", **hints: int) -> Lowered:
    launch, usual = LAUNCHES[name]
    made = LANGUAGE.lower(launch, {**usual, **hints}, NO_KNOBS, arch)
    assert isinstance(made, Lowered), made
    return made


def built(name: str, arch: str = "sm_90", **hints: int) -> Built | Failed:
    return LANGUAGE.assemble(lowered(name, arch, **hints), SECONDS)


class TestTriton(LanguageContract):
    language = LANGUAGE

    def launch(self) -> Launch:
        return LAUNCHES["softmax"][0]


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Kernel and architecture → SHA-256 of the cubin that `triton.compile` makes, in a process of its own."""
    return triton_compile.hashes(tmp_path_factory.mktemp("triton"))


@pytest.mark.timeout(600)
def test_the_cubins_are_those_of_triton_compile(theirs: dict[str, str]) -> None:
    units = [(name, arch) for name in LAUNCHES for arch in ARCHITECTURES]
    with ThreadPoolExecutor(2) as pool:
        ours = dict(zip(units, pool.map(lambda unit: built(*unit), units), strict=True))
    assert len(theirs) == len(units) == 18
    for (name, arch), made in ours.items():
        assert isinstance(made, Built), made
        expected = theirs[f"{name} {arch}"]
        again = (built(name, arch) for _ in range(PTXAS_TRIES))
        same = (isinstance(each, Built) and triton_compile.digest(each.cubin) == expected for each in again)
        assert triton_compile.digest(made.cubin) == expected or any(same), (name, arch)


@pytest.mark.timeout(900)
@pytest.mark.skipif(
    "TILEWRIGHT_TRITON36" not in os.environ, reason="TILEWRIGHT_TRITON36 names no Python with triton 3.6"
)
def test_the_cubins_are_those_of_triton_compile_in_the_other_version_too() -> None:
    python, root = os.environ["TILEWRIGHT_TRITON36"], Path(__file__).parents[3]
    asked = [python, "-c", "import triton; print(triton.__version__)"]
    assert subprocess.run(asked, check=True, capture_output=True, text=True).stdout.startswith("3.6.")
    here = f"{Path(__file__).relative_to(root)}::{test_the_cubins_are_those_of_triton_compile.__name__}"
    environment = {**os.environ, "PYTHONPATH": str(root / "src")}
    done = subprocess.run(
        [python, "-m", "pytest", "-q", here], env=environment, cwd=root, capture_output=True, text=True
    )
    assert done.returncode == 0 and "1 passed" in done.stdout, done.stdout[-2000:]


def test_the_launch_facts_come_from_the_metadata() -> None:
    made = built("matmul", num_warps=8, num_stages=8)
    assert isinstance(made, Built)
    assert made.facts == LaunchFacts(256, 1, 98304, 0, ((0, 1), (0, 1)))
    descriptors = built("descriptor_matmul")
    assert isinstance(descriptors, Built) and descriptors.facts.scratch == ((384, 128), (0, 1))


def test_ptxas_failing_is_one_line_without_the_ptx() -> None:
    failed = built("descriptor_matmul", arch="sm_90", maxnreg=24)
    assert isinstance(failed, Failed) and failed.stage == "compile" and "\n" not in failed.reason
    assert failed.reason.startswith("ptxas: ") and "register" in failed.reason and len(failed.reason) < 300


def test_scalars_have_the_dtype_that_the_entry_takes() -> None:
    assert lowered("scaled").parameters == ("pointer", "pointer", "float32", "int32")


def test_it_is_recognised_without_importing_triton() -> None:
    assert language_of(given.softmax) is LANGUAGE
    command = "import sys, tilewright.languages as known; list(known.languages()); sys.exit('triton' in sys.modules)"
    source = Path(__file__).parents[3] / "src"
    subprocess.run([sys.executable, "-c", command], check=True,
                   env={**os.environ, "PYTHONPATH": str(source)})  # fmt: skip


def test_nothing_of_it_hashes_triton(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """`triton_key` reads 500 MB. The child is asked too: its own copy raises here."""
    import triton.runtime.cache as cache

    def refused() -> str:
        raise AssertionError("triton_key was computed")

    monkeypatch.setattr(cache, "triton_key", refused)
    child = tmp_path / "child.py"
    text = Path(ptx.child_process.__file__).read_text()
    child.write_text(text + "\nimport triton.runtime.cache as cache\ncache.triton_key = None  # calling it fails\n")
    monkeypatch.setattr(ptx.child_process, "__file__", str(child))
    ptx._process.cache_clear()
    try:
        assert isinstance(built("scaled", num_warps=2), Built)
    finally:
        ptx._process.cache_clear()


def test_options_that_triton_refuses_are_one_line() -> None:
    launch, _ = LAUNCHES["scaled"]
    failed = LANGUAGE.lower(launch, {"num_ctas": 2}, NO_KNOBS, "sm_80")
    assert isinstance(failed, Failed) and "num_ctas > 1 requires NVIDIA SM90+" in failed.reason


def test_equal_code_with_other_options_is_other_work() -> None:
    assert lowered("softmax", num_warps=4).identity != lowered("softmax", num_warps=8).identity
    assert replace(lowered("softmax"), symbol="").identity == lowered("softmax").identity
    assert json.loads(str(dict(lowered("softmax", num_warps=8).options)["num_warps"])) == 8
