"""The cuTile seam: signatures as a launch makes them, cuda-tile's own cache, and what happens with another version."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import cuda.tile as ct
import pytest
from cuda.tile import _bytecode, _compile, compilation

from tilewright.compile.compile import Unit, launch_of
from tilewright.hardware.architectures import default_board
from tilewright.languages import language_of
from tilewright.languages.base import Lowered
from tilewright.languages.cutile import cutile, private
from tilewright.languages.cutile.cutile import DTYPES, CuTile, bytecode_version, compiler_failure, signature_of
from tilewright.languages.cutile.toolchain import Tool as Compiler
from tilewright.languages.cutile.toolchain import find_tileiras
from tilewright.records import Built, Configuration, Failed
from tilewright.task.loading import load_task
from tilewright.task.task import Launch
from tilewright.task.tensors import ITEM_BYTES, ArraySpec
from tilewright.tools.child import Finished

CONFIG = Configuration.of({"TILE": 16})
EXAMPLES = Path(__file__).parents[2] / "examples"


@ct.kernel
def probe(x, y, a, b, c: ct.Constant[int]):
    ct.store(y, (0,), ct.full((1,), a + b + c, ct.float32))


@ct.kernel
def copy(x, y, TILE: ct.Constant[int]):
    ct.store(y, (ct.bid(0), 0), ct.load(x, (ct.bid(0), 0), (1, TILE)))


def spec(shape: tuple[int, ...], dtype: str = "bfloat16", name: str = "x") -> ArraySpec:
    return ArraySpec(name, shape, dtype)


def signature(x: ArraySpec) -> Any:
    return signature_of(probe, (x, spec((33,), "float32", "y"), 1, 1.5, 3))


def without_shapes(signed: Any) -> str:
    """The symbol of convention v1, which cannot say that an extent is known."""
    parameters = []
    for one in signed.parameters:
        if isinstance(one, compilation.ArrayConstraint):
            fields = {name: getattr(one, name) for name in one.__dataclass_fields__}
            one = compilation.ArrayConstraint(
                fields.pop("dtype"), fields.pop("ndim"), **fields | {"shape_constant": None}
            )
        parameters.append(one)
    v1 = compilation.CallingConvention.cutile_python_v1()
    return str(compilation.KernelSignature(parameters, v1).with_mangled_symbol("probe").symbol)


@pytest.mark.parametrize(
    ("shape", "observed"),
    [
        ((4096, 4096), "A2bf16_1v8l0_2t1_3i16_p16"),
        ((4095, 4097), "A2bf16_1l0_2t1_p16"),
        ((1, 128), "A2bf16_1v8l0_2i16t1_p16"),
        ((128, 1), "A2bf16_1i16_3t1_p16"),
        ((1, 1), "A2bf16_3t1_p16"),
        ((16, 8), "A2bf16_1i16v8l0_2t1_p16"),
        ((8, 24), "A2bf16_1v8l0_2t1_p16"),
        ((1000, 3001), "A2bf16_1l0_2t1_p16"),
    ],
)
def test_signatures_are_those_of_a_launch(shape: tuple[int, ...], observed: str) -> None:
    """Symbols observed on an H200 with `KernelSignature.from_kernel_args`, convention v1, cuda-tile 1.7.0."""
    assert without_shapes(signature(spec(shape))) == f"probe_Kt1_{observed}_A1f32_1t1_p16_Si32_Sf32_I3"


def test_a_signature_of_an_8_bit_tensor_is_that_of_a_launch() -> None:
    """Observed as above: 16 bytes are 16 elements."""
    symbol = without_shapes(signature(spec((4, 4, 4), "float8_e4m3fn")))
    assert symbol.startswith("probe_Kt1_A3f8m3fn_1v16_3l0_4t1_p16_")


@pytest.mark.parametrize(
    ("shape", "strides", "offset", "observed"),
    [
        ((32, 64), (1, 32), 0, "A2f32_1t1_2v4l0_3i16_p16"),
        ((32, 64), (64, 2), 0, "A2f32_1v4_3i16l0_p16i"),
        ((32, 64), (88, 1), 0, "A2f32_1v4l0_2t1_3i16_p16"),
        ((32, 64), (65, 1), 0, "A2f32_1l0_2t1_3i16_p16"),
        ((32, 64), (0, 1), 0, "A2f32_1v4l0_2t1_3i16_p16i"),
        ((64, 64), (1, 1), 0, "A2f32_3i16t1_p16i"),
        ((2, 3), (3, 2), 0, "A2f32_3l0_p16i"),
        ((1, 64), (0, 1), 0, "A2f32_1s1v4l0_2i16t1_p16i"),
        ((64,), (1,), 4, "A1f32_1i16t1"),
        ((64,), (1,), 16, "A1f32_1i16t1_p16"),
        ((4, 8, 16), (128, 1, 8), 8, "A3f32_2t1_4i16_5v4l0"),
    ],
)
def test_signatures_of_views_are_those_of_a_launch(
    shape: tuple[int, ...], strides: tuple[int, ...], offset: int, observed: str
) -> None:
    """Symbols observed with `KernelSignature.from_kernel_args` on arrays at made-up addresses, cuda-tile 1.7.0."""
    symbol = signature(ArraySpec("x", shape, "float32", strides, offset)).symbol
    assert symbol.split("_", 2)[2] == f"{observed}_A1f32_1t1_p16_Si32_Sf32_I3"


def test_the_convention_follows_the_extents_that_are_constants() -> None:
    """An extent of 1 is a constant of the signature, which takes convention v2 (observed with `ct.launch`)."""
    assert signature(spec((4096, 4096))).symbol.startswith("probe_Kt1_")
    for shape in ((1, 128), (128, 1), (1, 1)):
        signed = signature(spec(shape))
        assert signed.symbol.startswith("probe_Kt2_")
        assert signed.parameters[0].shape_constant == tuple(1 if extent == 1 else None for extent in shape)


@pytest.mark.parametrize("dtype", ITEM_BYTES)
def test_every_dtype_of_a_task_is_one_of_cutile(dtype: str) -> None:
    assert -(-DTYPES[dtype].bitwidth // 8) == ITEM_BYTES[dtype]
    assert signature(spec((32, 32), dtype)).symbol


def test_the_number_of_arguments_is_checked() -> None:
    with pytest.raises(TypeError, match="the kernel takes 5 arguments, the launch passes 2"):
        signature_of(probe, (spec((4, 4)), 3))


@pytest.mark.parametrize(
    ("value", "letters"), [(1, "Si32"), (1.5, "Sf32"), (True, "Sb"), (2**31 - 1, "Si32")], ids=repr
)
def test_scalars_are_typed_as_a_launch_types_them(value: Any, letters: str) -> None:
    signed = signature_of(probe, (spec((4, 4)), spec((4,), "float32"), value, 1.5, 3))
    assert f"_{letters}" in signed.symbol


def test_a_kernel_is_recognised() -> None:
    assert isinstance(language_of(probe), CuTile)
    assert CuTile().recognises(probe) and not CuTile().recognises(print)


# Compiling without a launch


def lowered(shape: tuple[int, ...] = (64, 64), **hints: int) -> Lowered | Failed:
    launch = Launch(copy, (shape[0],), (spec(shape), spec(shape, name="y"), 16))
    return CuTile().lower(launch, hints, CONFIG, "sm_90")


def built(**hints: int) -> Built:
    low = lowered(**hints)
    assert isinstance(low, Lowered)
    one = CuTile().assemble(low, 30)
    assert isinstance(one, Built), one
    return one


def test_equal_work_has_equal_identity() -> None:
    one, same, other = lowered(), lowered(), lowered((65, 64))
    assert isinstance(one, Lowered) and isinstance(same, Lowered) and isinstance(other, Lowered)
    assert one.identity == same.identity != other.identity
    hinted = lowered(opt_level=1)
    assert isinstance(hinted, Lowered)
    assert hinted.options == (("opt_level", 1),) and hinted.identity != one.identity


def test_an_unknown_hint_is_that_candidates_failure() -> None:
    for hints in ({"num_ctas": 3}, {"num_worker_warps": 5}, {"no_such_hint": 1}):
        failed = lowered(**hints)
        assert isinstance(failed, Failed) and failed.stage == "front end"
        assert "\n" not in failed.reason


def test_what_is_built_says_how() -> None:
    one = built()
    assert one.symbol.startswith("copy_Kt1_")
    assert one.symbol.encode() in one.cubin
    assert one.seconds > 0
    assert one.arch == "sm_90"
    assert any(remark.file.endswith("test_cutile.py") for remark in one.remarks), one.remarks


# cuda-tile's own disk cache

CACHED = """
    import io, json, sqlite3, sys
    import cuda.tile as ct
    from cuda.tile import _compile, compilation
    from tilewright.languages.cutile.cutile import CuTile, signature_of
    from tilewright.records import Configuration
    from tilewright.task.task import Launch
    from tilewright.task.tensors import ArraySpec
    sys.path.insert(0, {folder!r})
    from kernels_of_cache import copy, unoptimised

    started = []
    def count(event, args):
        if event == "subprocess.Popen" and "-o" in args[1]:
            started.append([str(word) for word in args[1]])
    sys.addaudithook(count)
    def compilers():
        return [command for command in started if "/probe" not in command[1] and "probe1" not in command[1]]

    language = CuTile()
    args = (ArraySpec("x", {shape}, "bfloat16"), ArraySpec("y", {shape}, "bfloat16"), 16)
    launch = Launch({kernel}, (64,), args)
    hints = {hints}
    def ours():
        return language.assemble(language.lower(launch, hints, Configuration.of({{}}), "sm_90"), 30)
    def theirs():
        out = io.BytesIO()
        kernel = launch.kernel.replace_hints(**hints)
        compilation.export_kernel(kernel, [signature_of(kernel, args)], out, gpu_code="sm_90", output_format="cubin")
        return out.getvalue()
    def keys():
        return [key for (key,) in sqlite3.connect({cache!r} + "/cache.db").execute("SELECT key FROM cache")]
"""

KERNELS = """
import cuda.tile as ct
@ct.kernel
def copy(x, y, TILE: ct.Constant[int]):
    ct.store(y, (ct.bid(0), 0), ct.load(x, (ct.bid(0), 0), (1, TILE)))
@ct.kernel(opt_level=1)
def unoptimised(x, y, TILE: ct.Constant[int]):
    ct.store(y, (ct.bid(0), 0), ct.load(x, (ct.bid(0), 0), (1, TILE)))
"""

CASES = [("copy", {}, (64, 64)), ("copy", {"occupancy": 2, "opt_level": 2}, (64, 1)), ("unoptimised", {}, (60, 33))]


def in_subprocess(script: str, tmp_path: Path, case: tuple[str, dict[str, int], tuple[int, ...]]) -> Any:
    """What the script prints as JSON; with a cache directory of its own, and no torch."""
    (tmp_path / "kernels_of_cache.py").write_text(KERNELS)
    kernel, hints, shape = case
    cache = tmp_path / "cache"
    head = textwrap.dedent(CACHED).format(
        folder=str(tmp_path), cache=str(cache), kernel=kernel, hints=hints, shape=shape
    )
    code = 'import sys\nsys.modules["torch"] = None\n' + head + textwrap.dedent(script)
    env = os.environ | {
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        "CUDA_TILE_CACHE_DIR": str(cache),
    }
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_our_key_is_the_one_that_cuda_tile_stores_under(tmp_path: Path, case: Any) -> None:
    """Also under hints, and with an optimisation level that the kernel's decoration sets."""
    script = """
        mine = ours()
        before = len(compilers())
        cubin = theirs()
        print(json.dumps([mine.cache_key, keys(), len(compilers()) - before, mine.cubin == cubin]))
    """
    key, keys, compilers, same = in_subprocess(script, tmp_path, case)
    assert keys == [key]
    assert compilers == 1, "the audit hook sees cuda-tile's compiler"
    assert same, "and the cubin is the same to the byte"


@pytest.mark.parametrize("case", CASES[:2], ids=str)
def test_what_is_remembered_is_not_compiled_again(tmp_path: Path, case: Any) -> None:
    """trust.md 33: shared by content hash."""
    script = """
        mine = ours()
        stored = language.remember([mine])
        before = len(compilers())
        cubin = theirs()
        print(json.dumps([stored, before, len(compilers()) - before, mine.cubin == cubin, keys() == [mine.cache_key]]))
    """
    assert in_subprocess(script, tmp_path, case) == [1, 1, 0, True, True]


def test_remembering_twice_stores_once(tmp_path: Path) -> None:
    script = """
        mine = ours()
        stored = language.remember([mine, mine])
        print(json.dumps([stored, len(keys())]))
    """
    assert in_subprocess(script, tmp_path, CASES[0]) == [2, 1]


def test_code_with_preview_features_has_no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """A launch compiles it with other options and libraries, which are in cuda-tile's own key."""
    monkeypatch.setattr(private, "cache_directory", lambda: "/nowhere")
    with _bytecode.write_bytecode(0, code := bytearray(), _bytecode.BytecodeVersion.V_13_4):
        pass
    assert private.cache_key(find_tileiras(), "sm_90", 3, bytes(code)) is not None
    _bytecode.patch_header_preview_flag(code, _bytecode.BytecodeVersion.V_13_4)
    assert private.cache_key(find_tileiras(), "sm_90", 3, bytes(code)) is None


# The front end's IR is made once for all hints


@pytest.mark.parametrize("known", [True, False], ids=["known version", "another version"])
def test_bytecode_of_shared_ir_is_what_cuda_tile_exports(known: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Byte for byte, for each set of hints, and also if the hints come back."""
    if not known:
        monkeypatch.setattr(private, "KNOWN", ("9.9.",))
    task = load_task(str(EXAMPLES / "matmul.py"))
    workload, board = task.workload("4096"), default_board("sm_90")
    cutile._EXPORTED.clear()
    made: list[object] = []
    run = _compile.hir2ir
    monkeypatch.setattr(_compile, "hir2ir", lambda *given: (made.append(given), run(*given)))
    config, hints = task.space.shipped, [{}, {"occupancy": 2}, {"num_ctas": 2, "num_worker_warps": 8}, {"occupancy": 1}]
    codes = []
    for each in (*hints, hints[0]):
        unit = Unit(workload, Configuration.of({**config, **each}), board)
        launch, given = launch_of(task, unit)
        lowered = CuTile().lower(launch, given, unit.configuration, "sm_90")
        assert isinstance(lowered, Lowered)
        out, version = io.BytesIO(), bytecode_version(find_tileiras())
        codes.append(lowered.code)
        count = len(made)
        compilation.export_kernel(
            launch.kernel.replace_hints(**given), [signature_of(launch.kernel, launch.args)], out, gpu_code="sm_90",
            output_format="tileir_bytecode", bytecode_version=version,
        )  # fmt: skip
        assert lowered.code == out.getvalue()
        del made[count:]
    assert len(set(codes)) == len(hints)
    assert len(made) == (1 if known else len(hints))


# Another version of cuda-tile


def test_another_version_still_compiles_and_leaves_the_cache_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(private, "KNOWN", ("9.9.",))
    assert not private.is_known()
    one = built()
    assert one.cache_key is None
    assert CuTile().remember([one]) == 0
    assert private.store([one]) == 0


def test_a_cache_that_is_switched_off_is_left_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(private, "cache_directory", lambda: None)
    one = built()
    assert one.cache_key is None
    assert private.store([one]) == 0


def test_the_installed_version_is_known() -> None:
    assert private.is_known(), f"the installed cuda-tile is not among {private.KNOWN}"


# What the compiler says


@pytest.mark.parametrize(
    ("returncode", "stderr", "failed"),
    [
        (-11, "anything", Failed("tool", "tileiras was killed by signal 11 (Segmentation fault)")),
        (-9, "", Failed("tool", "tileiras was killed by signal 9 (Killed)")),
        (1, "", Failed("tool", "tileiras returned 1: nothing on standard error")),
        (1, "\n\n  what it said\n", Failed("tool", "tileiras returned 1: what it said")),
        (1, "a note\nerror: the first\nerror: the second", Failed("compile", "tileiras returned 1: the first")),
        (1, 'loc("k"("/a/b/ops.py":7:3)): error: too much shared memory',
         Failed("compile", "ops.py:7: too much shared memory")),
    ],
)  # fmt: skip
def test_the_compilers_message_is_one_line(returncode: int, stderr: str, failed: Failed) -> None:
    assert compiler_failure(Finished(returncode, "", stderr)) == failed


def test_return_code_5_points_at_the_toolkit(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CUDA_HOME", "CUDA_PATH"):
        monkeypatch.delenv(name, raising=False)
    assert "unset" not in compiler_failure(Finished(5, "", "error: failed to invoke ptxas")).reason
    monkeypatch.setenv("CUDA_HOME", "/opt/cuda-12")
    failed = compiler_failure(Finished(5, "", "error: failed to invoke ptxas"))
    assert failed.stage == "tool" and "CUDA_HOME=/opt/cuda-12 may hold another toolkit version" in failed.reason


WRITTEN = [((13, 5), "13.4"), ((13, 4), "13.4"), ((13, 2), "13.2"), ((12, 9), None)]


@pytest.mark.parametrize(("compiler", "written"), WRITTEN)
def test_the_bytecode_is_the_newest_that_cuda_tile_writes_and_the_compiler_reads(
    compiler: tuple[int, int], written: str | None
) -> None:
    assert bytecode_version(Compiler(Path("tileiras"), compiler, "", True)) == written
