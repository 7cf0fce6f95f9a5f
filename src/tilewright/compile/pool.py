"""Compiles candidates in parallel child processes, for `tune` and for the search in the user's process."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, TypeAlias

from tilewright.compile.accumulators import UNFIT, Accumulators, HasToSpill, entry_of
from tilewright.compile.skipped import CompileLimit, NotStarted
from tilewright.languages.base import Identity, Language, Lowered, with_key
from tilewright.languages.kept_cubins import KeptCubins
from tilewright.machine_code.cubin import MachineCodeError
from tilewright.records import Built, Failed, MachineCode
from tilewright.task.task import Launch
from tilewright.tileir.read.tree import KernelEntry
from tilewright.tools import child
from tilewright.tools.child import ToolPool

READERS_OF_TILE_IR = 4
"""Most threads that read Tile IR. Half of the time is in tileirdisasm, the other half holds Python's lock."""
Outcome: TypeAlias = tuple[Built | Failed, MachineCode | Failed]
POLL_SECONDS = 0.1
"""How often the pool looks for compilers that are over a limit."""


class CompilerPool:
    """Threads that each wait for one compiler, and threads that read the cubins with nvdisasm (called readers).

    The methods are for one thread, which lowers candidates and adds them.

    Candidates are known by index. Equal bytecode is compiled once. A start of nvdisasm costs 0.25 s or more of
    processor time, and each cubin costs 0.02 s more. So few readers run while all compilers run, and a reader reads
    many waiting cubins in one run. Each core without a compiler has a reader more. With four cores or more, there are
    more readers than cores at the end, when the last cubins would otherwise wait for a whole run of nvdisasm.

    read: returns the machine code of each cubin, or a `MachineCodeError`.
    entry_of: decodes Tile IR.
    limit_of: returns the limit of a candidate's compiler as it is now; None if it has none. A limit may be set while
        compilers run.
    kept: cubins of this run, or of an interrupted one, which are not compiled again. New ones are added.
    """

    def __init__(
        self, jobs: int, seconds: float, read: Callable[[Sequence[bytes]], Sequence[MachineCode | MachineCodeError]],
        entry_of: Callable[[Lowered], KernelEntry | None] = entry_of,
        limit_of: Callable[[int], CompileLimit | None] | None = None,
        kept: KeptCubins | None = None,
    ) -> None:  # fmt: skip
        self.seconds, self.read, self.accumulators = seconds, read, Accumulators(entry_of)
        self.limit_of, self.kept = limit_of, kept
        self._ended: dict[Hashable, CompileLimit] = {}
        self._asked: dict[int, tuple[Future[bool], Language, Lowered]] = {}
        """The candidates whose Tile IR is being read, by index: whether their accumulators cannot fit."""
        self._unfit: dict[int, tuple[Language, Lowered]] = {}
        self._added: dict[Future[Outcome], list[int]] = {}
        self._jobs: dict[Future[Outcome], Future[None]] = {}
        """The job of each outcome in ``compilers``, which can be cancelled while it waits."""
        self._left_out: dict[int, NotStarted] = {}
        self._keys: dict[int, str | None] = {}
        self.jobs, self.compiling, self.reading = jobs, 0, 0
        self._beside = max(1, jobs // 4)
        """How many readers run while all compilers run."""
        self._most_readers = jobs + jobs // 4
        self.compilers, self.readers = ToolPool(jobs, "tileiras"), ToolPool(self._most_readers, "nvdisasm")
        self._readers_of_tile_ir = ToolPool(min(jobs, READERS_OF_TILE_IR), "tileirdisasm")
        self.unread: list[tuple[Built, Future[Outcome]]] = []
        self._lock = threading.Lock()
        self.seen: dict[Identity, Future[Outcome]] = {}

    def __enter__(self) -> CompilerPool:
        return self

    def __exit__(self, *raised: Any) -> None:
        self._readers_of_tile_ir.__exit__(*raised)
        self.compilers.__exit__(*raised)
        self.readers.__exit__(*raised)

    def add(self, index: int, language: Language, lowered: Lowered, launch: Launch, *, always: bool = False) -> None:
        """Compiles a candidate, unless its accumulators cannot fit into registers.

        Its Tile IR is read meanwhile, and it is compiled with one of the next calls, at the latest with `unfit` or
        `outcomes`.

        always: compiles the candidate even if its accumulators cannot fit.
        """
        if always or lowered.identity in self.seen or not self.accumulators.could_be_unfit(language, launch, lowered):
            self._submit(index, language, lowered)
        else:
            unfit = self._readers_of_tile_ir.submit(self.accumulators.unfit, language, launch, lowered)
            self._asked[index] = unfit, language, lowered
        self._submit_fit(wait_for_all=False)

    @property
    def is_busy(self) -> bool:
        """Whether each compiler has had a candidate."""
        return len(self.seen) >= self.jobs

    def _submit_fit(self, *, wait_for_all: bool) -> None:
        """Compiles the candidates whose Tile IR was read and whose accumulators fit."""
        for index, (unfit, language, lowered) in list(self._asked.items()):
            if wait_for_all or unfit.done():
                del self._asked[index]
                if unfit.result():
                    self._unfit[index] = language, lowered
                else:
                    self._submit(index, language, lowered)

    def unfit(self) -> dict[int, HasToSpill]:
        """Returns the candidates that are not compiled because they would spill, by index, each with the reason."""
        self._submit_fit(wait_for_all=True)
        for index, (language, lowered) in list(self._unfit.items()):
            if lowered.identity in self.seen:  # an identical candidate is compiled anyway
                del self._unfit[index]
                self._submit(index, language, lowered)
        return dict.fromkeys(self._unfit, UNFIT)

    @property
    def has_waiting(self) -> bool:
        """Whether candidates wait for a compiler."""
        return not all(job.running() or job.done() for job in self._jobs.values())

    def leave_out(self, reasons: Mapping[int, NotStarted]) -> None:
        """Leaves out candidates that still wait for a compiler, unless others have the same bytecode.

        May be called in another thread, once all candidates are added. A later call may give more reasons. `outcomes`
        yields each candidate with its own reason.
        """
        for outcome, indices in list(self._added.items()):
            if not outcome.done() and reasons.keys() >= set(indices) and self._jobs[outcome].cancel():
                self._left_out |= {index: reasons[index] for index in indices}
                outcome.set_result((reasons[indices[0]], reasons[indices[0]]))

    def forget(self, index: int) -> None:
        """Forgets a candidate, if it is not compiled."""
        self._submit_fit(wait_for_all=True)
        self._unfit.pop(index, None)

    def compile_unfit(self) -> None:
        """Compiles the candidates that `unfit` returns, too."""
        for index in self.unfit():
            self._submit(index, *self._unfit.pop(index))

    def outcomes(self, index: int | None = None) -> Iterator[tuple[int, Built | Failed, MachineCode | Failed]]:
        """Yields each candidate once, when it is done, with its cubin and the facts from its machine code.

        Candidates of one identity share the cubin, but not its key.

        index: yields only this candidate and those with the same bytecode.
        """
        self._submit_fit(wait_for_all=True)
        wanted = [future for future, indices in self._added.items() if index is None or index in indices]
        while wanted:
            self._end_slow(wanted)
            done = wait(wanted, None if self.limit_of is None else POLL_SECONDS, FIRST_COMPLETED).done
            wanted = [future for future in wanted if future not in done]
            for future in done:
                built, code = future.result()
                for each in self._added.pop(future):
                    if why := self._left_out.get(each):
                        yield each, why, why
                    else:
                        yield each, built if isinstance(built, Failed) else with_key(built, self._keys[each]), code

    def _end_slow(self, wanted: Sequence[Future[Outcome]]) -> None:
        """Ends the compilers that are over the limits of all their candidates."""
        if self.limit_of is None:
            return
        limits: dict[Hashable, CompileLimit] = {}
        for future in wanted:
            each = [self.limit_of(index) for index in self._added[future]]
            known = [limit for limit in each if limit is not None]
            if len(known) == len(each):
                limits[future] = max(known, key=lambda limit: limit.seconds)
        if limits:
            seconds = {job: limit.seconds for job, limit in limits.items()}
            child.kill_slow(seconds, lambda job: self._ended.setdefault(job, limits[job]))

    def _submit(self, index: int, language: Language, lowered: Lowered) -> None:
        if lowered.identity not in self.seen:
            outcome: Future[Outcome] = Future()
            self.seen[lowered.identity] = outcome
            self._jobs[outcome] = self.compilers.submit(self._compile, language, lowered, outcome)
        self._added.setdefault(self.seen[lowered.identity], []).append(index)
        self._keys[index] = language.cache_key(lowered)

    def _compile(self, language: Language, lowered: Lowered, outcome: Future[Outcome]) -> None:
        try:
            known = None if self.kept is None else self.kept.get(lowered)
            built = known or self._assembled(language, lowered, outcome)
            if isinstance(built, Failed):
                outcome.set_result((built, built))
            else:
                with self._lock:
                    self.unread.append((built, outcome))
                self.readers.submit(self._read_waiting)
        except BaseException as error:  # such as a missing compiler or a full disk: raised again in the caller's thread
            outcome.set_exception(error)

    def _assembled(self, language: Language, lowered: Lowered, outcome: Future[Outcome]) -> Built | Failed:
        with self._one_more_compiler(), child.doing(outcome) as spent:
            built = language.assemble(lowered, self.seconds)
        if isinstance(built, Failed):
            return self._ended[outcome].outcome if outcome in self._ended else built
        built = replace(built, processor_seconds=spent.seconds)
        if self.kept is not None:
            self.kept.put(lowered, built)
        return built

    @contextmanager
    def _one_more_compiler(self) -> Iterator[None]:
        with self._lock:
            self.compiling += 1
        try:
            yield
        finally:
            with self._lock:
                self.compiling -= 1

    def _read_waiting(self) -> None:
        """Reads cubins until no cubin waits. Ends at once if enough other readers run."""
        while waiting := self._share():
            try:
                self._read(waiting)
            finally:
                with self._lock:
                    self.reading -= 1

    def _share(self) -> list[tuple[Built, Future[Outcome]]]:
        """Takes cubins from the waiting list for one reader, and adds this reader to the count of running readers.

        Returns an empty list if enough readers run.
        """
        with self._lock:
            enough = min(self._most_readers, self._beside + self.jobs - self.compiling)
            size = -(-len(self.unread) // enough) if self.reading < enough else 0
            share, self.unread = self.unread[:size], self.unread[size:]
            self.reading += bool(share)
        return share

    def _read(self, waiting: Sequence[tuple[Built, Future[Outcome]]]) -> None:
        try:
            codes = self.read([built.cubin for built, _ in waiting])
        except BaseException as error:
            for _, outcome in waiting:
                outcome.set_exception(error)
            return
        for (built, outcome), code in zip(waiting, codes, strict=True):
            read = Failed("machine code", str(code)) if isinstance(code, MachineCodeError) else code
            outcome.set_result((built, read))
