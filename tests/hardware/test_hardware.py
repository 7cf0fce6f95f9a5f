"""The hardware tables against independent arithmetic and the assembler, and the look-ups."""

from __future__ import annotations

import importlib.util
import pickle
import subprocess
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tilewright.errors import RequestError, UnknownChoice
from tilewright.hardware import executions
from tilewright.hardware.architectures import (
    ARCHITECTURES,
    BOARDS,
    KIB,
    architecture,
    attainable_ctas,
    board,
    board_for_gpu,
    default_board,
)
from tilewright.hardware.boards import ACHIEVABLE_BANDWIDTH, ACHIEVABLE_TFLOPS, NUMBERS
from tilewright.hardware.prediction import predict
from tilewright.printable import plural
from tilewright.records import CodeLoop, MachineCode

TARGETS = [f"sm_{number}" for number in (80, 86, 87, 88, 89, 90, 100, 103, 107, 110, 120, 121)]

FLOP_PER_CLOCK = {
    "A100-40GB": 2048, "A100-80GB": 2048, "A30": 2048, "Jetson AGX Orin": 2048,
    "A10": 1024, "L4": 1024, "L40S": 1024, "RTX PRO 6000 Blackwell": 1024, "GB10": 1024,
    "RTX 3090": 512, "RTX 4090": 512, "RTX 5080": 512, "RTX 5090": 512,
    "H100 SXM": 4096, "H100 PCIe": 4096, "H200": 4096, "GH200": 4096, "H20": 1024,
    "B200": 8192, "GB200": 8192, "B300": 8192, "GB300": 8192, "Jetson Thor": 8192,
}  # fmt: skip
"""Dense bfloat16 FLOP per clock and SM with float32 accumulation, from the architecture papers:
typed here independently of the rates. H20 is Hopper held to a quarter."""

DOCUMENTED = [name for name in BOARDS if "assumed" not in name]


# --- architectures ---------------------------------------------------------------------------


def test_every_target_of_tileiras_has_an_architecture_and_a_board() -> None:
    assert list(ARCHITECTURES) == TARGETS
    for name in TARGETS:
        assert architecture(name).name == name
        assert default_board(name).arch == name


@pytest.mark.parametrize("name", TARGETS)
def test_limits_are_consistent(name: str) -> None:
    arch = ARCHITECTURES[name]
    assert arch.shared_bytes_per_sm - arch.shared_bytes_per_cta == arch.reserved_shared_per_cta
    assert arch.max_ctas_per_sm <= arch.max_warps_per_sm
    assert 1 in arch.clusters and max(arch.clusters) <= 8, "8 is the largest portable cluster"
    assert arch.tma or arch.clusters == (1,)
    assert arch.number == int(name[3:])


@pytest.mark.parametrize("name", TARGETS)
def test_every_value_of_an_architecture_has_a_source(name: str) -> None:
    fields = set(asdict(ARCHITECTURES[name])) - {"name", "sources"}
    assert set(ARCHITECTURES[name].sources) == fields
    assert all(ARCHITECTURES[name].sources.values())


def assumed(sources: Mapping[str, str]) -> set[str]:
    return {name for name, source in sources.items() if source.startswith("assumed")}


def test_what_no_document_states_is_marked_as_assumed() -> None:
    assert "shared_bytes_per_sm" in assumed(ARCHITECTURES["sm_88"].sources)
    assert "registers_per_sm" in assumed(ARCHITECTURES["sm_107"].sources)
    assert not assumed(ARCHITECTURES["sm_90"].sources)
    assert assumed(default_board("sm_88").sources) and assumed(default_board("sm_107").sources)
    assert not assumed(default_board("sm_90").sources)


def test_the_limits_that_a_search_prunes_by() -> None:
    shared = {name: ARCHITECTURES[name].shared_bytes_per_cta // KIB for name in TARGETS}
    assert shared == {
        "sm_80": 163, "sm_86": 99, "sm_87": 163, "sm_88": 99, "sm_89": 99, "sm_90": 227,
        "sm_100": 227, "sm_103": 227, "sm_107": 327, "sm_110": 227, "sm_120": 99, "sm_121": 99,
    }  # fmt: skip
    paths = {name: ARCHITECTURES[name].tensor_path for name in TARGETS}
    assert paths.pop("sm_90") == "HGMMA"
    for name, path in paths.items():
        blackwell_with_tensor_memory = name in ("sm_100", "sm_103", "sm_107", "sm_110")
        assert path == ("UTCMMA" if blackwell_with_tensor_memory else "HMMA")


def _ptxas() -> Path | None:
    package = importlib.util.find_spec("nvidia")
    for folder in (package.submodule_search_locations or []) if package else []:
        for found in Path(folder).glob("cu13/bin/ptxas"):
            return found
    return None


def _accepts(ptxas: Path, target: str, threads: int, ctas: int, folder: Path) -> bool:
    """Whether the assembler believes that ``ctas`` CTAs of ``threads`` threads fit on one SM."""
    source = folder / "k.ptx"
    source.write_text(
        f".version 9.4\n.target {target}\n.address_size 64\n"
        f".visible .entry k() .maxntid {threads},1,1 .minnctapersm {ctas} {{ ret; }}\n"
    )
    command = [str(ptxas), f"-arch={target}", "-o", str(folder / "k.cubin"), str(source)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"this ptxas cannot say: {(done.stdout + done.stderr).splitlines()[0]}")
    return "out of range" not in done.stdout + done.stderr


@pytest.mark.parametrize("name", TARGETS)
def test_ctas_and_warps_per_sm_are_those_of_the_assembler(name: str, tmp_path: Path) -> None:
    ptxas = _ptxas()
    if ptxas is None:
        pytest.skip("nvidia-cuda-nvcc is not installed")
    arch = ARCHITECTURES[name]
    assert _accepts(ptxas, name, 32, arch.max_ctas_per_sm, tmp_path)
    assert not _accepts(ptxas, name, 32, arch.max_ctas_per_sm + 1, tmp_path)
    of_eight_warps = arch.max_warps_per_sm // 8
    assert _accepts(ptxas, name, 256, of_eight_warps, tmp_path)
    assert not _accepts(ptxas, name, 256, of_eight_warps + 1, tmp_path)


# --- boards ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", BOARDS)
def test_every_number_of_a_board_has_a_source(name: str) -> None:
    found = BOARDS[name]
    assert set(NUMBERS) <= set(found.sources)
    assert all(found.sources.values())
    assert bool(found.measured) == ("measured" in found.sources)
    assert found.arch in ARCHITECTURES


def test_no_documented_board_is_missing_from_the_arithmetic() -> None:
    assert set(FLOP_PER_CLOCK) == set(DOCUMENTED)


@pytest.mark.parametrize("name", DOCUMENTED)
def test_tensor_rate_is_sms_times_flop_per_clock_times_clock(name: str) -> None:
    """A sparse rate (twice as high) or another board's SM count fails here."""
    found = BOARDS[name]
    computed = found.sms * FLOP_PER_CLOCK[name] * found.boost_clock_mhz * 1e6 / 1e12
    assert found.tensor_tflops["bfloat16"] == pytest.approx(computed, rel=0.10)


@pytest.mark.parametrize("name", [name for name in DOCUMENTED if name != "H20"])
def test_float32_rate_is_sms_times_cores_times_clock(name: str) -> None:
    """H20 is left out: its stated 44 TFLOP/s is 11 % above what 78 SMs give at 1980 MHz."""
    found = BOARDS[name]
    cores = 64 if found.arch == "sm_80" else 128
    assert found.fp32_tflops == pytest.approx(found.sms * cores * 2 * found.boost_clock_mhz / 1e6, rel=0.04)


@pytest.mark.parametrize("name", BOARDS)
def test_rates_of_the_other_dtypes_follow_the_bfloat16_rate(name: str) -> None:
    rates = BOARDS[name].tensor_tflops
    assert rates["float16"] == rates["bfloat16"]
    assert rates["tfloat32"] == pytest.approx(rates["bfloat16"] / 2, rel=0.02)
    assert ("float8_e4m3fn" in rates) == (int(BOARDS[name].arch[3:]) >= 89)
    if "float8_e4m3fn" in rates:
        ratio = rates["float8_e4m3fn"] / rates["bfloat16"]
        assert min(abs(ratio - 2), abs(ratio - 4)) < 0.03
        assert rates["float8_e5m2"] == rates["float8_e4m3fn"]
    assert ("float4_e2m1fn" in rates) == (int(BOARDS[name].arch[3:]) >= 100)


def test_default_boards_carry_the_right_rates() -> None:
    """Spot checks against the datasheets, typed a second time: dense, GB/s, SMs."""
    seen = {name: (b.sms, b.bandwidth_gbs, b.tensor_tflops["bfloat16"]) for name, b in BOARDS.items()}
    assert seen["A100-80GB"] == (108, 2039, 312)
    assert seen["H200"] == (132, 4800, 989.4)
    assert seen["B200"] == (148, 8000, 2250)
    assert seen["RTX 5090"] == (170, 1792, 209.5)
    assert seen["GB10"] == (48, 273, 125)


def test_rate_of_a_dtype_without_a_tensor_path() -> None:
    a100, rtx = board("A100-80GB"), board("RTX 4090")
    assert a100.tflops("float32") == 19.5
    assert a100.tflops("float8_e4m3fn") == 19.5
    assert a100.tflops("float64") == 19.5
    assert rtx.tflops("float64") == pytest.approx(82.6 / 64)


def test_ridge_is_rate_over_bandwidth() -> None:
    assert board("H200").ridge("bfloat16") == pytest.approx(206.1, abs=0.1)
    assert board("H200").ridge("float32") == pytest.approx(13.9, abs=0.1)


def test_achievable_is_measured_on_h200_and_a_fraction_elsewhere() -> None:
    h200, h100 = board("H200"), board("H100 SXM")
    assert h200.achievable_bandwidth() == 4300
    assert h200.achievable_tflops("bfloat16") == 790
    assert h200.achievable_tflops("float32") == pytest.approx(0.8 * 66.9)
    assert h100.measured == {}
    assert h100.achievable_bandwidth() == pytest.approx(3015)
    assert pytest.approx(4300 / 4800, abs=0.01) == ACHIEVABLE_BANDWIDTH
    assert pytest.approx(790 / 989.4, abs=0.01) == ACHIEVABLE_TFLOPS
    for found in BOARDS.values():
        assert found.achievable_bandwidth() < found.bandwidth_gbs
        assert found.achievable_tflops("bfloat16") < found.tflops("bfloat16")


def test_boards_travel_to_child_processes_and_into_records() -> None:
    for found in BOARDS.values():
        assert pickle.loads(pickle.dumps(found)) == found
        assert asdict(found)["sms"] == found.sms
        assert isinstance(hash(found), int)


# --- looking up ------------------------------------------------------------------------------


def test_unknown_names_list_the_choices() -> None:
    with pytest.raises(UnknownChoice, match=r"unknown architecture 'sm_75'; did you mean '.*'. known: sm_80, .*sm_121"):
        architecture("sm_75")
    with pytest.raises(UnknownChoice, match=r"unknown board 'V100'; known: .*H200"):
        board("V100")


@pytest.mark.parametrize(("given_name", "base"), [("sm_90a", "sm_90"), ("sm_100f", "sm_100"), ("sm_120a", "sm_120")])
def test_a_feature_set_is_answered_with_the_architecture_to_write(given_name: str, base: str) -> None:
    with pytest.raises(RequestError, match=f"write {base}$"):
        architecture(given_name)


GPU_NAMES = [
    ("NVIDIA A100-SXM4-40GB", 108, "A100-40GB"),
    ("NVIDIA A100-PCIE-40GB", 108, "A100-40GB"),
    ("NVIDIA A100-SXM4-80GB", 108, "A100-80GB"),
    ("NVIDIA A100 80GB PCIe", 108, "A100-80GB"),
    ("NVIDIA A10", 72, "A10"),
    ("NVIDIA A30", 56, "A30"),
    ("NVIDIA L4", 58, "L4"),
    ("NVIDIA L40S", 142, "L40S"),
    ("NVIDIA GeForce RTX 3090", 82, "RTX 3090"),
    ("NVIDIA GeForce RTX 4090", 128, "RTX 4090"),
    ("Orin", 16, "Jetson AGX Orin"),
    ("NVIDIA H100 80GB HBM3", 132, "H100 SXM"),
    ("NVIDIA H800", 132, "H100 SXM"),
    ("NVIDIA H100 PCIe", 114, "H100 PCIe"),
    ("NVIDIA H20", 78, "H20"),
    ("NVIDIA H200", 132, "H200"),
    ("NVIDIA GH200 480GB", 132, "GH200"),
    ("NVIDIA B200", 148, "B200"),
    ("NVIDIA GB200", 152, "GB200"),
    ("NVIDIA B300 SXM6 AC", 148, "B300"),
    ("NVIDIA GB300", 152, "GB300"),
    ("NVIDIA Thor", 20, "Jetson Thor"),
    ("NVIDIA GeForce RTX 5080", 84, "RTX 5080"),
    ("NVIDIA GeForce RTX 5090", 170, "RTX 5090"),
    ("NVIDIA RTX PRO 6000 Blackwell Server Edition", 188, "RTX PRO 6000 Blackwell"),
    ("NVIDIA GB10", 48, "GB10"),
]


@pytest.mark.parametrize(("gpu_name", "sms", "expected"), GPU_NAMES)
def test_the_drivers_names_find_their_boards(gpu_name: str, sms: int, expected: str) -> None:
    assert board_for_gpu(gpu_name, sms, 80 * 10**9) is BOARDS[expected]


def test_every_documented_board_has_a_drivers_name() -> None:
    assert {expected for _, _, expected in GPU_NAMES} == set(DOCUMENTED)


def test_a_slice_of_a_board_is_scaled_and_says_so() -> None:
    found = board_for_gpu("NVIDIA H200 MIG 1g.18gb", 16, 18 * 10**9)
    assert found.name == "NVIDIA H200 MIG 1g.18gb"
    assert (found.sms, found.memory_bytes) == (16, 18 * 10**9)
    assert found.tflops("bfloat16") == pytest.approx(989.4 * 16 / 132)
    assert found.bandwidth_gbs == pytest.approx(4800 * 16 / 132)
    assert found.measured == {} and assumed(found.sources)
    assert "16 of 132 SMs" in found.sources["tensor_tflops"]
    assert set(NUMBERS) <= set(found.sources)


def test_an_unknown_gpu_is_scaled_from_its_architectures_board() -> None:
    found = board_for_gpu("NVIDIA GeForce RTX 5070 Ti", 70, 16 * 10**9, arch="sm_120")
    assert found.arch == "sm_120"
    assert found.tflops("bfloat16") == pytest.approx(209.5 * 70 / 170)
    assert assumed(found.sources)
    larger = board_for_gpu("NVIDIA RTX Something", 188, 96 * 10**9, arch="sm_120")
    assert larger.fp32_tflops == pytest.approx(104.8 * 188 / 170)
    assert larger.bandwidth_gbs == 1792, "more SMs do not mean more bandwidth"


def test_a_variant_of_a_known_board_is_an_estimate() -> None:
    assert assumed(board_for_gpu("NVIDIA H100 NVL", 132, 94 * 10**9).sources)
    assert assumed(board_for_gpu("NVIDIA GeForce RTX 5090 Laptop GPU", 82, 24 * 10**9).sources)
    assert assumed(board_for_gpu("NVIDIA GeForce RTX 4090 D", 114, 24 * 10**9).sources)


def test_an_unknown_gpu_without_an_architecture_is_refused() -> None:
    with pytest.raises(UnknownChoice, match="unknown GPU 'Radeon'; known: "):
        board_for_gpu("Radeon", 100, 10**9)
    with pytest.raises(UnknownChoice, match="unknown architecture 'sm_75'"):
        board_for_gpu("Tesla T4", 40, 10**9, arch="sm_75")
    with pytest.raises(RequestError, match="0 SMs"):
        board_for_gpu("NVIDIA H200", 0, 10**9)


# --- contradictions --------------------------------------------------------------------------


@dataclass(frozen=True)
class Resolved:
    """One number that the requirements state wrongly, or twice, and how that is decided."""

    target: str
    """An architecture or a board."""
    field: str
    said: int
    by: str
    right: int
    why: str
    source: str


_K9_SHARED = "K9, shared memory per SM"
_K9_CTAS = "K9, max CTAs/SM, 32 in every column"
_K9_SMS = "K9, SMs (as printed)"

RESOLVED: tuple[Resolved, ...] = (
    Resolved("B200", "sms", 128, _K9_SMS, 148, "148 (the wiki) is what the driver reports",
             "CUDA device properties"),
    Resolved("RTX 5090", "sms", 84, _K9_SMS, 170, "84 is the RTX 5080",
             "NVIDIA RTX Blackwell GPU Architecture whitepaper, appendix"),
    Resolved("A10", "sms", 108, _K9_SMS + ", column sm80/86", 72, "108 is the A100 only",
             "NVIDIA A10 product brief"),
    Resolved("sm_120", "shared_bytes_per_sm", 128 * KIB,
             _K9_SHARED + " (and the Blackwell Tuning Guide)", 100 * KIB,
             "128 KB is L1 cache and shared memory together; CTAs can have 100 of it",
             "CUDA Programming Guide 13; cuda_occupancy.h"),
    Resolved("sm_120", "shared_bytes_per_cta", 128 * KIB, _K9_SHARED, 99 * KIB,
             "one CTA can have 99 KiB: 100 per SM less 1 reserved", "CUDA Programming Guide 13"),
    Resolved("sm_86", "shared_bytes_per_sm", 164 * KIB, _K9_SHARED + ", column sm80/86", 100 * KIB,
             "164 KB is 8.0 (and 8.7) only", "CUDA Programming Guide 13; cuda_occupancy.h"),
    Resolved("sm_86", "max_ctas_per_sm", 32, _K9_CTAS, 16, "32 is 8.0, 9.0, 10.0 and 10.3",
             "cuda_occupancy.h; ptxas 13.4"),
    Resolved("sm_89", "max_ctas_per_sm", 32, _K9_CTAS, 24, "32 is 8.0, 9.0, 10.0 and 10.3",
             "cuda_occupancy.h; ptxas 13.4"),
    Resolved("sm_120", "max_ctas_per_sm", 32, _K9_CTAS + " (and the Blackwell Tuning Guide)", 24,
             "the occupancy calculator and the assembler agree on 24", "cuda_occupancy.h; ptxas 13.4"),
)  # fmt: skip


@pytest.mark.parametrize("entry", RESOLVED, ids=lambda entry: f"{entry.target}.{entry.field}.{entry.said}")
def test_the_tables_hold_the_right_side_of_each_contradiction(entry: Resolved) -> None:
    record = ARCHITECTURES.get(entry.target) or BOARDS[entry.target]
    assert getattr(record, entry.field) == entry.right != entry.said
    assert entry.by and entry.why and entry.source


def test_the_contradictions_that_the_design_asks_for_are_resolved() -> None:
    named = {(entry.target, entry.field) for entry in RESOLVED}
    assert named >= {
        ("B200", "sms"), ("RTX 5090", "sms"),
        ("sm_120", "shared_bytes_per_sm"), ("sm_120", "shared_bytes_per_cta"),
        ("sm_86", "max_ctas_per_sm"), ("sm_89", "max_ctas_per_sm"), ("sm_120", "max_ctas_per_sm"),
    }  # fmt: skip


# --- occupancy -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "registers", "threads", "shared_kib", "ctas", "limited_by"),
    [
        ("sm_90", 128, 256, 0, 2, "registers"),  # 65536 / (128 × 256)
        ("sm_90", 255, 128, 0, 2, "registers"),  # a warp takes 8192: 8 warps fit
        ("sm_90", 255, 160, 0, 1, "registers"),  # 5 warps of the 8
        ("sm_90", 33, 480, 0, 3, "registers"),  # a warp's 1056 round up to 1280: 48 warps fit, not 60
        ("sm_90", 32, 1024, 0, 2, "registers"),
        ("sm_90", 200, 288, 0, 0, "registers"),  # 2 warps in each quarter: 8 of the 9
        ("sm_90", 16, 32, 0, 32, "CTAs"),
        ("sm_86", 16, 32, 0, 16, "CTAs"),
        ("sm_89", 16, 32, 0, 24, "CTAs"),
        ("sm_86", 16, 512, 0, 3, "threads"),  # 48 warps / 16
        ("sm_90", 32, 128, 113, 2, "shared memory"),  # 2 × (113 + 1) = 228
        ("sm_90", 32, 128, 114, 1, "shared memory"),
        ("sm_90", 32, 128, 227, 1, "shared memory"),
        ("sm_120", 32, 128, 49, 2, "shared memory"),  # 2 × 50 = 100, not 128
        ("sm_120", 32, 128, 50, 1, "shared memory"),
        ("sm_107", 32, 128, 240, 1, "shared memory"),
    ],
)
def test_occupancy_worked_by_hand(
    name: str, registers: int, threads: int, shared_kib: int, ctas: int, limited_by: str
) -> None:
    shared = shared_kib * KIB
    found = attainable_ctas(architecture(name), registers=registers, threads=threads, shared_bytes=shared)
    assert found.ctas == ctas and f"{plural(ctas, 'CTA')} per SM, limited by {limited_by} (" in found.why


def test_the_reserved_kibibyte_and_the_granule_of_128_bytes_count() -> None:
    """A fifth of 228 KiB is 46694 bytes, of which 364 granules (46592) can be used, 1024 reserved."""
    sm_90, most = architecture("sm_90"), 46592 - 1024
    fits = attainable_ctas(sm_90, registers=32, threads=32, shared_bytes=most)
    one_more_byte = attainable_ctas(sm_90, registers=32, threads=32, shared_bytes=most + 1)
    assert (fits.ctas, one_more_byte.ctas) == (5, 4)


@pytest.mark.parametrize(
    ("registers", "threads", "shared", "why"),
    [
        (32, 128, 240 * KIB, "shared memory 240 KiB > 227 KiB per CTA"),
        (32, 128, 227 * KIB + 1, "shared memory 227.001 KiB > 227 KiB per CTA"),
        (256, 128, 0, "256 registers > 255 per thread"),
        (32, 1025, 0, "1025 threads > 1024 per CTA"),
    ],
)
def test_a_kernel_that_cannot_be_launched_fits_zero_times(registers: int, threads: int, shared: int, why: str) -> None:
    found = attainable_ctas(architecture("sm_90"), registers=registers, threads=threads, shared_bytes=shared)
    assert (found.ctas, found.why) == (0, why)


@pytest.mark.parametrize("kernel", [(-1, 32, 0), (32, 0, 0), (32, 32, -1)])
def test_impossible_kernels_are_refused(kernel: tuple[int, int, int]) -> None:
    registers, threads, shared = kernel
    with pytest.raises(RequestError, match="no kernel has"):
        attainable_ctas(architecture("sm_90"), registers=registers, threads=threads, shared_bytes=shared)


RESOURCES = {
    "registers": st.integers(0, 300),
    "threads": st.integers(1, 1100),
    "shared_bytes": st.integers(0, 340 * KIB),
}


@given(
    name=st.sampled_from(TARGETS),
    low=st.fixed_dictionaries(RESOURCES),
    more=st.fixed_dictionaries({name: st.integers(0, 200) for name in RESOURCES}),
)
@example(name="sm_90", low={"registers": 255, "threads": 1, "shared_bytes": 0},
         more={"registers": 1, "threads": 0, "shared_bytes": 0})  # fmt: skip
def test_more_of_any_resource_never_raises_occupancy(name: str, low: dict[str, int], more: dict[str, int]) -> None:
    arch = ARCHITECTURES[name]
    before = attainable_ctas(arch, **low)
    assert 0 <= before.ctas <= arch.max_ctas_per_sm
    assert before.why
    for resource, extra in more.items():
        after = attainable_ctas(arch, **{**low, resource: low[resource] + extra})
        assert 0 <= after.ctas <= before.ctas


@given(name=st.sampled_from(TARGETS), kernel=st.fixed_dictionaries(RESOURCES))
def test_what_fits_is_within_the_sm(name: str, kernel: dict[str, int]) -> None:
    """The counted CTAs never need more than an SM has: whole warps, whole kibibyte reserved."""
    arch = ARCHITECTURES[name]
    ctas = attainable_ctas(arch, **kernel).ctas
    warps = -(-kernel["threads"] // 32)
    assert ctas * warps <= arch.max_warps_per_sm
    assert ctas * warps * 32 * kernel["registers"] <= arch.registers_per_sm
    assert ctas * (kernel["shared_bytes"] + KIB) <= arch.shared_bytes_per_sm


def test_the_name_of_a_board_is_no_architecture() -> None:
    with pytest.raises(RequestError, match=r"^'h100' is a GPU model, not an architecture: write sm_90$"):
        architecture("h100")
    with pytest.raises(UnknownChoice):
        architecture("rtx")


def product(copies: dict[str, int], in_loop: dict[str, int], instructions: int) -> MachineCode:
    """The code of a 128×128×64 product in bfloat16 with 8 warps, as Triton 3.9 compiles it for sm_90."""
    loop = CodeLoop(None, {"tensor": 4, "integer": instructions}, in_loop, 262144.0)
    return MachineCode(
        "k", 90, 126, 0, 98304, 256, 1, 0, 0, "HGMMA", 8, copies, 900, "h", mix={"tensor": 8, "integer": 800},
        tensor_flops=524288.0, loops=(loop,),
    )  # fmt: skip


def test_both_forms_of_a_product_stage_their_operands() -> None:
    """Descriptors were predicted slower than pointers: only their operands came from the L2, and the loads of shared
    memory that make a descriptor were taken for values that warps exchange."""
    with_pointers = product(
        {"LDGSTS.128": 24, "LDS.32": 10, "LDSM.128": 8, "STG.128": 8, "STS.128": 8}, {"LDGSTS.128": 8, "LDS.32": 7}, 110
    )
    with_descriptors = product(
        {"ATOM": 3, "LDS.32": 21, "STS.32": 24, "STS.64": 6, "STSM.128": 8, "UTMALDG.2D": 6, "UTMASTG.2D": 1},
        {"UTMALDG.2D": 2}, 70,
    )  # fmt: skip
    shapes = [executions.shape_of(code, (1024,), board("H200")) for code in (with_pointers, with_descriptors)]
    shares = [
        executions.staged_share(code, shape)
        for code, shape in zip((with_pointers, with_descriptors), shapes, strict=True)
    ]
    assert shares[0] == pytest.approx(1 / 128 + 1 / 128)
    assert shares[1] == pytest.approx(shares[0], rel=0.3)
    work = executions.Work(2.0 * 4096**3, 3.0 * 4096**2 * 2, "bfloat16", 4096.0**2 * 2)
    times = [predict(code, (1024,), work, board("H200")).us for code in (with_pointers, with_descriptors)]
    assert times[1] < times[0]
