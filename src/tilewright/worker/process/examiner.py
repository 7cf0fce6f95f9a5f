"""Running a candidate on poisoned, guarded buffers with fresh inputs, and judging what it wrote.

One `DeviceExaminer` serves all candidates of a workload: two draws of inputs, each with its float64
reference on slices and, where the task names a trusted implementation, that one's whole output.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from tilewright.errors import TaskError
from tilewright.records import Checked
from tilewright.task.task import Dims, Task, call_by_name
from tilewright.verify import tolerance as verify
from tilewright.verify.images import POISONS
from tilewright.worker.process.buffers import Buffers, whole_difference

Tensors = Mapping[str, torch.Tensor]
Runner = Callable[[Any], None]

TIMING_DRAW = 7919
"""Added to the seed for the inputs that are timed: other values than those that were checked."""


@dataclass(frozen=True)
class Draw:
    """One set of inputs, and what the outputs should be."""

    seed: int
    poison: int
    part: verify.Slice
    wanted: Mapping[str, verify.Array]
    allowed: Mapping[str, verify.Allowance]
    trusted: Mapping[str, torch.Tensor] | None


class Wrong(Exception):
    """A candidate's output is wrong; the message says where and how much."""


class DeviceExaminer:
    def __init__(self, task: Task, dims: Dims, device: str, seed: int, draws: int = len(POISONS)) -> None:
        """``draws``: of inputs, each with a reference; one is enough where others were compared before."""
        self.task, self.dims, self.seed, self.device = task, dict(dims), seed, device
        self.buffers = Buffers(task, dims, device)
        self._agreed: dict[int, dict[str, torch.Tensor]] = {}
        rng = np.random.default_rng(seed)
        self.draws = tuple(self._prepared(seed + n, poison, rng) for n, poison in enumerate(POISONS[:draws]))
        if draws > 1 and (reason := verify.degenerate(self.draws[0].wanted, self.draws[1].wanted)):
            raise TaskError(f"task '{task.name}': {reason}; a check against it would prove nothing")

    def described(self) -> list[str]:
        return [f"seed {draw.seed}: {draw.part} against float64" for draw in self.draws]

    def check(self, bind: Callable[[Tensors], Runner]) -> Checked:
        """``bind`` makes a runner for tensors: once on separate buffers, once in place where declared."""
        worst, cases = 0.0, []
        try:
            for draw in self.draws:
                tensors = self.buffers.tensors()
                worst = max(worst, self._examined(draw, tensors, bind(tensors)))
                cases.append(f"seed {draw.seed}: {draw.part}; every element written and near the others'")
            if any(output.in_place_of for output in self.task.outputs.values()):
                tensors = self.buffers.tensors(in_place=True)
                worst = max(worst, self._examined(self.draws[0], tensors, bind(tensors), in_place=True))
                cases.append("in place, as deployed")
        except Wrong as wrong:
            return Checked("incorrect", str(wrong), None, tuple(cases))
        how = next(iter(self.draws[0].allowed.values())).why
        return Checked("correct", f"{worst:.0%} of the allowed error ({how})", worst, tuple(cases))

    def timing_tensors(self) -> dict[str, torch.Tensor]:
        """Buffers to time on, with inputs that no check has seen."""
        self.buffers.draw(self.seed + TIMING_DRAW)
        self.buffers.restore()
        return self.buffers.tensors()

    def trusted_runner(self) -> Runner:
        """The trusted implementation on the timing buffers, as something that can be timed."""

        def run(stream: Any) -> None:
            self._trusted()

        return run

    def check_timed(self, runner: Runner) -> str | None:
        """One more check on the buffers that were timed; the reason if it fails (trust.md 12)."""
        try:
            self._examined(self.draws[-1], self.buffers.tensors(), runner)
        except Wrong as wrong:
            return f"after timing: {wrong}"
        return None

    def _prepared(self, seed: int, poison: int, rng: np.random.Generator) -> Draw:
        self.buffers.draw(seed)
        part = verify.pick_slice(self.task, self.dims, rng)
        wanted = verify.reference_outputs(
            self.task, verify.sliced_dims(self.dims, part), self.buffers.input_slices(part)
        )
        trusted = self._trusted()
        allowed = {}
        for name, spec in self.task.outputs.items():
            error = None
            if trusted is not None:
                error = verify.error_of(self.buffers.slice_of(name, trusted[name], part), wanted[name])
                if not error.total <= verify.TRUSTED_AT_MOST:
                    raise TaskError(
                        f"trusted of task '{self.task.name}': '{name}' is {error.total:.2g} of its norm from the "
                        "float64 reference; one of the two is wrong, and candidates would be allowed as much"
                    )
            allowed[name] = verify.allowance(spec.dtype, error, precision=self.task.precision)
        return Draw(seed, poison, part, wanted, allowed, trusted)

    def _trusted(self) -> dict[str, torch.Tensor] | None:
        if self.task.trusted is None:
            return None
        inputs = {name: self.buffers.all[name].tensor for name in self.task.inputs}
        what = f"trusted of task '{self.task.name}'"
        try:
            result = call_by_name(self.task.trusted, {**self.dims, **inputs}, what)
        except (TypeError, ValueError, RuntimeError) as error:
            raise TaskError(f"{what} failed: {next(iter(str(error).splitlines()), '')}") from error
        results = result if isinstance(result, tuple) else (result,)
        if not all(isinstance(one, torch.Tensor) for one in results):
            raise TaskError(f"{what} returned {', '.join(type(one).__name__ for one in results)}, not tensors")
        if len(results) != len(self.task.outputs):
            raise TaskError(f"{what} returned {len(results)} tensors for the outputs {', '.join(self.task.outputs)}")
        named = dict(zip(self.task.outputs, results, strict=True))
        for name, one in named.items():
            if one.shape != (wanted := self.buffers.all[name].tensor.shape):
                raise TaskError(f"{what} has shape {tuple(one.shape)} for '{name}'; the task declares {tuple(wanted)}")
        return named

    def _examined(self, draw: Draw, tensors: Tensors, runner: Runner, *, in_place: bool = False) -> float:
        """The share of the allowed error; raises `Wrong`."""
        self.buffers.draw(draw.seed)
        before = self.buffers.checksums()
        self.buffers.poison(draw.poison)
        self._run(runner)
        if outside := self.buffers.out_of_bounds():
            raise Wrong(f"wrote outside the buffer of {', '.join(outside)} ({self._case(draw)})")
        written = {output.in_place_of for output in self.task.outputs.values()} if in_place else set()
        after = self.buffers.checksums()
        if changed := [name for name in before if name not in written and after[name] != before[name]]:
            raise Wrong(f"changed its input {', '.join(changed)} ({self._case(draw)})")
        share = self._compared(draw, tensors)
        self._compare_whole(draw, tensors)
        return share

    def _run(self, runner: Runner) -> None:
        if self.device == "cpu":
            runner(None)
            return
        runner(torch.cuda.current_stream().cuda_stream)
        torch.cuda.synchronize()  # every launch's error is read (trust.md 14)

    def _compared(self, draw: Draw, tensors: Tensors) -> float:
        worst = 0.0
        for name, got in self.buffers.output_slices(draw.part, tensors).items():
            error, allowed = verify.error_of(got, draw.wanted[name]), draw.allowed[name]
            share = verify.share(error, allowed)
            if share > 1:
                raise Wrong(
                    f"'{name}' at {error.index} of the slice is {error.got:.6g}, should be {error.wanted:.6g}: "
                    f"{share:.3g} × the allowed error ({allowed.why}; {self._case(draw)})"
                )
            worst = max(worst, share)
        return worst

    def _compare_whole(self, draw: Draw, tensors: Tensors) -> None:
        """Every element, on the device: against the trusted output, or the first correct candidate's."""
        others = draw.trusted if draw.trusted is not None else self._agreed.get(draw.seed, tensors)
        whose = "the trusted implementation" if draw.trusted is not None else "the first correct candidate"
        for name in self.task.outputs:
            difference, finite = whole_difference(tensors[name], others[name])
            limit = (1 + 1 / verify.FACTOR) * draw.allowed[name].worst + 1e-12
            if not finite:
                raise Wrong(f"'{name}' is not finite everywhere, or not written ({self._case(draw)})")
            if difference > 2 * limit:
                raise Wrong(f"'{name}' is {difference:.3g} from {whose}'s outside the slices ({self._case(draw)})")
        if others is tensors:
            self._agreed[draw.seed] = {name: tensors[name].clone() for name in self.task.outputs}

    def _case(self, draw: Draw) -> str:
        dims = ", ".join(f"{name}={value}" for name, value in self.dims.items())
        return f"{dims}; seed {draw.seed}, poison 0x{draw.poison:02X}"
