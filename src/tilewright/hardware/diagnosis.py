"""Names the resource that limits a launch, and by how much, from its work and its machine code.

The least time of the launch is its bytes at the achievable bandwidth, or its FLOP at the achievable rate. Each resource
may make the launch longer; `diagnose` estimates the µs that each one costs, with the numbers behind the estimate:

    bytes in flight      Little's law: an SM needs bandwidth × latency bytes under way
    residency            registers or shared memory allow few CTAs; memory idles while all of them compute
    dependent loads      addresses wait for loaded values (`machine_code.chains`)
    last wave            places of the GPU that are empty in the last wave
    too few blocks       SMs without a block
    issue slots, conversions and special functions, access path
                         the instructions other than tensor instructions, by the kind that takes the most clocks
    traffic              bytes that are read again, at the rate of the L2
    tensor path          products without tensor instructions, or with slow ones
    tile size            small tiles: products that wait for one another, or for their operands
    spills, launch       local memory; the start and the end of the grid

The estimates overlap: removing one limit may show the next. They have the errors of predicted times.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias, cast

from tilewright.hardware.architectures import KIB, WARP, architecture
from tilewright.hardware.boards import Board
from tilewright.hardware.executions import LOADS, STORES, Work, copies_only, occupancy_of, uses_tma, width
from tilewright.hardware.prediction import CLOCKS, CLOCKS_PER_INSTRUCTION, LAUNCH_US, START_US, Launched, narrow_clocks
from tilewright.records import Bound, Json, MachineCode

Resource: TypeAlias = Literal[
    "memory bandwidth", "tensor rate", "bytes in flight", "residency", "dependent loads", "last wave",
    "too few blocks", "issue slots", "conversions and special functions", "access path", "traffic", "tensor path",
    "tile size", "spills", "launch", "unknown",
]  # fmt: skip

NEAR_MEMORY, NEAR_COMPUTE = 0.85, 0.75
"""Shares of the speed of light. From this share on, the rate itself is the limit of a memory-bound or a compute-bound
launch. A balanced launch counts as compute-bound."""
NEAR_COPY = 0.95
"""The time of a copy of as many bytes / a launch's time. From this ratio on, a memory-bound launch is at its rate."""
LATENCY_US = 0.7
"""Time of one load from memory under light load. Chips and Cheese measured about 0.68 µs on an H100 (2023-07-02)."""
L2_RATE = 1.8
"""Rate of reads from the L2 / achievable bandwidth of memory: 7.6 TB/s were reached on an H200, in a layer norm that
moves 554 MB in 72.9 µs (2026-11-30)."""
WORTH = 0.05
"""Limits that cost less than this share of the time are left out."""
PROFILE = "ncu --set full --section WarpStateStats --section SourceCounters"
"""The command of NVIDIA Nsight Compute that shows stalls by cause and source line."""
MOSTLY = 0.5
"""If moving the bytes takes at least this share of the measured time, and no limit explains the rest, loads wait."""
EXPLAINED = 0.25
"""A limit that explains less than this share of the lost time is not called the limit."""


@dataclass(frozen=True)
class ResourceLimit:
    """One resource that makes a launch longer. ``lost_us``: the estimated time that it costs, in µs."""

    resource: Resource
    lost_us: float
    evidence: str
    """The numbers behind the estimate, with units."""


@dataclass(frozen=True)
class Move:
    """A change that would ease the limit, or that the user named. ``outcome``: what became of it in the run."""

    entry: str
    outcome: str


@dataclass(frozen=True)
class Diagnosis:
    """The limit of one launch, and what would ease it.

    share: the speed as a share of the speed of light.
    rung: where the evidence comes from: ``machine code and measured time``, or ``machine code and predicted time``.
    others: further limits, the most expensive first.
    """

    share: float
    rung: str
    limit: ResourceLimit
    others: tuple[ResourceLimit, ...] = ()
    moves: tuple[Move, ...] = ()

    @property
    def at_the_bound(self) -> bool:
        """Whether the launch runs at the rate that it can reach, so that only less work makes it faster."""
        return self.limit.resource in ("memory bandwidth", "tensor rate")

    def to_json(self) -> dict[str, Json]:
        """Returns the object that ``--json`` prints. Scripts rely on these names."""
        return {
            "limit": self.limit.resource, "share_of_speed_of_light": self.share, "rung": self.rung,
            "limits": [
                {"resource": each.resource, "lost_us": each.lost_us, "evidence": each.evidence}
                for each in (self.limit, *self.others)
            ],
            "moves": [{"entry": move.entry, "outcome": move.outcome} for move in self.moves],
        }  # fmt: skip

    def __str__(self) -> str:
        return f"{self.share:.0%} of the speed of light, limited by {self.limit.resource}: {self.limit.evidence}"


def diagnose(
    bound: Bound, code: MachineCode, grid: Sequence[int], work: Work, board: Board, *, moved: float = 0.0,
    products: float = 0.0, measured_us: float | None = None,
) -> Diagnosis:  # fmt: skip
    """Names the limit of one launch.

    grid: the number of blocks of the tile language in each dimension.
    work: the least work of the workload.
    moved: the bytes of all loads and stores, each access counted; 0 if not known.
    products: the FLOP of matrix products; 0 if not known.
    measured_us: the measured time; without it, the predicted time is used.
    """
    launch = _Examined(code, grid, work, board, moved, products)
    us = measured_us or launch.us()
    share = bound.speed_of_light_us / us
    rung = f"machine code and {'measured' if measured_us else 'predicted'} time"
    least = max(bound.speed_of_light_us, launch.least_us)
    speed = f"{us:,.1f} µs; the speed of light is {bound.speed_of_light_us:,.1f} µs"
    found = [limit for limit in launch.limits() if limit.lost_us >= WORTH * us] if not code.unread else []
    found.sort(key=lambda limit: -limit.lost_us)
    if measured_us:  # an estimate above the time that was lost is wrong by the difference
        found = [replace(limit, lost_us=min(limit.lost_us, us - least)) for limit in found if us > least]
    copies = bound.kind == "memory" and measured_us is not None and launch.copy_us() >= NEAR_COPY * us
    if copies or share >= (NEAR_MEMORY if bound.kind == "memory" else NEAR_COMPUTE):
        rate: Resource = "memory bandwidth" if bound.kind == "memory" else "tensor rate"
        speed += f"; a copy of as many bytes takes about {launch.copy_us():,.1f} µs" if copies else ""
        return Diagnosis(share, rung, ResourceLimit(rate, bound.speed_of_light_us, speed), tuple(found))
    if not found or found[0].lost_us < EXPLAINED * (us - least):
        if bound.kind == "memory" and measured_us and not code.unread and launch.bytes_us >= MOSTLY * us:
            limit = launch.under_way(us)
        elif measured_us and not code.unread and launch.products and code.tensor_path == "none":
            limit = ResourceLimit("tensor path", us - least, f"{speed}; {launch.untensored}")
        else:
            why = code.unread or f"the machine code shows no limit that explains this; next: {PROFILE}"
            limit = ResourceLimit("unknown", us - least, f"{speed}; {why}")
        return Diagnosis(share, rung, limit, tuple(each for each in found if each.resource != limit.resource))
    return Diagnosis(share, rung, found[0], tuple(found[1:]))


class _Examined(Launched):
    """A launch with the estimates of what each resource costs. ``least_us``: the time that its work alone takes."""

    def __init__(
        self, code: MachineCode, grid: Sequence[int], work: Work, board: Board, moved: float, products: float
    ) -> None:
        super().__init__(code, grid, work, board)
        self.work, self.moved, self.products = work, moved, products
        dtype = "tfloat32" if work.dtype == "float32" else work.dtype
        self.full_rate = board.achievable_tflops(dtype)
        self.ideal_us = work.flops / (self.full_rate * 1e6)
        """The time of the FLOP at the full rate of the tensor cores."""
        on_tensor_cores = code.tensor_path != "none" or products > 0
        self.least_us = max(self.bytes_us, self.ideal_us if on_tensor_cores else 0.0)
        bandwidth = board.achievable_bandwidth() * 1e3
        self.sm_bytes_per_us = bandwidth / board.sms
        self.running_bytes = work.bytes * min(1.0, self.shape.resident * board.sms / self.shape.ctas)
        """The bytes that all CTAs that run at the same time touch."""
        if not code.loops and not uses_tma(code):  # the compiler loads once what the kernel asks for several times
            moved = self.moved = min(moved, width(code.copies, *LOADS, *STORES) * self.shape.threads * self.shape.ctas)
        rate = bandwidth * (L2_RATE if self.running_bytes < board.l2_bytes else 1.0)
        self.moved_us = max(self.least_us, moved / rate if code.tensor_path == "none" else 0.0)
        """The least time with the bytes that are read again. They come from the L2 if it holds them."""

    def copy_us(self) -> float:
        """Returns about the time of a copy that moves as many bytes; 0 if its launch would take a large part of it."""
        return self.bytes_us + LAUNCH_US if self.bytes_us > 10 * LAUNCH_US else 0.0

    def under_way(self, us: float) -> ResourceLimit:
        """What a measured time says where no unit is full: by Little's law, too few bytes are under way on average."""
        needed, flight = self.sm_bytes_per_us * LATENCY_US, self.shape.resident * self._flight()
        had = f"{_kib(needed * self.bytes_us / us)} are under way on an SM on average"
        need = f"{_kib(needed)} that bandwidth × latency ({LATENCY_US:g} µs) needs"
        why = f"no unit is full, and the CTAs of an SM could have {_kib(flight)}: their loads wait; next: {PROFILE}"
        return ResourceLimit("bytes in flight", us - self.least_us, f"{had}, of {need}; {why}")

    def limits(self) -> Iterator[ResourceLimit]:
        yield ResourceLimit("launch", LAUNCH_US, f"launch, start and end of the grid take about {LAUNCH_US:.0f} µs")
        yield self._places()
        if self.code.tensor_path == "none":
            yield from self._concurrency()
            yield from self._traffic()
        yield from self._products()
        yield self._instructions()
        if self.spilled_bytes:
            size, stored, loaded = self.spilled_bytes / 1e6, self.code.local_stores, self.code.local_loads
            code = f"{stored} local stores and {loaded} local loads in the code"
            yield ResourceLimit("spills", self.spill_us(), f"{size:,.1f} MB of local memory; {code}")

    def _places(self) -> ResourceLimit:
        """SMs without a CTA, or places on SMs that are empty in the last wave."""
        shape, sms, us = self.shape, self.board.sms, self.together_us()
        if shape.ctas < sms:
            idle = 1 - shape.ctas / sms
            return ResourceLimit(
                "too few blocks", us * idle, f"{_counted(shape.ctas, 'CTA')} on {sms} SMs; {idle:.0%} of them have none"
            )
        empty = f"{1 - shape.busy:.0%} of the places are empty in {_counted(shape.waves, 'wave')}"
        places = f"{shape.ctas:,} CTAs for {sms} SMs × {shape.resident} places"
        return ResourceLimit("last wave", us * (1 - shape.busy), f"{places}: {empty}")

    def _concurrency(self) -> Iterator[ResourceLimit]:
        """Too few loads are under way at a time."""
        chain = self.code.load_chain - 1 + self.executed.total(lambda region: region.load_chain)
        if chain >= 1:
            waves, us = self.shape.waves, self.shape.waves * chain * LATENCY_US
            times = f"{chain + 1:.0f} loads one after the other, {LATENCY_US:g} µs each, in {_counted(waves, 'wave')}"
            all_bytes = f"{us:,.0f} µs, but all bytes take {self.bytes_us:,.0f} µs"
            yield ResourceLimit("dependent loads", us - self.bytes_us, f"{times}: {all_bytes}")
        if chain >= 1 or 2 * self.shape.ctas <= self.board.sms:  # the next is a limit of SMs that have enough CTAs
            return
        resident, flight, needed = self.shape.resident, self._flight(), self.sm_bytes_per_us * LATENCY_US
        under_way = f"{_counted(resident, 'CTA')} an SM × {_kib(flight)} = {_kib(resident * flight)} under way"
        if 0 < resident * flight < needed:
            reached = resident * flight / needed
            need = f"{reached:.0%} of the {_kib(needed)} that bandwidth × latency ({LATENCY_US:g} µs) needs"
            lost = max(self.bytes_us * (1 / reached - 1), self.latency_us() - self.moved_us)
            yield self._few(lost, under_way, f"{need}; {self.warps_on_sm:.0f} warps compute")
        else:
            yield self._turns(under_way)

    def _turns(self, under_way: str) -> ResourceLimit:
        """All CTAs of an SM compute at the same time, so that memory idles, or too few warps compute.

        A CTA that does not load ahead is away from memory for the share f of its life. If the r CTAs of an SM are
        independent, memory idles for the share f^r of the time.
        """
        path = START_US + CLOCKS_PER_INSTRUCTION * self.path_us
        loading = LATENCY_US + self.work.bytes / self.shape.ctas / self.sm_bytes_per_us
        ahead = any(map(copies_only, self.code.loops))  # warps of their own load ahead
        idle = 0.0 if ahead else (path / (path + loading)) ** self.shape.resident
        lost = max(self.bytes_us * idle / (1 - idle), self.latency_us() - self.moved_us)
        life = f"a CTA computes {path:,.1f} µs and loads and stores {loading:,.1f} µs"
        life += f", at the same time; {self.warps_on_sm:.0f} warps compute" if ahead else f": memory idles {idle:.0%}"
        return self._few(lost, under_way, life)

    def _few(self, lost_us: float, under_way: str, why: str) -> ResourceLimit:
        """Too few CTAs or too few bytes on an SM: registers and shared memory are the limit if they leave more than
        half of the places for warps empty."""
        code, fits, most = self.code, occupancy_of(self.code, self.board), architecture(self.board.arch)
        held = "limited by registers" in fits.why or "limited by shared" in fits.why
        if held and self.shape.resident == fits.ctas and 2 * self.warps_on_sm < most.max_warps_per_sm:
            holds = f"{code.registers} registers a thread, {_kib(code.shared_bytes)} of shared memory a CTA"
            return ResourceLimit("residency", lost_us, f"{holds}: {fits.why}; {under_way}, {why}")
        return ResourceLimit("bytes in flight", lost_us, f"{under_way}, {why}")

    def _flight(self) -> float:
        """Returns the bytes that a CTA can have under way: the buffers of its TMA copies, or the loads of the region
        that loads most, up to its registers."""
        if uses_tma(self.code):
            return float(self.code.shared_bytes)
        regions = zip(self.executed.runs, self.executed.regions, strict=True)
        each = max((runs * loaded, loaded) for runs, region in regions for loaded in [width(region.copies, *LOADS)])[1]
        return min(4 * self.code.registers, each) * self.shape.threads

    def _traffic(self) -> Iterator[ResourceLimit]:
        """Bytes that are read again."""
        if self.moved > self.work.bytes:
            times = f"{self.moved / 1e6:,.0f} MB are loaded and stored, {self.moved / self.work.bytes:.2f} × the least"
            size, l2 = self.running_bytes / 1e6, self.board.l2_bytes / 1e6
            where = f"running CTAs touch {size:,.0f} MB, the L2 has {l2:,.0f} MB"
            yield ResourceLimit("traffic", self.moved_us - self.least_us, f"{times}; {where}")

    @property
    def untensored(self) -> str:
        """Says what products without tensor instructions cost at least."""
        done = f"{self.products / 1e9:,.3g} GFLOP of products without tensor instructions"
        best = architecture(self.board.arch).tensor_path
        return f"{done}: {self.board.fp32_tflops:,.0f} TFLOP/s at most, {best} reaches {self.full_rate:,.0f}"

    def _products(self) -> Iterator[ResourceLimit]:
        code, best = self.code, architecture(self.board.arch).tensor_path
        if code.tensor_path == "none":
            if self.products:  # other limits of such code follow from this one
                yield ResourceLimit("tensor path", self.together_us() - self.least_us, self.untensored)
            return
        rates = f"{code.tensor_path} reaches {self.rate:,.0f} TFLOP/s, {best} {self.full_rate:,.0f}"
        yield ResourceLimit("tensor path", self.products_us - self.least_us, rates)
        tile = f"{self.tile:,.0f} elements of a tile an SM"
        costs = {
            f"{tile}: {self.staging_us():,.0f} µs to load them from the L2": self.staging_us(),
            f"{tile}: products take {self.tensor_us():,.0f} µs, one waits for another": self.tensor_us()
            * self.shape.busy,
            f"{tile}, {self.warps_on_sm:.0f} warps: {_counted(self.shape.waves, 'wave')} of "
            f"{self.latency_us() / self.shape.waves:,.0f} µs, in which one step waits for another": self.latency_us(),
        }
        text = max(costs, key=costs.__getitem__)
        yield ResourceLimit("tile size", costs[text] - max(self.least_us, self.products_us), text)

    def _instructions(self) -> ResourceLimit:
        """Instructions other than tensor instructions take longer than the least time."""
        clocks = {
            "conversions and special functions": self._clocks("conversion", "special function"),
            "access path": self._clocks("global load", "global store") + self.executed.total(narrow_clocks),
        }
        other = [name for name in self.code.mix if name not in _OWN_UNITS]
        clocks["issue slots"] = self._clocks(*other)
        name = max(clocks, key=clocks.__getitem__)
        own = {"conversions and special functions": _OWN_UNITS[:2], "access path": _OWN_UNITS[2:]}.get(name, other)
        count = self.executed.total(lambda region: sum(region.mix.get(each, 0) for each in own))
        per_byte = count * WARP * self.shape.ctas * self.executed.warps / self.work.bytes
        us, parts = self.others_us(), ", ".join(f"{each} {n:,.0f}" for each, n in clocks.items())
        text = f"{per_byte:.2g} such instructions a byte of the work; all units need {us:,.0f} µs, memory and products "
        return ResourceLimit(
            cast(Resource, name), us - self.moved_us, f"{text}{self.moved_us:,.0f} µs (clocks of a warp: {parts})"
        )

    def _clocks(self, *names: str) -> float:
        """Returns the clocks of a sub-partition for the instructions of these classes, for one warp."""
        return self.executed.total(
            lambda region: sum(CLOCKS.get(name, 1.0) * region.mix.get(name, 0) for name in names)
        )


_OWN_UNITS = ("conversion", "special function", "global load", "global store")
"""The classes of instructions that do not count as issue slots."""


def _counted(count: int, what: str) -> str:
    return f"{count:,} {what}" if count == 1 else f"{count:,} {what}s"


def _kib(count: float) -> str:
    return f"{count / KIB:,.3g} KiB" if count >= KIB else f"{count:,.0f} B"
