"""The pool of compilers: how the cubins that wait are shared among the readers, and which candidates are left out."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tilewright.compile.accumulators import entry_of
from tilewright.compile.pool import CompilerPool
from tilewright.compile.skipped import NotStarted
from tilewright.languages.base import TILE_IR, Language, Lowered
from tilewright.languages.kept_cubins import CubinsInMemory, CubinsOfRun, KeptCubins
from tilewright.records import Built, Configuration, Failed
from tilewright.task.task import Launch
from tilewright.tileir.read.tree import KernelEntry

JOBS, CANDIDATES = 8, 23  # more than twice as many as readers, so that some readers get several


class Compiles(Language):
    """A language whose compiler returns the code that it is given."""

    name = "compiles"

    def recognises(self, kernel: Any) -> bool:
        return False

    def lower(self, *launch: Any) -> Lowered | Failed:
        raise NotImplementedError

    def assemble(self, lowered: Lowered, seconds: float) -> Built | Failed:
        return Built(lowered.configuration, lowered.arch, lowered.code, lowered.symbol, 0.0)


class CountingPool(CompilerPool):
    """A pool that says when its last cubin waits to be read."""

    def __init__(self, read: Any) -> None:
        super().__init__(JOBS, 1.0, read)
        self.all_wait, self.compiled, self.counting = threading.Event(), 0, threading.Lock()

    def _compile(self, *given: Any) -> None:
        super()._compile(*given)
        with self.counting:
            self.compiled += 1
            if self.compiled == CANDIDATES:
                self.all_wait.set()


def test_waiting_cubins_are_shared_among_the_readers() -> None:
    """A reader that took all of them would keep the others idle, and every candidate waiting."""
    batches: list[int] = []

    def read(cubins: Sequence[bytes]) -> Any:
        pool.all_wait.wait()
        batches.append(len(cubins))
        return [cubin[0] for cubin in cubins]

    language = Compiles()
    with CountingPool(read) as pool:
        for index in range(CANDIDATES):
            lowered = Lowered(Configuration.of({"AT": index}), "sm_80", "kernel", bytes([index]))
            pool.add(index, language, lowered, None, always=True)  # type: ignore[arg-type]
        outcomes = {index: code for index, _, code in pool.outcomes()}
    assert outcomes == {index: index for index in range(CANDIDATES)}
    assert sum(batches) == CANDIDATES
    assert 1 < max(batches) <= -(-CANDIDATES // (JOBS // 4)), "so many readers run even while all compilers do"


@pytest.mark.parametrize("jobs", [4, JOBS])
def test_the_last_cubin_does_not_wait_until_another_one_is_read(jobs: int) -> None:
    """Each core has a reader when the last compiler ends. Its cubin gets a reader, too."""
    begun, others_are_read, last_is_read = itertools.count(1), threading.Event(), threading.Event()

    class LastWaits(Compiles):
        def assemble(self, lowered: Lowered, seconds: float) -> Built | Failed:
            assert lowered.code != bytes([jobs]) or others_are_read.wait(60)
            return super().assemble(lowered, seconds)

    def read(cubins: Sequence[bytes]) -> Any:
        if next(begun) >= jobs:
            others_are_read.set()
        if bytes([jobs]) in cubins:
            last_is_read.set()
        assert last_is_read.wait(60), "the last cubin waits for a reader"
        return [cubin[0] for cubin in cubins]

    with CompilerPool(jobs, 1.0, read) as pool:
        for index in range(jobs + 1):
            lowered = Lowered(Configuration.of({"AT": index}), "sm_80", "kernel", bytes([index]))
            pool.add(index, LastWaits(), lowered, None, always=True)  # type: ignore[arg-type]
        assert {index for index, *_ in pool.outcomes()} == set(range(jobs + 1))


@pytest.mark.parametrize("stored", [False, True])
def test_kept_cubins_are_not_compiled_again(stored: bool, tmp_path: Path) -> None:
    """Those in memory, and those in files for a command that resumes the run."""
    kept: KeptCubins = CubinsOfRun(tmp_path / "of a run", lambda: None) if stored else CubinsInMemory()
    lowered, started = Lowered(Configuration.of({"AT": 1}), "sm_80", "kernel", b"code"), list[bytes]()

    class Noting(Compiles):
        def assemble(self, lowered: Lowered, seconds: float) -> Built | Failed:
            started.append(lowered.code)
            return super().assemble(lowered, seconds)

    for _ in range(2):
        with CompilerPool(1, 1.0, lambda cubins: list(cubins), kept=kept) as pool:  # type: ignore[arg-type]
            pool.add(0, Noting(), lowered, None, always=True)  # type: ignore[arg-type]
            [(_, built, code)] = pool.outcomes()
        assert isinstance(built, Built) and built.cubin == code == b"code"
    assert started == [b"code"]


def test_other_candidates_are_compiled_while_tile_ir_is_read() -> None:
    """Reading takes 0.1 s, and a search begins with those candidates that have to be read."""
    compiled = threading.Event()

    class Noting(Compiles):
        def assemble(self, lowered: Lowered, seconds: float) -> Built | Failed:
            if lowered.code == b"small":
                compiled.set()
            return super().assemble(lowered, seconds)

    def entry(lowered: Lowered) -> KernelEntry | None:
        assert compiled.wait(60), "the small one waits for the large one to be read"
        return entry_of(lowered)

    def candidate(code: bytes, *tile: int) -> tuple[Noting, Lowered, Launch]:
        return Noting(), Lowered(Configuration(()), "sm_90", "kernel", code), Launch("kernel", (1,), tile)

    with CompilerPool(1, 1.0, lambda cubins: [cubin[0] for cubin in cubins], entry) as pool:  # type: ignore[misc]
        pool.add(0, *candidate(TILE_IR + b"what tileirdisasm refuses", 256, 256))
        pool.add(1, *candidate(b"small", 64, 64))
        assert not pool.unfit()
        assert {index for index, _, _ in pool.outcomes()} == {0, 1}


class Waits(Compiles):
    """A language whose compiler waits until the test goes on."""

    def __init__(self) -> None:
        self.begun, self.go_on = threading.Event(), threading.Event()

    def assemble(self, lowered: Lowered, seconds: float) -> Built | Failed:
        self.begun.set()
        assert self.go_on.wait(60)
        return super().assemble(lowered, seconds)


def without(*reasons: dict[int, NotStarted]) -> dict[int, Built | Failed]:
    """The outcomes of four candidates, the last two with one code. The reasons are given while the first compiles."""
    language = Waits()
    with CompilerPool(1, 60.0, lambda cubins: [cubin[0] for cubin in cubins]) as pool:  # type: ignore[misc]
        for index, code in enumerate((b"runs", b"waits", b"shared", b"shared")):
            lowered = Lowered(Configuration.of({"AT": index}), "sm_80", "kernel", code)
            pool.add(index, language, lowered, None, always=True)  # type: ignore[arg-type]
        assert language.begun.wait(60) and pool.has_waiting
        for each in reasons:
            pool.leave_out(each)
        language.go_on.set()
        outcomes = list(pool.outcomes())
        assert not pool.has_waiting
    assert all(code == built for _, built, code in outcomes if isinstance(built, Failed))
    return {index: built for index, built, _ in outcomes}


FIRST, SECOND = (NotStarted("compile", f"not compiled: {which}") for which in ("first", "second"))


def test_only_what_waits_for_a_compiler_is_left_out_and_only_with_all_that_share_its_code() -> None:
    outcomes = without({0: FIRST, 1: FIRST, 2: FIRST})
    assert outcomes[1] is FIRST and all(isinstance(outcomes[index], Built) for index in (0, 2, 3))


def test_reasons_may_be_added_to_and_each_candidate_has_its_own() -> None:
    """Two workloads share code, and their reasons come one after the other."""
    outcomes = without({1: FIRST, 2: FIRST}, {1: FIRST, 2: FIRST, 3: SECOND})
    assert [outcomes[index] for index in (1, 2, 3)] == [FIRST, FIRST, SECOND]
