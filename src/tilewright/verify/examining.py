"""Runs the kernel on one case, in poisoned and guarded memory, and judges the memory afterwards.

The kernel runs before the reference does. A run that shows a mistake of the kernel raises `Wrong`. A run that proves
nothing raises `Unverified`. `Examiner.examine` turns both into a `Result`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tilewright.errors import TaskError
from tilewright.progress import Progress, silent
from tilewright.records import Configuration, Correctness, Failed
from tilewright.task.task import Task
from tilewright.task.tensors import ArraySpec, Dims
from tilewright.tileir.watch.findings import PADDING, Finding
from tilewright.verify import judge, tolerance
from tilewright.verify.addresses import Reaches
from tilewright.verify.arrays import Array, NamedArrays
from tilewright.verify.cases import NOT_BY_THE_ENGINE, Case
from tilewright.verify.data import drawn
from tilewright.verify.engine import NO_ALIAS, Engine, Ran, RunOptions
from tilewright.verify.images import POISONS, ROW_MAJOR, HostMemory, Image, images_for, too_large
from tilewright.verify.judge import Compared, Unverified, Wanted, Wrong, bits, differing
from tilewright.verify.own_shape import OwnShapes
from tilewright.verify.reference import FloatReference

if TYPE_CHECKING:
    from tilewright.tileir.read.tree import Location

RELAUNCHES = 3
DRAWN = 1 << 24  # for a dry run with larger tensors, the reference is not tried
REMEDY = (
    "'{}' depends on elements that this load leaves undefined (outside the tensor or masked out); give the load a "
    "padding that the result ignores, such as padding_mode=ct.PaddingMode.ZERO"
)
CHANGES = 4  # attempts to find an element that changes the expected outputs by more than the allowed error

Compiles = Callable[[Configuration, Dims, Mapping[str, ArraySpec]], Failed | None]
"""Returns the reason why a launch does not compile; None if the launch compiles.

An engine alone cannot distinguish a compiler error from a crash of the kernel.
"""
UNWRITTEN = "memory that nothing wrote"
OWN_CONFIGURATION = (
    "not applicable: on such data, the captured kernel itself gives another result with this configuration, and so "
    "does this one"
)


@dataclass(frozen=True)
class Result:
    """The verdict on one case."""

    case: Case
    configuration: Configuration
    verdict: Correctness
    reason: str
    error: Compared | None = None
    findings: tuple[Finding, ...] = ()
    seconds: float = 0.0


@dataclass
class Examiner:
    """Runs and judges the cases of one task on one engine.

    uncounted: True if the engine cannot tell which kernels ran.
    progress: shows the progress of long cases.
    """

    task: Task
    engine: Engine
    reference: FloatReference
    compiles: Compiles | None = None
    reaches: Reaches | None = None
    own_shapes: OwnShapes | None = None
    uncounted: bool = False
    progress: Progress = silent

    def examine(self, configuration: Configuration, case: Case) -> Result:
        """Runs and judges one case. Raises TaskError only if the task itself is wrong."""
        started, run = time.perf_counter(), _CaseRun(self, configuration, case)
        ways = {"plain": run.plain, "relaunched": run.relaunched, "in place": run.in_place, "caches": run.caches,
                "addresses": run.addresses, "own shape": run.own_shape}  # fmt: skip
        verdict: Correctness = "correct"
        try:
            run.refuse_large()
            run.refuse_unserved()
            reason = ways[case.run]()
            if run.exchanged is not None:
                raise Unverified(run.exchanged)
        except Wrong as wrong:
            verdict, run.error = "incorrect", wrong.compared or run.error
            reason = "; ".join([str(wrong), *map(str, run.undefined_padding())])
        except Unverified as unverified:
            verdict, reason = "unverified", str(unverified)
        except MemoryError as error:
            verdict, reason = "unverified", f"out of memory: {error}"
        seconds = time.perf_counter() - started
        return Result(case, configuration, verdict, reason, run.error, tuple(run.findings), seconds)


class _CaseRun:
    """One case that is being run, with a method for each way to run it. Keeps the errors and findings so far."""

    def __init__(self, examiner: Examiner, configuration: Configuration, case: Case) -> None:
        self.examiner, self.task = examiner, examiner.task
        self.configuration, self.case = configuration, case
        self.cut = tolerance.pick_slice(self.task, case.sizes, np.random.default_rng(case.seed))
        self.findings: list[Finding] = []
        self.error: Compared | None = None
        self.undefined: tuple[Location, ...] = ()
        self.exchanged: str | None = None
        self.latest: tuple[NamedArrays, Mapping[str, str]] | None = None

    def refuse_large(self) -> None:
        sizes = self.case.sizes
        if self.case.run in NOT_BY_THE_ENGINE:  # these need little memory, and have their own limits
            return
        if (reason := too_large(self.task, sizes, tolerance.sliced_dims(sizes, self.cut))) is not None:
            raise Unverified(reason)

    def refuse_unserved(self) -> None:
        """Raises `Unverified` if the reference fails for dimensions that no workload names."""
        case = self.case
        if case.why in (*self.task.workloads, "asked for"):
            return
        dims = tolerance.sliced_dims(case.sizes, self.cut)
        if case.run == "addresses" and any(math.prod(array.shape) > DRAWN for array in self.task.arrays(dims).values()):
            return  # the dry run needs no data; data for the reference would not fit into memory
        try:
            with np.errstate(all="ignore"):
                tolerance.reference_outputs(self.task, dims, drawn(self.task, dims, "declared", case.seed + 1))
        except TaskError as error:
            message = str(error).removeprefix(f"reference of task '{self.task.name}' failed: ")
            raise Unverified(f"the reference does not take these dimensions: {message}") from error

    # The ways to run a case

    def plain(self, alias: Mapping[str, str] = NO_ALIAS) -> str:
        inputs = self.drawn()
        first, second = (self.outputs(inputs, number, alias=alias) for number in (0, 1))
        self.judge_equality(inputs, first, second, alias)
        return self.judge_values(inputs, first, second)

    def relaunched(self) -> str:
        if updated := [name for name, output in self.task.outputs.items() if output.updates]:
            raise Unverified(f"'{updated[0]}' is updated: each launch depends on the launch before")
        inputs = self.drawn()
        once, often = self.outputs(inputs, 0), self.outputs(inputs, 0, launches=RELAUNCHES)
        if self.task.deterministic and (name := differing(once, often)):
            raise Wrong(f"'{name}' differs between one launch and {RELAUNCHES} launches on the same buffers")
        return self.judge_values(inputs, once, often)

    def in_place(self) -> str:
        return self.plain(self.task.in_place)

    def addresses(self) -> str:
        if self.examiner.reaches is None:
            raise Unverified("this check cannot follow addresses")
        reached = self.examiner.reaches(self.configuration, self.case.sizes, self.case.seed)
        self.findings += reached.findings
        if reached.verdict != "correct":
            raise (Wrong if reached.verdict == "incorrect" else Unverified)(reached.reason)
        return reached.reason

    def own_shape(self) -> str:
        if (own_shapes := self.examiner.own_shapes) is None:
            raise Unverified("only the interpreter can check a workload's full size")
        case, reference, progress = self.case, self.examiner.reference, self.examiner.progress
        compared = own_shapes.check(self.configuration, case.sizes, case.seed, reference, progress)
        self.error = compared
        return f"{compared.verdict}; checked: all addresses, and the values of some blocks"

    def caches(self) -> str:
        """Detects cached results by four runs. Returns the verdict in words; raises `Wrong` for a cached result.

        The first run has inputs A, the second run has inputs B at the same addresses. The third run has inputs A at
        other addresses. The fourth run has the addresses of the third run, and A with one changed element. The engine
        changes the addresses after every second run.
        """
        inputs, others = self.drawn(), self.drawn(1)
        first, fresh, again = (self.outputs(values, 0) for values in (inputs, others, inputs))
        if self.task.deterministic and (name := differing(first, again)):
            raise Wrong(f"'{name}' differs for the same inputs at other addresses")
        self.judge_values(inputs, first, again)
        self.judge_values(others, fresh)
        changed = self.one_changed(inputs)
        if changed is None:
            self.outputs(inputs, 0)  # the number of runs must be even, because the engine's addresses depend on it
            return "no single element changes the expected outputs by more than the allowed error"
        self.judge_values(changed, self.outputs(changed, 0))
        assert self.error is not None
        return self.error.verdict

    def drawn(self, number: int = 0) -> dict[str, Array]:
        return drawn(self.task, self.case.sizes, self.case.data, self.case.seed + number)

    def one_changed(self, inputs: NamedArrays) -> dict[str, Array] | None:
        """Returns the inputs with one element changed so that the expected outputs change, too.

        Returns None if no attempt succeeds.
        """
        case, rng = self.case, np.random.default_rng(self.case.seed)
        before = {name: expected.values for name, expected in self.wanted(inputs).items()}
        others = drawn(self.task, case.sizes, "large", case.seed + 2)
        for _ in range(CHANGES):
            name = list(inputs)[int(rng.integers(len(inputs)))]
            changed = {**inputs, name: inputs[name].copy()}
            compared = self.part(name, np.arange(inputs[name].size).reshape(inputs[name].shape)).reshape(-1)
            place = int(compared[int(rng.integers(compared.size))])
            changed[name].reshape(-1)[place] = others[name].reshape(-1)[place]
            wanted = self.expected(changed)
            if not isinstance(wanted, str) and judge.compared(wanted, before).share > 1:
                return changed
        return None

    # One run

    def outputs(
        self, inputs: NamedArrays, number: int, *, launches: int = 1, alias: Mapping[str, str] = NO_ALIAS,
        poison: int | None = None, changed_padding: Location | None = None,
    ) -> dict[str, Array]:  # fmt: skip
        """Runs the kernel on fresh memory and returns the outputs, by name.

        Judges the memory and the kernels that ran, but not the values of the outputs.
        """
        case, byte = self.case, POISONS[number] if poison is None else poison
        images = images_for(self.task, case.sizes, inputs, case.layout, byte)
        options = RunOptions(launches, 2 * case.seed + number, byte, alias, changed_padding)
        self.latest = inputs, alias
        ran = self.examiner.engine.run(self.configuration, case.sizes, images, options)
        self.judge_run(ran, images)
        self.judge_kernels(ran, launches)
        judge.judge_memory(HostMemory(images, inputs, frozenset(alias.values())))
        return {name: images[alias.get(name, name)].array.copy() for name in self.task.outputs}

    def judge_run(self, ran: Ran, images: Mapping[str, Image]) -> None:
        self.findings += ran.findings
        self.exchanged = self.exchanged or ran.exchanged
        self.undefined = ran.undefined
        if ran.refused is not None:
            raise Unverified(ran.refused)
        if ran.failed is not None:
            self.judge_failure(ran.failed, images)
        if ran.touched_early:
            raise Wrong(f"the launch function wrote to '{ran.touched_early[0]}' before the kernel ran")
        if ran.findings:
            more = f" (and {len(ran.findings) - 1} more)" if len(ran.findings) > 1 else ""
            raise Wrong(f"{ran.findings[0]}{more}")

    def judge_kernels(self, ran: Ran, launches: int) -> None:
        """Raises `Wrong` unless only the compiled kernel ran, once for each launch, without copies from the host."""
        if ran.kernels is None:
            self.examiner.uncounted = True
            return
        if not ran.kernels:
            raise Wrong("no kernel ran")
        for name in ran.kernels:
            if name != ran.declared:
                raise Wrong(f"the kernel '{name}' ran, but the launch compiles only '{ran.declared}'")
        if len(ran.kernels) != launches:
            raise Wrong(f"the kernel ran {len(ran.kernels)} times in {launches} launches")
        if ran.uploads:
            raise Wrong(f"the launch copied data from the host to the device ({ran.uploads} copies)")

    def judge_failure(self, failed: Failed, images: Mapping[str, Image]) -> None:
        """Raises `Unverified` if a tool failed, or if the compiler refuses a shape or layout that the check itself
        chose.

        Raises `Wrong` for all other failures.
        """
        case, compiles, workloads = self.case, self.examiner.compiles, self.task.workloads
        compiler = failed.stage in ("launch", "front end", "compile", "machine code")
        chosen = case.why not in workloads or case.layout != ROW_MAJOR
        if compiler and compiles is not None:
            refused = compiles(self.configuration, case.sizes, {name: image.spec for name, image in images.items()})
            compiler, failed = refused is not None, refused or failed
            if compiler and not chosen:  # perhaps the compiler refuses the reduced shape only
                own = workloads[case.why]
                refused = compiles(self.configuration, own, self.task.arrays(own))
                chosen = refused is None or refused.stage == "tool"
        if failed.stage == "tool":
            raise Unverified(failed.reason)
        if compiler and chosen:
            what = "its launch fails" if failed.stage == "launch" else "does not compile"
            raise Unverified(f"{what}: {failed.reason}")
        raise Wrong(f"{failed.stage} failed: {failed.reason}")

    def undefined_padding(self) -> list[Finding]:
        """Finds the loads of undefined elements that change the outputs of a wrong kernel.

        The kernel is run again for each load, with other bytes in the undefined elements of this load.
        """
        if self.findings or self.latest is None:
            return []
        (inputs, alias), loads = self.latest, self.undefined
        with suppress(Wrong, Unverified):
            before = self.outputs(inputs, 0, alias=alias)
            for load in loads:
                if name := differing(before, self.outputs(inputs, 0, alias=alias, changed_padding=load)):
                    self.findings.append(Finding(PADDING, REMEDY.format(name), load))
        return self.findings

    # Comparing the outputs

    def judge_equality(
        self, inputs: NamedArrays, first: NamedArrays, second: NamedArrays,
        alias: Mapping[str, str],
    ) -> None:  # fmt: skip
        """Raises `Wrong` if the outputs of two runs differ in a bit.

        A third run shows whether the poison or the order of the blocks is the reason.
        """
        if not self.task.deterministic or not (name := differing(first, second)):
            return
        third = self.outputs(inputs, 0, alias=alias, poison=POISONS[1])
        why = UNWRITTEN if differing(first, third) else "the order of the blocks"
        different = np.flatnonzero(bits(first[name]) != bits(second[name]))
        index = tuple(int(i) for i in np.unravel_index(int(different[0]), first[name].shape))
        raise Wrong(
            f"'{name}' depends on {why}: {different.size} of {first[name].size} elements differ between two runs, "
            f"the first at {index}"
        )

    def judge_values(self, inputs: NamedArrays, *runs: NamedArrays) -> str:
        wanted = self.wanted(inputs)
        for outputs in runs:
            for name in outputs:
                if outputs[name].size > wanted[name].values.size:
                    judge.judge_finite(name, outputs[name])
            worst = self.judge_part(inputs, wanted, {name: self.part(name, array) for name, array in outputs.items()})
            if self.error is None or worst.share > self.error.share:
                self.error = worst
        assert self.error is not None
        return self.error.verdict + (f"; {self.cut}" if self.cut.indices else "")

    def judge_part(self, inputs: NamedArrays, wanted: Mapping[str, Wanted], outputs: NamedArrays) -> Compared:
        """Judges the outputs of the compared slice. Raises `Unverified` if they are wrong because a captured kernel
        does the same with this configuration, on data that no workload declares."""
        try:
            return judge.judge_values(wanted, outputs)
        except Wrong:
            if self.case.data == "declared":
                raise
            others = self.examiner.reference.of_configuration(*self._compared_part(inputs), wanted, self.configuration)
            if others is None or not judge.compared(others, outputs).share <= 1:
                raise
        raise Unverified(OWN_CONFIGURATION)

    def expected(self, inputs: NamedArrays) -> dict[str, Wanted] | str:
        """Returns the expected outputs of the compared slice, or the reason why there are none."""
        return self.examiner.reference.wanted(*self._compared_part(inputs), self.case.data)

    def _compared_part(self, inputs: NamedArrays) -> tuple[Dims, dict[str, Array]]:
        """Returns the dimensions and the inputs of the compared slice."""
        part = {name: self.part(name, array) for name, array in inputs.items()}
        return tolerance.sliced_dims(self.case.sizes, self.cut), part

    def wanted(self, inputs: NamedArrays) -> dict[str, Wanted]:
        wanted = self.expected(inputs)
        if isinstance(wanted, str):
            raise Unverified(wanted)
        return wanted

    def part(self, name: str, array: Array) -> Array:
        return tolerance.cut(self.task, name, array, self.cut)
