"""Launches that between them have all kinds of parameters, and all that a launch needs besides the cubin.

Triton reads the annotations of `scalars`, so they must not become texts (``from __future__ import annotations``).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import triton
import triton.language as tl
from tests.languages.triton import kernels as given

import tilewright as tw
from tilewright.languages.base import Lowered
from tilewright.languages.triton import LANGUAGE
from tilewright.records import Built, Configuration
from tilewright.task.task import Launch
from tilewright.task.tensors import ArraySpec, Descriptor
from tilewright.worker.messages import Program
from tilewright.worker.programs import program


@triton.jit
def scalars(
    out, flag: tl.int1, whole, byte: tl.int8, half: tl.float16, brain: tl.bfloat16, single, double: tl.float64, long,
    short: tl.uint16, huge: tl.uint64, one, none, BLOCK: tl.constexpr,
):  # fmt: skip
    total = whole + byte + half.to(tl.float32) + brain.to(tl.float32) + single + double.to(tl.float32) + long + short
    total += huge.to(tl.float32) + one + tl.where(flag, 1.0, 2.0)
    tl.store(out + tl.arange(0, BLOCK), tl.zeros([BLOCK], tl.float32) + total)


@triton.jit
def plain_flag(out, flag, BLOCK: tl.constexpr):
    tl.store(out + tl.arange(0, BLOCK), tl.where(flag, 1.0, 2.0) + tl.zeros([BLOCK], tl.float32))


@triton.jit
def tuples(out, pair, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(pair[0] + at) * pair[1] + pair[2][1])


@triton.jit
def copied(out, x, BLOCK: tl.constexpr):
    out.store([tl.program_id(0) * BLOCK], x.load([tl.program_id(0) * BLOCK]))


@triton.jit
def with_edge(out, x, BLOCK: tl.constexpr):
    start = tl.program_id(0) * BLOCK
    tl.store(out + start + tl.arange(0, BLOCK), x.load([start + BLOCK // 2]))


@triton.jit
def copied_deep(out, x, DEEP: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    at = [tl.program_id(0) * DEEP, 0, 0]
    out.store(at, x.load(at))


@triton.jit
def after_the_kernel_ahead(out, x, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.extra.cuda.gdc_wait()
    values = tl.load(x + at)
    tl.extra.cuda.gdc_launch_dependents()
    tl.store(out + at, values + 1)


@triton.jit
def all_at_once(out, x, arrived, BLOCK: tl.constexpr):
    """Each program adds the numbers of the next one, after all programs have stored theirs."""
    block, blocks = tl.program_id(0), tl.num_programs(0)
    at = tl.arange(0, BLOCK)
    values = tl.load(x + block * BLOCK + at)
    tl.store(out + block * BLOCK + at, values)
    tl.debug_barrier()
    tl.atomic_add(arrived, 1)
    while tl.atomic_add(arrived, 0) < blocks:
        pass
    tl.debug_barrier()
    after = (block + 1) % blocks
    others = tl.load(out + after * BLOCK + at, volatile=True)
    tl.store(out + (blocks + block) * BLOCK + at, values + others)


@triton.jit
def specialised_product(a, b, c, M, N, K, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr):
    left = tl.make_tensor_descriptor(a, [M, K], [K, 1], [BLOCK_M, BLOCK_K])
    right = tl.make_tensor_descriptor(b, [K, N], [N, 1], [BLOCK_K, BLOCK_N])
    result = tl.make_tensor_descriptor(c, [M, N], [N, 1], [BLOCK_M, BLOCK_N])
    row, column = tl.program_id(0) * BLOCK_M, tl.program_id(1) * BLOCK_N
    total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for start in tl.range(0, K, BLOCK_K, warp_specialize=True):
        total = tl.dot(left.load([row, start]), right.load([start, column]), total)
    result.store([row, column], total.to(tl.bfloat16))


@triton.jit
def eight_bits(out, scale: tl.float8e5, BLOCK: tl.constexpr):
    tl.store(out + tl.arange(0, BLOCK), tl.zeros([BLOCK], tl.float32) + scale.to(tl.float32))


def array(name: str, *shape: int, dtype: str = "float32") -> ArraySpec:
    return ArraySpec(name, shape, dtype)


def described(name: str, block: list[int], dtype: str = "bfloat16", padding: str = "zero") -> Descriptor:
    return tw.descriptor(array(name, *[512] * len(block), dtype=dtype), block, padding)


@dataclass(frozen=True)
class Case:
    launch: Launch
    options: Mapping[str, Any] = field(default_factory=dict)
    arch: int = 90

    def program(self) -> tuple[Program, bytes]:
        """The program that Tilewright launches, and its cubin."""
        lowered = LANGUAGE.lower(self.launch, self.options, Configuration.of({}), f"sm_{self.arch}")
        assert isinstance(lowered, Lowered), lowered
        built = LANGUAGE.assemble(lowered, 60.0)
        assert isinstance(built, Built), built
        return program("case", LANGUAGE.arguments(self.launch), self.launch.grid, lowered, built), built.cubin

    def names(self) -> list[str]:
        """The names of the arrays."""
        return [each.name for each in LANGUAGE.arguments(self.launch) if isinstance(each, ArraySpec)]


FLAT = (array("out", 512), array("x", 512))
PRODUCT = (*(array(name, 512, 512, dtype="bfloat16") for name in "abc"), 512, 512, 512)
HOST = Launch(
    given.host_descriptor_matmul, (4, 4),
    (described("a", [128, 64], padding="nan"), described("b", [64, 128]), described("c", [128, 128]),
     512, 128, 128, 64),
)  # fmt: skip
NUMBERS = (True, -7, 3, 1.7, 1.7, 0.1, 1e300, 1 << 40, 65535, (1 << 64) - 1, 1, None, 128)
CASES = {
    "scalars": Case(Launch(scalars, (1,), (array("out", 128), *NUMBERS))),
    "plain flag": Case(Launch(plain_flag, (1,), (array("out", 128), False, 128))),
    "tuples": Case(Launch(tuples, (1,), (array("out", 128), (array("x", 128), 3.0, (1, 5)), 128))),
    "softmax": Case(Launch(given.softmax, (64,), (array("o", 64, 3000), array("x", 64, 3000), 3000, 3000, 4096))),
    "large shared memory": Case(Launch(given.matmul, (4, 8), (*PRODUCT, 128, 64, 64)), {"num_stages": 4}),
    "cluster of 2": Case(Launch(given.matmul, (4, 8), (*PRODUCT, 128, 64, 32)), {"num_ctas": 2, "num_warps": 8}),
    "cluster of 16": Case(Launch(given.scaled, (4, 2, 3), (*FLAT, 2.0, 512, 2048)), {"num_ctas": 16}),
    "device descriptors": Case(Launch(given.descriptor_matmul, (4, 8), (*PRODUCT, 128, 64, 64)), {"num_ctas": 2}),
    "host descriptors": Case(HOST),
    "host descriptors sm_100": Case(HOST, {"num_warps": 8}, 100),
    "host descriptors sm_80": Case(HOST, {}, 80),
    "descriptor of 1 axis": Case(
        Launch(copied, (4,), (described("out", [128], "float32"), described("x", [128], "float32"), 128))
    ),
    "NaN outside": Case(
        Launch(with_edge, (4,), (array("out", 512), described("x", [128], "float32", "nan"), 128))
    ),
    "zeros outside": Case(Launch(with_edge, (4,), (array("out", 512), described("x", [128], "float32"), 128))),
    "descriptor of 3 axes": Case(
        Launch(copied_deep, (64,), (described("out", [8, 8, 16], "float16"), described("x", [8, 8, 16], "float16"),
                                    8, 8, 16))
    ),
    "bytes": Case(Launch(copied, (4,), (described("out", [128], "uint8"), described("x", [128], "uint8"), 128))),
    "cooperative": Case(
        Launch(all_at_once, (8,), (array("out", 4096), array("x", 2048), array("n", 1, dtype="int32"), 256)),
        {"launch_cooperative_grid": True},
    ),
    "dependent": Case(Launch(after_the_kernel_ahead, (4,), (*FLAT, 128)), {"launch_pdl": True, "num_ctas": 2}),
    "extra warps": Case(Launch(specialised_product, (4, 4), (*PRODUCT, 128, 128, 64)), {"num_warps": 4}, 100),
}  # fmt: skip


def address_of(name: str) -> int:
    """An address for an array of this name, the same in all processes."""
    return int.from_bytes(name.encode(), "little") << 20
