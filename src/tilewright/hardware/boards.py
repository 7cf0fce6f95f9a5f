"""Lists GPU models, here called boards, with the peak rates that their vendors state.

Rates are dense, in TFLOP/s (TOP/s for ``int8``). A datasheet's rate with structured sparsity is halved. Of two rates
for float16, the table has the rate with float32 accumulation, which tile kernels use. For float8 on the RTX 50
series, the table has the higher rate, because block-scaled matrix products reach it. Bandwidth is in GB/s (10^9 bytes).
`Board.sources` has the source of every number. Where the source starts with "assumed" or "computed", the vendor did not
state the number.

`architectures` looks up boards.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

GB = 10**9
MIB = 2**20

ACHIEVABLE_BANDWIDTH = 0.90
"""Fraction of the DRAM peak that a good copy reaches: 4.3 of 4.8 TB/s on an H200 (2026-11-20), assumed for all GPUs."""
ACHIEVABLE_TFLOPS = 0.80
"""Fraction of the tensor peak that a good matrix product reaches: 790 of 989 TFLOP/s on an H200 (2026-11-20), assumed
for all GPUs."""
FP64_SHARE = 1 / 64
"""Ratio of the float64 rate to the float32 rate on CUDA cores. Devices 8.6, 8.9 and 12.x give 2 float64 and 128 float32
results per clock and SM (CUDA C Programming Guide, arithmetic throughput)."""
NUMBERS = (
    "sms", "boost_clock_mhz", "bandwidth_gbs", "l2_bytes", "memory_bytes", "tensor_tflops", "fp32_tflops",
)  # fmt: skip
"""The fields of a `Board` that must have a source."""


@dataclass(frozen=True)
class Board:
    """One GPU model with the peak rates that its vendor states."""

    name: str
    arch: str
    """Architecture, such as ``sm_90``."""
    sms: int
    boost_clock_mhz: float
    bandwidth_gbs: float
    """Peak DRAM bandwidth, GB/s."""
    l2_bytes: int
    memory_bytes: int
    """Capacity as marketed (1 GB is 10^9 bytes). The driver reports a little less or more."""
    tensor_tflops: Mapping[str, float] = field(hash=False)
    """Maps a dtype to its dense tensor-core rate in TFLOP/s (TOP/s for int8)."""
    fp32_tflops: float
    """Float32 rate of the CUDA cores, TFLOP/s."""
    sources: Mapping[str, str] = field(hash=False, repr=False)
    """Maps a field to the source of its number."""
    measured: Mapping[str, float] = field(default_factory=dict, hash=False)
    """Measured rates: GB/s for the key ``bandwidth_gbs``, TFLOP/s for a dtype. Source: ``sources["measured"]``."""

    @property
    def sm(self) -> int:
        """The architecture as one number, such as 90."""
        return int(self.arch.removeprefix("sm_"))

    def tflops(self, dtype: str) -> float:
        """Returns the peak TFLOP/s for ``dtype``: on tensor cores if they support the dtype, else on CUDA cores."""
        if dtype in self.tensor_tflops:
            return self.tensor_tflops[dtype]
        return self.fp32_tflops * FP64_SHARE if dtype == "float64" else self.fp32_tflops

    def ridge(self, dtype: str) -> float:
        """Returns the FLOP per byte at which computing and loading take equal time at peak rates."""
        return self.tflops(dtype) * 1e3 / self.bandwidth_gbs

    def achievable_bandwidth(self) -> float:
        """Returns the GB/s that a good copy reaches: measured, or `ACHIEVABLE_BANDWIDTH` times the peak."""
        return self.measured.get("bandwidth_gbs", ACHIEVABLE_BANDWIDTH * self.bandwidth_gbs)

    def achievable_tflops(self, dtype: str) -> float:
        """Returns the TFLOP/s that a good matrix product reaches: measured, or `ACHIEVABLE_TFLOPS` times the peak."""
        return self.measured.get(dtype, ACHIEVABLE_TFLOPS * self.tflops(dtype))


def _tensor(half: float, tf32: float, int8: float, **others: float) -> Mapping[str, float]:
    """Returns the tensor rates of one GPU model by dtype, in TFLOP/s (TOP/s for int8).

    half: the rate for float16 and bfloat16. others: the rates for fp8, fp4 and fp64 if supported.
    """
    dtypes = {"fp8": ("float8_e4m3fn", "float8_e5m2"), "fp4": ("float4_e2m1fn",), "fp64": ("float64",)}
    rates = {"float16": half, "bfloat16": half, "tfloat32": tf32, "int8": int8}
    return rates | {dtype: rate for path, rate in others.items() for dtype in dtypes[path]}


def _board(
    name: str, arch: str, sms: int, clock: float, bandwidth: float, l2: int, memory: int, fp32: float,
    tensor: Mapping[str, float], source: str, /, **others: str,
) -> Board:  # fmt: skip
    """Makes one row of the table. ``others``: sources of some fields. ``source``: the source of all other fields."""
    sources = dict.fromkeys(NUMBERS, source) | others
    return Board(name, arch, sms, clock, bandwidth, l2 * MIB, memory * GB, tensor, fp32, sources)


_AMPERE = "NVIDIA A100 Tensor Core GPU Architecture whitepaper, table of A100 specifications"
_GA102 = "NVIDIA Ampere GA102 GPU Architecture whitepaper, appendix"
_ADA = "NVIDIA Ada GPU Architecture whitepaper, appendix"
_HOPPER = "NVIDIA H100 Tensor Core GPU Architecture whitepaper, table of H100 specifications"
_RTX_BLACKWELL = "NVIDIA RTX Blackwell GPU Architecture whitepaper, appendix"
_DRIVER = "CUDA device properties as the driver reports them"
_CLOCK = "nvidia-smi, maximum SM clock"
_SXM_CLOCK = f"{_CLOCK}; tensor rates are stated at 1830 MHz"
_QUERY = "deviceQuery of the CUDA samples"
_ULTRA_RATES = "rates with sparsity halved (int8 fell to about a thirtieth of B200's)"
_FP4_RATES = "computed: fp8 and int8 half the fp4 rate, float16 a quarter, tfloat32 an eighth"

_A100 = _tensor(312, 156, 624, fp64=19.5)
_GH100 = _tensor(989.4, 494.7, 1978.9, fp8=1978.9, fp64=66.9)
_ULTRA = _tensor(2250, 1125, 154, fp8=4500, fp4=13500, fp64=1.25)

_ROWS = (
    #      name       arch    SMs   MHz  GB/s L2 MiB GB float32 tensor cores, source
    _board("A100-40GB", "sm_80", 108, 1410, 1555, 40, 40, 19.5, _A100, _AMPERE),
    _board("A100-80GB", "sm_80", 108, 1410, 2039, 40, 80, 19.5, _A100, _AMPERE,
           bandwidth_gbs="NVIDIA A100 datasheet, SXM (the PCIe card has 1935)", memory_bytes="NVIDIA A100 datasheet"),
    _board("A30", "sm_80", 56, 1440, 933, 24, 24, 10.3, _tensor(165, 82, 330, fp64=10.3), "NVIDIA A30 datasheet",
           **dict.fromkeys(("sms", "boost_clock_mhz", "l2_bytes"), "NVIDIA A30 product brief")),
    _board("A10", "sm_86", 72, 1695, 600, 6, 24, 31.2, _tensor(125, 62.5, 250), "NVIDIA A10 datasheet",
           sms="NVIDIA A10 product brief (9216 CUDA cores)", boost_clock_mhz=_QUERY, l2_bytes=_QUERY),
    _board("RTX 3090", "sm_86", 82, 1695, 936, 6, 24, 35.6, _tensor(71, 35.6, 284), _GA102),
    _board("sm_88 (assumed)", "sm_88", 72, 1695, 600, 6, 24, 31.2, _tensor(125, 62.5, 250),
           "assumed: as A10 (sm_86); no board with sm_88 is documented"),
    _board("Jetson AGX Orin", "sm_87", 16, 1300, 204.8, 4, 64, 5.3, _tensor(42.6, 21.3, 85.2),
           "NVIDIA Jetson AGX Orin Series technical brief (64 GB module)",
           tensor_tflops="technical brief, 170 sparse INT8 TOPS halved; computed: float16 a half and tfloat32 a "
                         "quarter of it"),
    _board("L4", "sm_89", 58, 2040, 300, 48, 24, 30.3, _tensor(121, 60, 242.5, fp8=242.5),
           "NVIDIA L4 datasheet, rates with sparsity halved", sms=_ADA,
           boost_clock_mhz="NVIDIA L4 product brief", l2_bytes=_ADA),
    _board("L40S", "sm_89", 142, 2520, 864, 96, 48, 91.6, _tensor(362, 183, 733, fp8=733), "NVIDIA L40S datasheet",
           sms=_ADA, l2_bytes=_ADA, boost_clock_mhz="NVIDIA L40S product brief"),
    _board("RTX 4090", "sm_89", 128, 2520, 1008, 72, 24, 82.6, _tensor(165.2, 82.6, 660.6, fp8=330.3), _ADA),
    _board("H100 SXM", "sm_90", 132, 1980, 3350, 50, 80, 66.9, _GH100, _HOPPER,
           boost_clock_mhz=_SXM_CLOCK, bandwidth_gbs="NVIDIA H100 datasheet"),
    _board("H100 PCIe", "sm_90", 114, 1755, 2000, 50, 80, 51.2, _tensor(756, 378, 1513, fp8=1513, fp64=51.2), _HOPPER,
           boost_clock_mhz="NVIDIA H100 PCIe product brief"),
    _board("H20", "sm_90", 78, 1980, 4000, 60, 96, 44, _tensor(148, 74, 296, fp8=296, fp64=1),
           "NVIDIA H20 specification as reported; no public datasheet", sms=_DRIVER),
    replace(
        _board("H200", "sm_90", 132, 1980, 4800, 60, 141, 66.9, _GH100, "NVIDIA H200 datasheet",
               sms=_DRIVER, boost_clock_mhz=_SXM_CLOCK, l2_bytes=_DRIVER,
               tensor_tflops=f"NVIDIA H200 datasheet, rates with sparsity halved; the same GPU as {_HOPPER}",
               measured="measured, H200, 2026-11-20: device-to-device copy; bfloat16 8192³ cuBLAS product"),
        measured={"bandwidth_gbs": 4300.0, "bfloat16": 790.0},
    ),
    _board("GH200", "sm_90", 132, 1980, 4000, 60, 96, 66.9, _GH100,
           "NVIDIA GH200 Grace Hopper Superchip datasheet (96 GB HBM3)",
           boost_clock_mhz=_SXM_CLOCK, l2_bytes="assumed: as the driver reports for H200"),
    _board("B200", "sm_100", 148, 1965, 8000, 126, 180, 75, _tensor(2250, 1125, 4500, fp8=4500, fp4=9000, fp64=37),
           "NVIDIA Blackwell (HGX B200) datasheet, per GPU, rates with sparsity halved",
           sms=_DRIVER, boost_clock_mhz=_CLOCK, l2_bytes=_DRIVER),
    _board("GB200", "sm_100", 152, 2062, 8000, 126, 186, 80, _tensor(2500, 1250, 5000, fp8=5000, fp4=10000, fp64=40),
           "NVIDIA GB200 NVL72 datasheet, per GPU, rates with sparsity halved",
           sms=_DRIVER, l2_bytes="assumed: as the driver reports for B200",
           boost_clock_mhz=f"{_CLOCK} (agrees with 80 TFLOP/s of float32)"),
    _board("B300", "sm_103", 148, 1965, 8000, 126, 288, 75, _ULTRA, "NVIDIA HGX B300 datasheet, per GPU",
           sms="assumed: 148 as B200", l2_bytes="assumed: as B200",
           boost_clock_mhz="assumed: as B200 (agrees with 75 TFLOP/s of float32)",
           tensor_tflops=f"NVIDIA HGX B300 datasheet, per GPU, {_ULTRA_RATES}"),
    _board("GB300", "sm_103", 152, 2062, 8000, 126, 288, 80, _tensor(2500, 1250, 165, fp8=5000, fp4=15000, fp64=1.3),
           "NVIDIA GB300 NVL72 datasheet, per GPU", sms="assumed: as GB200",
           boost_clock_mhz="assumed: as GB200", l2_bytes="assumed: as B200",
           tensor_tflops=f"NVIDIA GB300 NVL72 datasheet, per GPU, {_ULTRA_RATES}"),
    _board("sm_107 (assumed)", "sm_107", 148, 1965, 8000, 126, 288, 75, _ULTRA,
           "assumed: as B300; no board with sm_107 is documented"),
    _board("Jetson Thor", "sm_110", 20, 1575, 273, 32, 128, 8.06, _tensor(258, 129, 517, fp8=517, fp4=1035),
           "NVIDIA Jetson Thor (T5000) module datasheet", l2_bytes=_QUERY, sms=_QUERY,
           tensor_tflops=f"datasheet, 1035 dense FP4 TFLOP/s; {_FP4_RATES}",
           fp32_tflops="computed: 20 SMs × 256 FLOP per clock × 1575 MHz"),
    _board("RTX 5080", "sm_120", 84, 2617, 960, 64, 16, 56.3, _tensor(112.6, 56.3, 450.2, fp8=450.2, fp4=900.4),
           _RTX_BLACKWELL),
    _board("RTX 5090", "sm_120", 170, 2407, 1792, 96, 32, 104.8, _tensor(209.5, 104.8, 838, fp8=838, fp4=1676),
           _RTX_BLACKWELL),
    _board("RTX PRO 6000 Blackwell", "sm_120", 188, 2617, 1792, 128, 96, 126,
           _tensor(503.8, 251.9, 1007.6, fp8=1007.6, fp4=2015.2),
           "NVIDIA RTX PRO Blackwell GPU Architecture whitepaper, Workstation Edition"),
    _board("GB10", "sm_121", 48, 2418, 273, 24, 128, 29.7, _tensor(125, 62.5, 250, fp8=250, fp4=500),
           "NVIDIA DGX Spark datasheet", sms=_QUERY, boost_clock_mhz=_QUERY, l2_bytes=_QUERY,
           tensor_tflops=f"datasheet, 1 PFLOP/s of sparse FP4 halved; {_FP4_RATES}",
           fp32_tflops="computed: 48 SMs × 256 FLOP per clock × 2418 MHz"),
)  # fmt: skip

BOARDS: Mapping[str, Board] = MappingProxyType({board.name: board for board in _ROWS})
"""Maps a name to its GPU model."""
