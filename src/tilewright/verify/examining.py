"""One case: run the kernel on poisoned, guarded memory, and judge what it left there.

The kernel runs before the reference does. A run that shows a mistake of the kernel raises `Wrong`. A run that shows
nothing raises `Unverified`. `Examiner.examine` turns both into a `Result`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from tilewright.errors import TaskError
from tilewright.records import Configuration, Failed
from tilewright.task.task import Task
from tilewright.task.tensors import ArraySpec, Dims
from tilewright.verify import judge
from tilewright.verify import tolerance as verify
from tilewright.verify.addresses import Reaches, Word
from tilewright.verify.arrays import Array
from tilewright.verify.cases import Case
from tilewright.verify.data import drawn
from tilewright.verify.engine import NO_ALIAS, Engine, Ran, RunOptions
from tilewright.verify.images import POISONS, HostMemory, Image, images_for
from tilewright.verify.judge import Compared, Unverified, Wanted, Wrong, bits, compared, differing
from tilewright.verify.reference import FloatReference

if TYPE_CHECKING:
    from tilewright.tileir.watch.findings import Finding

RELAUNCHES = 3
CHANGES = 4
"""Elements that are tried until changing one changes the answer by more than the allowed error."""

Compiles = Callable[[Configuration, Dims, Mapping[str, ArraySpec]], Failed | None]
"""Why a launch does not compile, or None. An engine alone cannot tell a compiler's error from a crash."""


@dataclass(frozen=True)
class Result:
    """What became of one case."""

    case: Case
    configuration: Configuration
    verdict: Word
    reason: str
    error: Compared | None = None
    findings: tuple[Finding, ...] = ()
    seconds: float = 0.0


@dataclass
class Examiner:
    """Runs and judges the cases of one task on one engine."""

    task: Task
    engine: Engine
    reference: FloatReference
    compiles: Compiles | None = None
    reaches: Reaches | None = None
    uncounted: bool = False
    """Whether some run could not say which kernels ran."""
    _findings: list[Finding] = field(default_factory=list)
    _error: Compared | None = None
    _undefined: tuple[str, ...] = ()

    def examine(self, configuration: Configuration, case: Case) -> Result:
        """The result of one case; raises TaskError only where the task itself is at fault."""
        started = time.perf_counter()
        self._findings, self._error = [], None
        how = {"plain": self._plain, "relaunched": self._relaunched, "in place": self._in_place,
               "caches": self._caches, "addresses": self._addresses}[case.run]  # fmt: skip
        verdict: Word = "correct"
        try:
            self._served(case)
            reason = how(configuration, case)
        except Wrong as wrong:
            verdict, reason, self._error = "incorrect", str(wrong), wrong.compared or self._error
        except Unverified as unverified:
            verdict, reason = "unverified", str(unverified)
        seconds = time.perf_counter() - started
        return Result(case, configuration, verdict, reason, self._error, tuple(self._findings), seconds)

    def _served(self, case: Case) -> None:
        """Raises `Unverified` if the reference fails, on other inputs too, for dimensions that no workload names."""
        if case.why in (*self.task.workloads, "asked for"):
            return
        cut = self._cut(case)
        others = drawn(self.task, verify.sliced_dims(case.sizes, cut), "declared", case.seed + 1)
        try:
            with np.errstate(all="ignore"):
                verify.reference_outputs(self.task, verify.sliced_dims(case.sizes, cut), others)
        except TaskError as error:
            said = str(error).removeprefix(f"reference of task '{self.task.name}' failed: ")
            raise Unverified(f"the reference does not take these dimensions: {said}") from error

    # The four ways to run a case

    def _plain(self, configuration: Configuration, case: Case, alias: Mapping[str, str] = NO_ALIAS) -> str:
        inputs = drawn(self.task, case.sizes, case.data, case.seed)
        first, second = (self._outputs(configuration, case, inputs, number, alias=alias) for number in (0, 1))
        self._same(configuration, case, inputs, first, second, alias)
        return self._right(case, inputs, first, second)

    def _relaunched(self, configuration: Configuration, case: Case) -> str:
        if updated := [name for name, output in self.task.outputs.items() if output.updates]:
            raise Unverified(f"'{updated[0]}' is updated: each launch follows on the one before")
        inputs = drawn(self.task, case.sizes, case.data, case.seed)
        once = self._outputs(configuration, case, inputs, 0)
        often = self._outputs(configuration, case, inputs, 0, launches=RELAUNCHES)
        if self.task.deterministic and (name := differing(once, often)):
            raise Wrong(f"'{name}' after {RELAUNCHES} launches on the same buffers differs from that after one")
        return self._right(case, inputs, once, often)

    def _in_place(self, configuration: Configuration, case: Case) -> str:
        alias = {name: one.in_place_of for name, one in self.task.outputs.items() if one.in_place_of}
        arrays = self.task.arrays(case.sizes)
        for output, source in alias.items():
            if (arrays[output].shape, arrays[output].dtype) != (arrays[source].shape, arrays[source].dtype):
                raise Unverified(f"'{output}' has not the shape and dtype of '{source}', whose place it takes")
        return self._plain(configuration, case, alias)

    def _addresses(self, configuration: Configuration, case: Case) -> str:
        if self.reaches is None:
            raise Unverified("addresses are not followed here")
        reached = self.reaches(configuration, case.sizes, case.seed)
        self._findings += reached.findings
        if reached.verdict != "correct":
            raise (Wrong if reached.verdict == "incorrect" else Unverified)(reached.reason)
        return reached.reason

    def _caches(self, configuration: Configuration, case: Case) -> str:
        """Contents A, then B at the same addresses, A at others, then A with one element changed there. An engine
        changes the addresses every second run."""
        one, other = (drawn(self.task, case.sizes, case.data, case.seed + n) for n in (0, 1))
        first = self._outputs(configuration, case, one, 0)
        fresh = self._outputs(configuration, case, other, 0)
        again = self._outputs(configuration, case, one, 0)
        if self.task.deterministic and (name := differing(first, again)):
            raise Wrong(f"'{name}' is another for the same inputs at other addresses")
        self._right(case, one, first, again)
        self._right(case, other, fresh)
        changed = self._one_changed(case, one)
        if changed is None:
            self._outputs(configuration, case, one, 0)  # the engine's turns stay in step
            return "no single element changes the answer by more than the allowed error"
        self._right(case, changed, self._outputs(configuration, case, changed, 0))
        assert self._error is not None
        return self._error.verdict

    def _one_changed(self, case: Case, inputs: Mapping[str, Array]) -> dict[str, Array] | None:
        """The inputs with one element changed so that the old answer would be wrong."""
        rng = np.random.default_rng(case.seed)
        before = {name: expected.values for name, expected in self._wanted(case, inputs).items()}
        others = drawn(self.task, case.sizes, "large", case.seed + 2)
        for _ in range(CHANGES):
            name = list(inputs)[int(rng.integers(len(inputs)))]
            changed = {**inputs, name: inputs[name].copy()}
            place = int(rng.integers(inputs[name].size))
            changed[name].reshape(-1)[place] = others[name].reshape(-1)[place]
            wanted = self.reference.wanted(case.sizes, changed, case.data)
            if not isinstance(wanted, str) and compared(wanted, before).share > 1:
                return changed
        return None

    # One run

    def _outputs(
        self, configuration: Configuration, case: Case, inputs: Mapping[str, Array], number: int, *,
        launches: int = 1, alias: Mapping[str, str] = NO_ALIAS, poison: int | None = None,
    ) -> dict[str, Array]:  # fmt: skip
        """Runs the kernel once on fresh memory; its outputs, after everything beside them was checked."""
        byte = POISONS[number] if poison is None else poison
        images = images_for(self.task, case.sizes, inputs, case.layout, byte)
        options = RunOptions(launches, 2 * case.seed + number, byte, alias)
        ran = self.engine.run(configuration, case.sizes, images, options)
        self._judge_run(ran, configuration, case, images)
        judge.judge_memory(HostMemory(images, inputs, frozenset(alias.values())))
        return {name: images[alias.get(name, name)].array.copy() for name in self.task.outputs}

    def _judge_run(self, ran: Ran, configuration: Configuration, case: Case, images: Mapping[str, Image]) -> None:
        self._findings += ran.findings
        self._undefined = ran.undefined
        if ran.refused is not None:
            raise Unverified(ran.refused)
        if ran.failed is not None:
            self._judge_failure(ran.failed, configuration, case, images)
        if ran.touched_early:
            raise Wrong(f"the launch function wrote to '{ran.touched_early[0]}' before the kernel ran")
        if ran.findings:
            more = f" (and {len(ran.findings) - 1} more)" if len(ran.findings) > 1 else ""
            raise Wrong(f"{ran.findings[0]}{more}")
        if ran.kernels is None:
            self.uncounted = True
        elif not ran.kernels:
            raise Wrong("no kernel ran")
        elif ran.declared is not None:
            for name in ran.kernels:
                if ran.declared not in name:
                    raise Wrong(f"the kernel '{name}' ran; the launch declares '{ran.declared}' and nothing else")

    def _judge_failure(
        self, failed: Failed, configuration: Configuration, case: Case, images: Mapping[str, Image]
    ) -> None:
        """Raises `Unverified` where the compiler refuses a shape or layout of our choice; all else is `Wrong`."""
        before = failed.stage in ("launch", "front end", "compile", "machine code")
        if before and self.compiles is not None:
            said = self.compiles(configuration, case.sizes, {name: image.spec for name, image in images.items()})
            before, failed = said is not None, said or failed
        ours = case.why not in self.task.workloads or case.layout != "row-major"
        if before and not ours and self.compiles is not None:
            own = self.task.workloads[case.why]
            ours = self.compiles(configuration, own, self.task.arrays(own)) is None
        if before and ours:
            raise Unverified(f"does not compile: {failed.reason}")
        raise Wrong(f"{failed.stage} failed: {failed.reason}")

    # Comparing the outputs

    def _same(
        self, configuration: Configuration, case: Case, inputs: Mapping[str, Array],
        first: Mapping[str, Array], second: Mapping[str, Array], alias: Mapping[str, str],
    ) -> None:  # fmt: skip
        """Bit-equality of two runs; where they differ, a third says what it depends on."""
        if not self.task.deterministic or not (name := differing(first, second)):
            return
        third = self._outputs(configuration, case, inputs, 0, alias=alias, poison=POISONS[1])
        why = "memory that nothing wrote" if differing(first, third) else "the order of the blocks"
        different = np.flatnonzero(bits(first[name]) != bits(second[name]))
        index = tuple(int(i) for i in np.unravel_index(int(different[0]), first[name].shape))
        loads = " and ".join(self._undefined)
        undefined = f"; the load at {loads} reaches outside its tensor and has no padding"
        raise Wrong(
            f"'{name}' depends on {why}: {different.size} of {first[name].size} elements differ between two runs, "
            f"the first at {index}{undefined if loads and why.startswith('memory') else ''}"
        )

    def _right(self, case: Case, inputs: Mapping[str, Array], *runs: Mapping[str, Array]) -> str:
        wanted = self._wanted(case, inputs)
        cut = self._cut(case)
        for outputs in runs:
            for name in outputs:
                if outputs[name].size > wanted[name].values.size:
                    judge.judge_finite(name, outputs[name])
            worst = judge.judge_values(wanted, {n: _part(self.task, n, a, cut) for n, a in outputs.items()})
            if self._error is None or worst.share > self._error.share:
                self._error = worst
        assert self._error is not None
        return self._error.verdict + (f"; {cut}" if cut.indices else "")

    def _cut(self, case: Case) -> verify.Slice:
        return verify.pick_slice(self.task, case.sizes, np.random.default_rng(case.seed))

    def _wanted(self, case: Case, inputs: Mapping[str, Array]) -> dict[str, Wanted]:
        cut = self._cut(case)
        part = {name: _part(self.task, name, array, cut) for name, array in inputs.items()}
        wanted = self.reference.wanted(verify.sliced_dims(case.sizes, cut), part, case.data)
        if isinstance(wanted, str):
            raise Unverified(wanted)
        return wanted


def _part(task: Task, name: str, array: Array, cut: verify.Slice) -> Array:
    for axis, indices in verify.axes_of(task.tensors[name].shape, cut).items():
        array = array.take(indices, axis)
    return array
