"""Launches of cuda-tile itself, on a driver that only writes down what is loaded (`loading_driver.c`): a launch takes
the cubin that was remembered in its process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

triton = pytest.importorskip("triton", reason="the headers of CUDA are in Triton")

KERNEL = """\
import cuda.tile as ct

@ct.kernel
def scale(x, y, TILE: ct.Constant[int]):
    ct.store(y, (ct.bid(0),), ct.load(x, (ct.bid(0),), (TILE,)) * 2)
"""
PROGRAM = """\
import hashlib, json, os, sys
from pathlib import Path
import cuda.tile as ct
import numpy as np
from cuda.tile import _compile
from cuda.tile._cext import default_tile_context
from kernels_of_launch import scale
from tilewright.languages.cutile import private
from tilewright.languages.cutile.cutile import CuTile
from tilewright.records import Configuration
from tilewright.task.task import Launch
from tilewright.task.tensors import ArraySpec

class Array:  # on this driver, every address is on the device
    def __init__(self, size):
        self.memory = np.zeros(size + 64, np.float32)
        address = -(-self.memory.ctypes.data // 256) * 256
        self.__cuda_array_interface__ = {
            "shape": (size,), "typestr": "<f4", "data": (address, False), "version": 3, "strides": None
        }

made = []
run = _compile.hir2ir
_compile.hir2ir = lambda *given: (made.append(given), run(*given))[1]
compilers = []
sys.addaudithook(
    lambda event, args: event == "subprocess.Popen" and "-o" in args[1] and "probe" not in str(args[1])
    and compilers.append(args)
)
language = CuTile()
specs = (ArraySpec("x", (1024,), "float32"), ArraySpec("y", (1024,), "float32"), 256)

def remembered(**hints):
    kernel = scale.replace_hints(**hints)
    built = language.assemble(language.lower(Launch(kernel, (4,), specs), {}, Configuration(()), "sm_90"), 30)
    language.remember([built])
    del made[:], compilers[:]
    return hashlib.sha256(built.cubin).hexdigest()

def launched(kernel, size=1024):
    ct.launch(0, (4,), kernel, (Array(size), Array(size), 256))
    cubins = sorted(Path(os.environ["LOADED"]).iterdir())
    seen = len(made), len(compilers), hashlib.sha256(cubins[-1].read_bytes()).hexdigest()
    del made[:], compilers[:]
    return seen
"""


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the driver."""
    folder = tmp_path_factory.mktemp("driver")
    include = Path(str(triton.__file__)).parent / "backends" / "nvidia" / "include"
    source = Path(__file__).with_name("loading_driver.c")
    subprocess.run(
        ["gcc", "-shared", "-fPIC", "-w", f"-I{include}", str(source), "-o", str(folder / "libcuda.so.1")], check=True
    )
    return folder


def printed(driver: Path, folder: Path, script: str) -> object:
    """What the script prints as JSON, after `PROGRAM`, in a process with a disk cache of its own."""
    (folder / "kernels_of_launch.py").write_text(KERNEL)
    (folder / "loaded").mkdir()
    env = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(folder), os.environ["PYTHONPATH"], *filter(None, sys.path)]),
        "LD_LIBRARY_PATH": str(driver),
        "LOADED": str(folder / "loaded"), "CUDA_TILE_CACHE_DIR": str(folder / "cache"),
    }  # fmt: skip
    command = [sys.executable, "-c", PROGRAM + textwrap.dedent(script)]
    done = subprocess.run(command, capture_output=True, text=True, env=env)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_launch_takes_the_remembered_cubin_without_the_front_end(driver: Path, tmp_path: Path) -> None:
    """Also a launch of another kernel object with the same hints, and each set of hints its own cubin."""
    script = """
        plain, other = remembered(), remembered(occupancy=4, opt_level=1)
        kernels = [scale, scale.replace_hints(), scale.replace_hints(occupancy=4, opt_level=1)]
        seen = [launched(kernel) for kernel in kernels]
        print(json.dumps([plain != other, [[*each[:2], [plain, other].index(each[2])] for each in seen]]))
    """
    assert printed(driver, tmp_path, script) == [True, [[0, 0, 0], [0, 0, 0], [0, 0, 1]]]


def test_what_differs_from_the_remembered_is_compiled(driver: Path, tmp_path: Path) -> None:
    """Another extent, and other hints."""
    script = """
        plain = remembered()
        seen = [launched(scale, 1000), launched(scale.replace_hints(occupancy=2))]
        print(json.dumps([[*each[:2], each[2] == plain] for each in seen]))
    """
    assert printed(driver, tmp_path, script) == [[1, 1, False]] * 2


def test_a_log_of_cuda_tile_has_the_kernel(driver: Path, tmp_path: Path) -> None:
    """The cubin is in the disk cache, so only the front end runs."""
    script = """
        plain = remembered()
        default_tile_context.config.log_cutile_ir = True
        seen = [launched(scale.replace_hints())]
        default_tile_context.config.log_cutile_ir = False
        seen.append(launched(scale.replace_hints()))
        print(json.dumps([[*each[:2], each[2] == plain] for each in seen]))
    """
    assert printed(driver, tmp_path, script) == [[1, 0, True], [0, 0, True]]


def test_another_version_of_cuda_tile_compiles_by_itself(driver: Path, tmp_path: Path) -> None:
    script = """
        own, private.KNOWN = ct.kernel._compile, ("9.9.",)
        plain = remembered()
        print(json.dumps([ct.kernel._compile is own, launched(scale)[0]]))
    """
    assert printed(driver, tmp_path, script) == [True, 1]
