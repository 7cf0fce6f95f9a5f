"""The base class of specialists for kernel languages. They work by the loop of `tilewright optimize`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from tilewright.errors import RequestError
from tilewright.specialists.base import Specialist
from tilewright.specialists.delegation import Delegation, Measure, SpecialistAnswer, light_measure
from tilewright.specialists.proposal import NoProposal, ProgramProposal

if TYPE_CHECKING:
    from tilewright.ledger.records import Metrics
    from tilewright.optimize.optimized import Optimized
    from tilewright.optimize.proposed import Proposer


class KernelSpecialist(Specialist):
    """Makes the kernel of a task faster, or writes a new kernel.

    The delegation's ``file`` names the task, as ``FILE[:TASK]``, or a reference over arrays, as ``FILE.py:FUNCTION``.
    Without a file, the delegation's task names the operation.
    """

    writes_kernels = True
    language: str
    """The name of the language in which the task's kernel must be written."""
    from_references = True
    """Whether the specialist can write new kernels."""
    only: tuple[str, ...] = ()
    """The playbook's entries to try. Empty: all entries of the language."""

    def answer(self, delegation: Delegation, proposers: Sequence[Proposer] = ()) -> SpecialistAnswer:
        """Runs the loop of `optimize`. Changes no file of the user; the result contains the patch.

        proposers: sources of further changes, from a model or a person. They go through the same gate.

        Raises RequestError if the file is no task, or if its kernel is in another language.
        """
        if self.from_references:
            from tilewright.specialists.writing.answering import reference_in, unwritten, written_answer
            from tilewright.specialists.writing.expression import OutsideForms

            try:
                if (source := reference_in(delegation)) is not None:
                    return written_answer(delegation, source, self.language)
            except OutsideForms as error:
                return unwritten(delegation, error)
        if not delegation.file:
            raise RequestError(f"the delegation to {self.name} names no file; give a task as FILE[:TASK]")
        from tilewright.compile.compile import one_language
        from tilewright.hardware.gpu import detect
        from tilewright.hardware.machine import target_of
        from tilewright.optimize.loop import optimize
        from tilewright.task.loading import load_task

        task = load_task(delegation.file)
        written = one_language(task, tuple(task.selected(None)), target_of(None, detect()).board)
        if written != self.language:
            raise RequestError(f"{delegation.file} launches a {written} kernel, which is no work for {self.name}")
        minutes = delegation.seconds / 60
        return answer_of(optimize(task, only=self.only, proposers=proposers, stop_after=minutes))

    def propose(self, delegation: Delegation) -> tuple[ProgramProposal, ...] | NoProposal:
        """Proposes faster versions of the program's own kernels, or else kernels for its functions of torch operations.

        Without a GPU, changes are only stored. The result contains the paths of the stored files, and says that a GPU
        has to confirm the changes.
        """
        from tilewright.specialists.hot.proposing import proposals

        if not self.from_references:  # changing the route of a launch does not change the program's text
            return super().propose(delegation)
        return proposals(delegation, self.language)


def answer_of(result: Optimized) -> SpecialistAnswer:
    """Turns a run into the specialist's result. Predicted times are not measurements, so without a GPU no change is
    called applied.
    """
    record = result.record
    sides = zip(record.baseline, record.final, strict=False)
    measures = tuple(measure for each in sides for measure in _measures(*each, record.run))
    said = f"{result}{_on_tile_ir(result)}; tilewright report {record.run}"
    kept = {f"{record.run}/{one.n}": f"{one.optimization}: {one.reason}" for one in result.kept}
    if not record.measured:
        left = {f"{record.run}/{n}": f"{name}: to be confirmed on a GPU" for n, name, _ in result.to_confirm}
        return SpecialistAnswer("analysed", said, (), {**kept, **left}, result.patch)
    return SpecialistAnswer("applied" if kept else "not applied", said, measures, kept, result.patch)


def _measures(before: Metrics, after: Metrics, run: str) -> Iterator[Measure]:
    """Yields the latency of a workload and its share of the speed of light. Each has a value before and one after.

    Yields nothing if the workload was not measured.
    """
    if before.measured is None or after.measured is None:
        return
    times = before.measured.us, after.measured.us
    yield Measure(f"latency of {before.workload}", "µs", *times, run)
    if before.bound is not None and after.bound is not None:
        yield light_measure(before.workload, (before.bound, times[0]), (after.bound, times[1]), run)


def _on_tile_ir(result: Optimized) -> str:
    """Compares the routes of a Triton kernel on its first workload if Tile IR was tried. Otherwise returns ""."""
    tried = [each for each in result.iterations if each.entry == "tile_ir_route" and each.outcomes]
    if result.record.language != "triton" or not tried:
        return ""
    before, after = result.iterations[0].outcomes[0], tried[-1].outcomes[0]
    times = [(each.measured or each.predicted) for each in (before, after)]
    if None in times:
        return f"; on Tile IR: {tried[-1].reason}"
    first, second = (f"{time.us:.4g} µs" for time in times if time is not None)
    how = "measured" if result.record.measured else "predicted"
    return f"; {before.workload} by Triton's compiler {first}, on Tile IR {second} ({how}): {tried[-1].status}"
