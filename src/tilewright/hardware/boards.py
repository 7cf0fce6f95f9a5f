"""The boards: what each GPU product delivers at its peak, as its vendor states it.

Rates are dense (where a datasheet states the rate with structured sparsity, half of it), in
TFLOP/s, or TOP/s for ``int8``. Where a product has two rates for float16, the one that accumulates
in float32 stands here, since tile kernels accumulate so; float8 on the RTX 50 boards is the
exception, because their block-scaled products run at the higher of the two rates. Bandwidth is in
GB/s (10^9 bytes). Every number has its source in `Board.sources`; a source that starts with
"assumed" or "computed" is not a vendor's statement.

`hardware.py` looks boards up; this module only holds them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

GB = 10**9
MIB = 2**20

ACHIEVABLE_BANDWIDTH = 0.90
"""Share of the DRAM peak that a good copy reaches where nothing was measured: 4.3 of 4.8 TB/s on
an H200 (2026-11-20), assumed for the other boards."""

ACHIEVABLE_TFLOPS = 0.80
"""Share of the tensor peak that a good product reaches where nothing was measured: 790 of
989 TFLOP/s on an H200 (2026-11-20), assumed for the other boards."""

FP64_SHARE = 1 / 64
"""float64 over float32 rate of the CUDA cores where there is no float64 tensor path: 2 against 128
results per clock and SM on 8.6, 8.9 and 12.x (CUDA C Programming Guide, arithmetic throughput)."""

NUMBERS = (
    "sms", "boost_clock_mhz", "bandwidth_gbs", "l2_bytes", "memory_bytes", "tensor_tflops", "fp32_tflops",
)  # fmt: skip
"""The fields of a `Board` that must have a source."""


@dataclass(frozen=True)
class Board:
    """One GPU product at its vendor's peak."""

    name: str
    arch: str
    """Architecture, as in ``sm_90``."""
    sms: int
    boost_clock_mhz: float
    bandwidth_gbs: float
    """Peak DRAM bandwidth, GB/s."""
    l2_bytes: int
    memory_bytes: int
    """Capacity as marketed (10^9 bytes a GB); the driver reports a little less or more."""
    tensor_tflops: Mapping[str, float] = field(hash=False)
    """dtype → dense tensor-core TFLOP/s (TOP/s for int8)."""
    fp32_tflops: float
    """CUDA cores, float32, TFLOP/s."""
    sources: Mapping[str, str] = field(hash=False, repr=False)
    """Field → where its number comes from."""
    measured: Mapping[str, float] = field(default_factory=dict, hash=False)
    """``bandwidth_gbs`` or a dtype → what we measured, GB/s or TFLOP/s; its source is
    ``sources["measured"]``."""

    @property
    def sm(self) -> int:
        """The architecture as one number, as `MachineCode.sm` and `Space` have it: 90."""
        return int(self.arch.removeprefix("sm_"))

    def tflops(self, dtype: str) -> float:
        """Peak TFLOP/s for products of ``dtype``; the CUDA cores' where it has no tensor path."""
        if dtype in self.tensor_tflops:
            return self.tensor_tflops[dtype]
        return self.fp32_tflops * FP64_SHARE if dtype == "float64" else self.fp32_tflops

    def ridge(self, dtype: str) -> float:
        """FLOP per byte at which the peak rate and the peak bandwidth meet."""
        return self.tflops(dtype) * 1e3 / self.bandwidth_gbs

    def achievable_bandwidth(self) -> float:
        """GB/s that a good copy reaches: measured, or `ACHIEVABLE_BANDWIDTH` of the peak."""
        return self.measured.get("bandwidth_gbs", ACHIEVABLE_BANDWIDTH * self.bandwidth_gbs)

    def achievable_tflops(self, dtype: str) -> float:
        """TFLOP/s that a good product reaches: measured, or `ACHIEVABLE_TFLOPS` of the peak."""
        return self.measured.get(dtype, ACHIEVABLE_TFLOPS * self.tflops(dtype))

    @property
    def assumed(self) -> bool:
        """Whether any number is assumed from a relative rather than stated or measured."""
        return any(source.startswith("assumed") for source in self.sources.values())


def _tensor(
    half: float,
    tf32: float,
    int8: float,
    *,
    fp8: float | None = None,
    fp4: float | None = None,
    fp64: float | None = None,
) -> Mapping[str, float]:
    """The rates of one board; ``half`` is float16 and bfloat16, ``None`` has no tensor path."""
    rates = {
        "float16": half, "bfloat16": half, "tfloat32": tf32, "int8": int8, "float8_e4m3fn": fp8,
        "float8_e5m2": fp8, "float4_e2m1fn": fp4, "float64": fp64,
    }  # fmt: skip
    return {dtype: rate for dtype, rate in rates.items() if rate is not None}


def _sources(default: str, **exceptions: str) -> Mapping[str, str]:
    return dict.fromkeys(NUMBERS, default) | exceptions


_AMPERE = "NVIDIA A100 Tensor Core GPU Architecture whitepaper, table of A100 specifications"
_GA102 = "NVIDIA Ampere GA102 GPU Architecture whitepaper, appendix"
_ADA = "NVIDIA Ada GPU Architecture whitepaper, appendix"
_HOPPER = "NVIDIA H100 Tensor Core GPU Architecture whitepaper, table of H100 specifications"
_RTX_BLACKWELL = "NVIDIA RTX Blackwell GPU Architecture whitepaper, appendix"
_DRIVER = "CUDA device properties as the driver reports them"
_SXM_CLOCK = "nvidia-smi, maximum SM clock; tensor rates are stated at 1830 MHz"
_QUERY = "deviceQuery of the CUDA samples"

_HOPPER_TENSOR = _tensor(989.4, 494.7, 1978.9, fp8=1978.9, fp64=66.9)

_A100_80 = Board(
    name="A100-80GB", arch="sm_80", sms=108, boost_clock_mhz=1410, bandwidth_gbs=2039,
    l2_bytes=40 * MIB, memory_bytes=80 * GB, fp32_tflops=19.5,
    tensor_tflops=_tensor(312, 156, 624, fp64=19.5),
    sources=_sources(
        _AMPERE,
        bandwidth_gbs="NVIDIA A100 datasheet, SXM (the PCIe card has 1935)",
        memory_bytes="NVIDIA A100 datasheet",
    ),
)  # fmt: skip

_A10 = Board(
    name="A10", arch="sm_86", sms=72, boost_clock_mhz=1695, bandwidth_gbs=600,
    l2_bytes=6 * MIB, memory_bytes=24 * GB, fp32_tflops=31.2,
    tensor_tflops=_tensor(125, 62.5, 250),
    sources=_sources(
        "NVIDIA A10 datasheet", sms="NVIDIA A10 product brief (9216 CUDA cores)",
        boost_clock_mhz=_QUERY, l2_bytes=_QUERY,
    ),
)  # fmt: skip

_H100 = Board(
    name="H100 SXM", arch="sm_90", sms=132, boost_clock_mhz=1980, bandwidth_gbs=3350,
    l2_bytes=50 * MIB, memory_bytes=80 * GB, fp32_tflops=66.9, tensor_tflops=_HOPPER_TENSOR,
    sources=_sources(_HOPPER, boost_clock_mhz=_SXM_CLOCK, bandwidth_gbs="NVIDIA H100 datasheet"),
)  # fmt: skip

_H200 = replace(
    _H100, name="H200", bandwidth_gbs=4800, l2_bytes=60 * MIB, memory_bytes=141 * GB,
    measured={"bandwidth_gbs": 4300.0, "bfloat16": 790.0},
    sources=_sources(
        "NVIDIA H200 datasheet",
        sms=_DRIVER, boost_clock_mhz=_SXM_CLOCK, l2_bytes=_DRIVER,
        tensor_tflops=f"NVIDIA H200 datasheet, rates with sparsity halved; the same GPU as {_HOPPER}",
        measured="measured, H200, 2026-11-20: device-to-device copy; "
        "bfloat16 8192³ cuBLAS product",
    ),
)  # fmt: skip

_GH200 = replace(
    _H100, name="GH200", bandwidth_gbs=4000, l2_bytes=60 * MIB, memory_bytes=96 * GB,
    sources=_sources(
        "NVIDIA GH200 Grace Hopper Superchip datasheet (96 GB HBM3)",
        boost_clock_mhz=_SXM_CLOCK, l2_bytes="assumed: as the driver reports for H200",
    ),
)  # fmt: skip

_B200 = Board(
    name="B200", arch="sm_100", sms=148, boost_clock_mhz=1965, bandwidth_gbs=8000,
    l2_bytes=126 * MIB, memory_bytes=180 * GB, fp32_tflops=75,
    tensor_tflops=_tensor(2250, 1125, 4500, fp8=4500, fp4=9000, fp64=37),
    sources=_sources(
        "NVIDIA Blackwell (HGX B200) datasheet, per GPU, rates with sparsity halved",
        sms=_DRIVER, boost_clock_mhz="nvidia-smi, maximum SM clock", l2_bytes=_DRIVER,
    ),
)  # fmt: skip

_GB200 = replace(
    _B200, name="GB200", sms=152, boost_clock_mhz=2062, memory_bytes=186 * GB, fp32_tflops=80,
    tensor_tflops=_tensor(2500, 1250, 5000, fp8=5000, fp4=10000, fp64=40),
    sources=_sources(
        "NVIDIA GB200 NVL72 datasheet, per GPU, rates with sparsity halved",
        sms=_DRIVER, l2_bytes="assumed: as the driver reports for B200",
        boost_clock_mhz="nvidia-smi, maximum SM clock (agrees with 80 TFLOP/s of float32)",
    ),
)  # fmt: skip

_ULTRA_RATES = "rates with sparsity halved (int8 fell to about a thirtieth of B200's)"

_B300 = replace(
    _B200, name="B300", arch="sm_103", memory_bytes=288 * GB,
    tensor_tflops=_tensor(2250, 1125, 154, fp8=4500, fp4=13500, fp64=1.25),
    sources=_sources(
        "NVIDIA HGX B300 datasheet, per GPU",
        sms="assumed: 148 as B200", l2_bytes="assumed: as B200",
        boost_clock_mhz="assumed: as B200 (agrees with 75 TFLOP/s of float32)",
        tensor_tflops=f"NVIDIA HGX B300 datasheet, per GPU, {_ULTRA_RATES}",
    ),
)  # fmt: skip

_GB300 = replace(
    _GB200, name="GB300", arch="sm_103", memory_bytes=288 * GB,
    tensor_tflops=_tensor(2500, 1250, 165, fp8=5000, fp4=15000, fp64=1.3),
    sources=_sources(
        "NVIDIA GB300 NVL72 datasheet, per GPU",
        sms="assumed: as GB200", boost_clock_mhz="assumed: as GB200", l2_bytes="assumed: as B200",
        tensor_tflops=f"NVIDIA GB300 NVL72 datasheet, per GPU, {_ULTRA_RATES}",
    ),
)  # fmt: skip

_TABLE = (
    replace(
        _A100_80, name="A100-40GB", bandwidth_gbs=1555, memory_bytes=40 * GB, sources=_sources(_AMPERE),
    ),
    _A100_80,
    Board(
        name="A30", arch="sm_80", sms=56, boost_clock_mhz=1440, bandwidth_gbs=933,
        l2_bytes=24 * MIB, memory_bytes=24 * GB, fp32_tflops=10.3,
        tensor_tflops=_tensor(165, 82, 330, fp64=10.3),
        sources=_sources("NVIDIA A30 datasheet", sms="NVIDIA A30 product brief",
                         boost_clock_mhz="NVIDIA A30 product brief", l2_bytes="NVIDIA A30 product brief"),
    ),
    _A10,
    Board(
        name="RTX 3090", arch="sm_86", sms=82, boost_clock_mhz=1695, bandwidth_gbs=936,
        l2_bytes=6 * MIB, memory_bytes=24 * GB, fp32_tflops=35.6,
        tensor_tflops=_tensor(71, 35.6, 284), sources=_sources(_GA102),
    ),
    replace(
        _A10, name="sm_88 (assumed)", arch="sm_88",
        sources=_sources("assumed: as A10 (sm_86); no board with sm_88 is documented"),
    ),
    Board(
        name="Jetson AGX Orin", arch="sm_87", sms=16, boost_clock_mhz=1300, bandwidth_gbs=204.8,
        l2_bytes=4 * MIB, memory_bytes=64 * GB, fp32_tflops=5.3,
        tensor_tflops=_tensor(42.6, 21.3, 85.2),
        sources=_sources(
            "NVIDIA Jetson AGX Orin Series technical brief (64 GB module)",
            tensor_tflops="technical brief, 170 sparse INT8 TOPS halved; computed: float16 a half and "
            "tfloat32 a quarter of it",
        ),
    ),
    Board(
        name="L4", arch="sm_89", sms=58, boost_clock_mhz=2040, bandwidth_gbs=300,
        l2_bytes=48 * MIB, memory_bytes=24 * GB, fp32_tflops=30.3,
        tensor_tflops=_tensor(121, 60, 242.5, fp8=242.5),
        sources=_sources("NVIDIA L4 datasheet, rates with sparsity halved", sms=_ADA,
                         boost_clock_mhz="NVIDIA L4 product brief", l2_bytes=_ADA),
    ),
    Board(
        name="L40S", arch="sm_89", sms=142, boost_clock_mhz=2520, bandwidth_gbs=864,
        l2_bytes=96 * MIB, memory_bytes=48 * GB, fp32_tflops=91.6,
        tensor_tflops=_tensor(362, 183, 733, fp8=733),
        sources=_sources("NVIDIA L40S datasheet", sms=_ADA, l2_bytes=_ADA,
                         boost_clock_mhz="NVIDIA L40S product brief"),
    ),
    Board(
        name="RTX 4090", arch="sm_89", sms=128, boost_clock_mhz=2520, bandwidth_gbs=1008,
        l2_bytes=72 * MIB, memory_bytes=24 * GB, fp32_tflops=82.6,
        tensor_tflops=_tensor(165.2, 82.6, 660.6, fp8=330.3), sources=_sources(_ADA),
    ),
    _H100,
    Board(
        name="H100 PCIe", arch="sm_90", sms=114, boost_clock_mhz=1755, bandwidth_gbs=2000,
        l2_bytes=50 * MIB, memory_bytes=80 * GB, fp32_tflops=51.2,
        tensor_tflops=_tensor(756, 378, 1513, fp8=1513, fp64=51.2),
        sources=_sources(_HOPPER, boost_clock_mhz="NVIDIA H100 PCIe product brief"),
    ),
    Board(
        name="H20", arch="sm_90", sms=78, boost_clock_mhz=1980, bandwidth_gbs=4000,
        l2_bytes=60 * MIB, memory_bytes=96 * GB, fp32_tflops=44,
        tensor_tflops=_tensor(148, 74, 296, fp8=296, fp64=1),
        sources=_sources("NVIDIA H20 specification as reported; no public datasheet", sms=_DRIVER),
    ),
    _H200,
    _GH200,
    _B200,
    _GB200,
    _B300,
    _GB300,
    replace(
        _B300, name="sm_107 (assumed)", arch="sm_107",
        sources=_sources("assumed: as B300; no board with sm_107 is documented"),
    ),
    Board(
        name="Jetson Thor", arch="sm_110", sms=20, boost_clock_mhz=1575, bandwidth_gbs=273,
        l2_bytes=32 * MIB, memory_bytes=128 * GB, fp32_tflops=8.06,
        tensor_tflops=_tensor(258, 129, 517, fp8=517, fp4=1035),
        sources=_sources(
            "NVIDIA Jetson Thor (T5000) module datasheet", l2_bytes=_QUERY, sms=_QUERY,
            tensor_tflops="datasheet, 1035 dense FP4 TFLOP/s; computed: fp8 and int8 a half of it, "
            "float16 a quarter, tfloat32 an eighth",
            fp32_tflops="computed: 20 SMs × 256 FLOP per clock × 1575 MHz",
        ),
    ),
    Board(
        name="RTX 5080", arch="sm_120", sms=84, boost_clock_mhz=2617, bandwidth_gbs=960,
        l2_bytes=64 * MIB, memory_bytes=16 * GB, fp32_tflops=56.3,
        tensor_tflops=_tensor(112.6, 56.3, 450.2, fp8=450.2, fp4=900.4), sources=_sources(_RTX_BLACKWELL),
    ),
    Board(
        name="RTX 5090", arch="sm_120", sms=170, boost_clock_mhz=2407, bandwidth_gbs=1792,
        l2_bytes=96 * MIB, memory_bytes=32 * GB, fp32_tflops=104.8,
        tensor_tflops=_tensor(209.5, 104.8, 838, fp8=838, fp4=1676), sources=_sources(_RTX_BLACKWELL),
    ),
    Board(
        name="RTX PRO 6000 Blackwell", arch="sm_120", sms=188, boost_clock_mhz=2617,
        bandwidth_gbs=1792, l2_bytes=128 * MIB, memory_bytes=96 * GB, fp32_tflops=126,
        tensor_tflops=_tensor(503.8, 251.9, 1007.6, fp8=1007.6, fp4=2015.2),
        sources=_sources("NVIDIA RTX PRO Blackwell GPU Architecture whitepaper, Workstation Edition"),
    ),
    Board(
        name="GB10", arch="sm_121", sms=48, boost_clock_mhz=2418, bandwidth_gbs=273,
        l2_bytes=24 * MIB, memory_bytes=128 * GB, fp32_tflops=29.7,
        tensor_tflops=_tensor(125, 62.5, 250, fp8=250, fp4=500),
        sources=_sources(
            "NVIDIA DGX Spark datasheet", sms=_QUERY, boost_clock_mhz=_QUERY, l2_bytes=_QUERY,
            tensor_tflops="datasheet, 1 PFLOP/s of sparse FP4 halved; computed: fp8 and int8 a half of it, "
            "float16 a quarter, tfloat32 an eighth",
            fp32_tflops="computed: 48 SMs × 256 FLOP per clock × 2418 MHz",
        ),
    ),
)  # fmt: skip

BOARDS: Mapping[str, Board] = MappingProxyType({board.name: board for board in _TABLE})
"""Name → board."""
