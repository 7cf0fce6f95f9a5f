"""Cubins compiled here by tileiras, for each architecture, read back."""

from __future__ import annotations

import functools
import io
import random
import re
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import cuda.tile as ct
import pytest
from cuda.tile import compilation

from tilewright import errors
from tilewright.machine_code import cubin as machine_code
from tilewright.machine_code import elf
from tilewright.machine_code.cubin import MachineCodeError
from tilewright.records import MachineCode

Const = ct.Constant[int]


@ct.kernel
def matmul(A, B, C, TM: Const, TN: Const, TK: Const):
    i, j = ct.bid(0), ct.bid(1)
    total = ct.zeros((TM, TN), ct.float32)
    for k in range(ct.cdiv(A.shape[1], TK)):
        a = ct.load(A, (i, k), (TM, TK), padding_mode=ct.PaddingMode.ZERO)  # remark: load of a
        b = ct.load(B, (k, j), (TK, TN), padding_mode=ct.PaddingMode.ZERO)
        total = ct.mma(a, b, total)  # remark: product
    ct.store(C, (i, j), total.astype(C.dtype))  # remark: store


@ct.kernel
def double(X, Y, T: Const):
    row, columns = ct.bid(0), ct.arange(T, dtype=ct.int32)
    ct.scatter(Y, (row, columns), ct.gather(X, (row, columns)) * 2)


@ct.kernel
def twice_under_another_name(X, Y, T: Const):
    row, columns = ct.bid(0), ct.arange(T, dtype=ct.int32)
    ct.scatter(Y, (row, columns), ct.gather(X, (row, columns)) * 2)


@ct.kernel
def copy(X, Y, T: Const):
    ct.store(Y, (ct.bid(0), 0), ct.load(X, (ct.bid(0), 0), (1, T)))


@ct.kernel
def copy_under_another_name(X, Y, T: Const):
    ct.store(Y, (ct.bid(0), 0), ct.load(X, (ct.bid(0), 0), (1, T)))


def array(dtype: Any) -> compilation.ArrayConstraint:
    """A row-major matrix, aligned like the output of an allocator."""
    return compilation.ArrayConstraint(
        dtype,
        2,
        index_dtype=ct.int32,
        stride_lower_bound_incl=0,
        alias_groups=(),
        may_alias_internally=False,
        stride_constant=(None, 1),
        stride_divisible_by=(8, 1),
        shape_divisible_by=(16, 16),
        base_addr_divisible_by=16,
    )


def export(kernel: Any, parameters: list[Any], arch: str, output_format: str = "cubin", **hints: int) -> bytes:
    signature = compilation.KernelSignature(parameters, compilation.CallingConvention.cutile_python_v1())
    output = io.BytesIO()
    hinted = kernel.replace_hints(**hints) if hints else kernel
    compilation.export_kernel(hinted, [signature], output, gpu_code=arch, output_format=output_format)
    return output.getvalue()


@functools.cache
def product(arch: str, tile: tuple[int, int, int] = (128, 128, 64), dtype: Any = ct.bfloat16, **hints: int) -> bytes:
    inputs, output = array(dtype), array(ct.bfloat16)
    return export(matmul, [inputs, inputs, output, *tile], arch, **hints)


@functools.cache
def rowwise(kernel: Any, arch: str) -> bytes:
    return export(kernel, [array(ct.bfloat16), array(ct.bfloat16), 1024], arch)


@functools.cache
def code_of(cubin: bytes) -> MachineCode:
    return machine_code.read(cubin)


def fingerprint(cubin: bytes) -> str:
    """The hash of a cubin's code; raises where it cannot be read."""
    (header,) = machine_code.headers([cubin])
    if isinstance(header, MachineCodeError):
        raise header
    return header.code_hash


FP8 = {"tile": (64, 64, 64), "dtype": ct.float8_e4m3fn}
SPILLING = (128, 256, 64)


def test_read_all_keeps_the_order_and_equals_read() -> None:
    cubins = [product("sm_90"), b"broken", product("sm_100"), rowwise(double, "sm_90")]
    outcomes = machine_code.read_all(cubins)
    assert isinstance(outcomes[1], MachineCodeError)
    assert [outcomes[0], outcomes[2], outcomes[3]] == [code_of(cubins[0]), code_of(cubins[2]), code_of(cubins[3])]


@pytest.mark.parametrize(
    ("arch", "options", "path"),
    [
        ("sm_80", {}, "HMMA"),
        ("sm_90", {}, "HGMMA"),
        ("sm_90", FP8, "QGMMA"),
        ("sm_90", {"tile": (32, 32, 32)}, "HMMA"),
        ("sm_100", {}, "UTCMMA"),
        ("sm_100", FP8, "UTCMMA"),
        ("sm_120", {}, "HMMA"),
        ("sm_120", FP8, "QMMA"),
    ],
)
def test_tensor_path(arch: str, options: dict[str, Any], path: str) -> None:
    code = code_of(product(arch, **options))
    assert code.tensor_path == path
    assert code.tensor_instructions > 0
    assert code.sm == int(arch.removeprefix("sm_"))
    assert code.symbol.startswith("matmul_")


@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "sm_100", "sm_120"])
def test_an_elementwise_kernel(arch: str) -> None:
    code = code_of(rowwise(double, arch))
    assert (code.tensor_path, code.tensor_instructions) == ("none", 0)
    assert code.copies == {"LDG.128": 1, "STG.128": 1}
    assert (code.threads, code.cluster, code.shared_bytes, code.stack_bytes) == (128, 1, 0, 0)
    assert 8 <= code.registers < 64


@pytest.mark.parametrize(("arch", "capability"), [("sm_86", 86), ("sm_103", 103), ("sm_110", 110), ("sm_121", 121)])
def test_the_architecture(arch: str, capability: int) -> None:
    assert elf.parse(rowwise(double, arch)).sm == capability


def test_spills() -> None:
    """measured.md 2: seen on the H200 as nine times slower."""
    spilling, clean = code_of(product("sm_90", SPILLING)), code_of(product("sm_90"))
    assert spilling.local_stores > 100
    assert spilling.local_loads > 100
    assert spilling.registers == 255
    assert 1700 < spilling.stack_bytes < 1900
    assert (clean.local_stores, clean.local_loads, clean.stack_bytes) == (0, 0, 0)


def test_copies() -> None:
    assert code_of(product("sm_90")).copies["UTMALDG.2D"] >= 2
    assert "UTMALDG.2D.MULTICAST" not in code_of(product("sm_90")).copies
    assert code_of(product("sm_90", num_ctas=2)).copies["UTMALDG.2D.MULTICAST"] > 0
    assert code_of(product("sm_80")).copies["LDGSTS.128"] > 8
    assert code_of(product("sm_100")).copies["LDTM.x8"] > 0


@pytest.mark.parametrize("arch", ["sm_90", "sm_100"])
def test_cluster_and_threads(arch: str) -> None:
    assert (code_of(product(arch)).cluster, code_of(product(arch)).threads) == (1, 256)
    assert code_of(product(arch, num_ctas=2)).cluster == 2
    assert code_of(product(arch, num_worker_warps=8)).threads == 384
    assert code_of(product("sm_80")).threads == 128


@pytest.mark.parametrize(
    ("opcode", "kind"),
    [
        ("LDG.E", "LDG.32"),
        ("LDG.E.U16.CONSTANT", "LDG.16"),
        ("LDG.E.64", "LDG.64"),
        ("STS.U8", "STS.8"),
        ("LDGSTS.E.BYPASS.LTC128B.64", "LDGSTS.64"),
        ("LDSM.16.MT88.4", "LDSM.128"),
        ("LDSM.16.M88", "LDSM.32"),
        ("LDSM.8.MT1616.2", "LDSM.128"),
        ("UTMALDG.2D.MULTICAST.2CTA", "UTMALDG.2D.MULTICAST"),
        ("UTMALDG.2D.2CTA", "UTMALDG.2D"),
        ("UBLKCP.S.G", "UBLKCP"),
        ("LDTM.16dp32bit_t0_t15.x32", "LDTM.x32"),
        ("ATOMG.E.ADD.F32.FTZ.RN.STRONG.GPU", "ATOM"),
        ("REDUX", None),
        ("LDC.64", None),
        ("LDL.64", None),
        ("UTMACCTL.PF", None),
    ],
)
def test_copy_kind(opcode: str, kind: str | None) -> None:
    assert machine_code._copy_kind(opcode) == kind


def test_fma_that_is_called_mma_is_no_tensor_instruction() -> None:
    assert machine_code._tensor_path({"HFMA2.MMA": 7, "UTMACCTL.PF": 3}) == ("none", 0)
    assert machine_code._tensor_path({"HMMA.16816.F32": 7, "UTCHMMA": 4, "UTCQMMA.2CTA": 4}) == ("UTCMMA", 8)


# The hash -----------------------------------------------------------------------------------------


def test_fingerprint_is_the_hash_and_starts_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = code_of(product("sm_90")).code_hash
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: pytest.fail("a process was started"))
    assert fingerprint(product("sm_90")) == expected


def test_a_hint_without_effect_gives_the_same_hash_and_one_with_effect_another() -> None:
    """cutile-facts 7.1."""
    plain, hinted = product("sm_90"), product("sm_90", occupancy=1)
    assert plain != hinted
    assert fingerprint(plain) == fingerprint(hinted)
    assert fingerprint(plain) != fingerprint(product("sm_90", num_worker_warps=8))


@pytest.mark.parametrize("pair", [(double, twice_under_another_name), (copy, copy_under_another_name)])
@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "sm_100"])
def test_the_hash_knows_no_names(pair: tuple[Any, Any], arch: str) -> None:
    one, other = (rowwise(kernel, arch) for kernel in pair)
    assert elf.parse(one).kernel.name != elf.parse(other).kernel.name
    assert fingerprint(one) == fingerprint(other)


def changed(cubin: bytes, at: int) -> bytes:
    """The cubin with one bit of the byte at that offset flipped."""
    return cubin[:at] + bytes([cubin[at] ^ 1]) + cubin[at + 1 :]


def test_the_hash_sees_the_instructions_the_constants_and_the_descriptors() -> None:
    cubin = product("sm_100")
    parsed = elf.parse(cubin)
    literals = next(s for s in parsed.sections if s.name.startswith(".nv.constant2."))
    places = [cubin.index(parsed.code()), cubin.rindex(literals.data), cubin.index(parsed.host_code()[-1])]
    hashes = {fingerprint(changed(cubin, place)) for place in places}
    assert len(hashes | {fingerprint(cubin)}) == 4


def test_the_hash_does_not_see_debug_text() -> None:
    cubin = product("sm_90")
    debug = next(s for s in elf.parse(cubin).sections if s.name == ".nv_debug_ptx_txt")
    assert fingerprint(changed(cubin, cubin.index(debug.data))) == fingerprint(cubin)


# nvdisasm -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "sm_100"])
def test_counts_agree_with_plain_nvdisasm_of_the_file(arch: str, tmp_path: Path) -> None:
    cubin = product(arch, SPILLING) if arch == "sm_90" else product(arch)
    (tmp_path / "kernel.cubin").write_bytes(cubin)
    command = [machine_code.find_nvdisasm(), "-c", tmp_path / "kernel.cubin"]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    instructions = re.findall(r"^ +/\*\w{4,}\*/ +(.*?);", text, re.MULTILINE)

    def count(pattern: str) -> int:
        return sum(bool(re.search(pattern, each)) for each in instructions)

    code = code_of(cubin)
    assert code.local_stores == count(r"\bSTL\b")
    assert code.local_loads == count(r"\bLDL\b")
    assert code.tensor_instructions == count(r"\bHG?MMA\.|\bUTCHMMA\b")
    assert code.instructions == len(instructions) - count(r"^NOP\b")
    assert sum(n for kind, n in code.copies.items() if kind.startswith("UTMALDG")) == count(r"\bUTMALDG\b")


def script(path: Path, text: str) -> Path:
    path.write_text("#!/bin/sh\n" + text)
    path.chmod(0o755)
    return path


def test_an_nvdisasm_without_json(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cubins = [product("sm_90", SPILLING), product("sm_100")]
    whole = [code_of(cubin) for cubin in cubins]
    refusal = "echo \"nvdisasm fatal   : Unknown option 'json'\" >&2; exit 1"
    old = script(
        tmp_path / "nvdisasm", f'[ "$1" = -json ] && {{ {refusal}; }}\nexec {machine_code.find_nvdisasm()} "$@"\n'
    )
    monkeypatch.setattr(machine_code, "find_nvdisasm", lambda: old)
    for cubin, known in zip(cubins, whole, strict=True):
        assert machine_code.read(cubin) == replace(known, loops=()), "its text has no places to branch to"


def test_an_nvdisasm_that_fails_leaves_what_the_headers_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cubins = [product("sm_90"), product("sm_90", occupancy=1)]
    whole = [code_of(cubin).known for cubin in cubins]
    broken = script(tmp_path / "nvdisasm", "echo 'nvdisasm fatal : no such architecture' >&2; exit 1\n")
    monkeypatch.setattr(machine_code, "find_nvdisasm", lambda: broken)
    reason = f"on sm_90 code nvdisasm returned 1: nvdisasm fatal : no such architecture; fix: {machine_code.FIX}"
    for outcome, known in zip(machine_code.read_all(cubins), whole, strict=True):
        assert isinstance(outcome, MachineCode) and outcome.unread == reason
        left = {name: value for name, value in outcome.known.items() if value is not None}
        assert {"registers", "shared_bytes", "threads", "code_hash"} <= set(left)
        assert {name for name, value in left.items() if value != known[name]} == {"unread", "instructions"}
        assert left["instructions"] > known["instructions"], "with the padding at the end"


def test_a_missing_nvdisasm_names_the_fix(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine_code, "_places", lambda: iter([Path("/nowhere/nvdisasm")]))
    machine_code.find_nvdisasm.cache_clear()
    try:
        with pytest.raises(errors.CompilerMissing, match="pip install nvidia-cuda-nvdisasm"):
            machine_code.find_nvdisasm()
    finally:
        machine_code.find_nvdisasm.cache_clear()


def test_nvdisasm_of_the_toolkit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bin").mkdir()
    tool = script(tmp_path / "bin" / "nvdisasm", "")
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    assert list(machine_code._places())[-1] == tool


# Cubins of ptxas ----------------------------------------------------------------------------------

ENTRY = """
.visible .entry {name}(.param .u64 p) {bounds}
{{ .reg .u64 %d<2>; .reg .u32 %r<4>;
   ld.param.u64 %d1, [p]; mov.u32 %r1, %tid.x; mov.u32 %r2, buffer; mad.lo.u32 %r2, %r1, 8, %r2;
   st.shared.u32 [%r2], %r1; bar.sync 0; ld.shared.u32 %r3, [%r2+4]; st.global.u32 [%d1], %r3; ret; }}
"""


def assemble(folder: Path, sm: int, *entries: str) -> tuple[bytes, str]:
    """The cubin and what ``ptxas -v`` says of it; the kernels declare 4096 bytes of shared memory."""
    ptxas = machine_code.find_nvdisasm().with_name("ptxas")
    if not ptxas.exists():
        pytest.skip("no ptxas beside nvdisasm")
    source, output = folder / "k.ptx", folder / "k.cubin"
    header = f".version 8.7\n.target sm_{sm}\n.address_size 64\n.shared .align 16 .b8 buffer[4096];\n"
    source.write_text(header + "".join(entries))
    command = [ptxas, "-v", f"-arch=sm_{sm}", source, "-o", output]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    return output.read_bytes(), ran.stderr


@pytest.mark.parametrize("sm", [80, 90, 100, 120])
def test_shared_memory_leaves_out_what_the_driver_reserves(sm: int, tmp_path: Path) -> None:
    cubin, verbose = assemble(tmp_path, sm, ENTRY.format(name="k", bounds=".reqntid 64, 2, 1"))
    assert "4096 bytes smem" in verbose
    launch = machine_code._launch(elf.parse(cubin))
    assert launch["shared_bytes"] == 4096
    assert launch["threads"] == 128
    assert f"Used {launch['registers']} registers" in verbose


def test_threads_of_a_bound_and_of_none(tmp_path: Path) -> None:
    bound, _ = assemble(tmp_path, 90, ENTRY.format(name="k", bounds=".maxntid 96, 2, 1"))
    free, _ = assemble(tmp_path, 90, ENTRY.format(name="k", bounds=""))
    assert [machine_code._launch(elf.parse(cubin))["threads"] for cubin in (bound, free)] == [192, 0]


def test_several_kernels_and_none(tmp_path: Path) -> None:
    two, _ = assemble(tmp_path, 90, *(ENTRY.format(name=name, bounds="") for name in ("one", "two")))
    with pytest.raises(MachineCodeError, match="2 kernels, one is expected: one, two"):
        machine_code.read(two)
    none, _ = assemble(tmp_path, 90)
    with pytest.raises(MachineCodeError, match="no kernel"):
        fingerprint(none)


# Broken input -------------------------------------------------------------------------------------


@pytest.mark.parametrize("cubin", [b"", b"\x7fEL", b"hello", b"\x7fELF", Path("/bin/sh").read_bytes()])
def test_not_a_cubin(cubin: bytes) -> None:
    with pytest.raises(MachineCodeError) as caught:
        machine_code.read(cubin)
    assert "\n" not in str(caught.value)


def test_a_truncated_cubin() -> None:
    cubin = product("sm_100")
    for length in [*range(0, len(cubin), 1013), len(cubin) - 1]:
        with pytest.raises(MachineCodeError):
            fingerprint(cubin[:length])


def test_a_damaged_cubin_raises_nothing_else() -> None:
    """Bytes of the headers, symbols and attributes, which hold the offsets, are overwritten at random."""
    cubin, dice = rowwise(copy, "sm_100"), random.Random(1)
    table = int.from_bytes(cubin[40:48], "little")
    places = [*range(64), *range(64, 0x2000), *range(table, table + 64 * len(elf.parse(cubin).sections))]
    for _ in range(600):
        damaged = bytearray(cubin)
        for _ in range(4):
            damaged[dice.choice(places)] = dice.randrange(256)
        try:
            fingerprint(bytes(damaged))
        except MachineCodeError as error:
            assert "\n" not in str(error)


# Remarks ------------------------------------------------------------------------------------------


def line_of(mark: str) -> int:
    lines = Path(__file__).read_text().splitlines()
    return next(number for number, line in enumerate(lines, 1) if line.endswith(f"# remark: {mark}"))


def remarks_of(tmp_path: Path, arch: str, dtype: Any) -> str:
    bytecode, yaml = tmp_path / "kernel.tileirbc", tmp_path / "remarks.yaml"
    parameters = [array(dtype), array(dtype), array(ct.bfloat16), 64, 64, 64]
    bytecode.write_bytes(export(matmul, parameters, arch, "tileir_bytecode"))
    command = [machine_code.find_nvdisasm().with_name("tileiras"), f"--gpu-name={arch}", bytecode]
    command += ["--remark-format=yaml", "--remarks=all", f"--remarks-output-file={yaml}"]
    subprocess.run([*command, "-o", tmp_path / "kernel.cubin"], check=True, capture_output=True)
    return yaml.read_text()


def test_remarks_of_tileiras(tmp_path: Path) -> None:
    found = machine_code.remarks(remarks_of(tmp_path, "sm_90", ct.bfloat16))
    assert {remark.file for remark in found} == {str(Path(__file__))}
    said = [(remark.line, remark.category, remark.text) for remark in found]
    assert said == sorted(set(said))
    assert (line_of("load of a"), "memory", "TMA Load instruction [64, 64]") in said
    assert (line_of("product"), "tensorcore", "MMA Tensor-core SM90 [64, 64, 16]") in said
    assert (line_of("store"), "memory", "TMA Store instruction [64, 64]") in said


def test_remarks_on_what_failed(tmp_path: Path) -> None:
    """Rows of fp8 with a stride that divides by 8 are too unaligned for TMA."""
    text = remarks_of(tmp_path, "sm_100", ct.float8_e4m3fn)
    found = [remark.text for remark in machine_code.remarks(text) if remark.line == line_of("load of a")]
    assert "failure: Failed to select TMA load instruction: stride not 16-byte aligned" in found


def test_remarks_tolerate_what_they_do_not_know() -> None:
    text = """--- !Missed
Pass:            Tensor-core
Hotness:         3
DebugLoc:        { File: '/a/it's here.py', Line: 7, Column: 2 }
Args:
  - Remark:      Something was missed
  - Novelty:     yes
...
--- !Passed
Pass:            Tensor-core
Args:
  - Remark:      MMA operation successfully optimized to use Tensor Cores
  - Instruction: Tensor-core SM100
  - Shape:       '[256, 128, 16]'
  - NumCTAs:     2
...
"""
    nowhere, missed = machine_code.remarks(text)
    assert (missed.file, missed.line, missed.text) == ("/a/it's here.py", 7, "missed: Something was missed")
    assert (nowhere.file, nowhere.line) == ("", 0)
    assert nowhere.text == "MMA Tensor-core SM100 [256, 128, 16] by 2 CTAs"
    assert machine_code.remarks("") == ()
