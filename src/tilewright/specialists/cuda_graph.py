"""CUDA graphs: finds what prevents the capture of a program's step, and proposes changes that capture it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from tilewright.errors import RequestError
from tilewright.hardware.gpu import detect
from tilewright.program.changes.base import ProgramChange
from tilewright.program.graphs.changes import GRAPH_CHANGES, GraphChange, ReduceOverhead
from tilewright.specialists.base import Need, Specialist
from tilewright.specialists.changing import command_of, proposal_of, refusal
from tilewright.specialists.delegation import Delegation, Measure, SpecialistAnswer
from tilewright.specialists.needs import need_of_gpu, need_of_package
from tilewright.specialists.proposal import NoProposal, ProgramProposal

if TYPE_CHECKING:
    from tilewright.program.graphs.analysis import GraphAnalysis

TRIAL_SECONDS = 300.0
WORDS = {
    "replayed_forward": ("static buffer", "torch.cuda.graph", "replayed_forward"),
    "graphed_callables": ("make_graphed_callables", "make graphed callables", "graphed_callables"),
    "reduce_overhead": ("reduce-overhead", "reduce overhead", "reduce_overhead"),
}
"""Change → words of a task that ask for it."""


class CudaGraph(Specialist):
    name = "cuda-graph"
    order = 20
    aliases = ("perf-torch-cuda-graph-specialist",)
    domain = (
        "CUDA graphs: whether a program can be captured, capturing and replaying it, why a capture fails, and the cost "
        "of launching many small kernels (launch overhead, launch-bound)"
    )
    returns = "the reasons against capture, by line; equal outputs of replay and eager; the step time before and after"
    names = (
        "cuda graph", "cudagraph*", "make graphed callables", "graph capture", "graph replay", "stream capture",
        "capture and replay", "launch overhead", "launch bound", "launch latency", "launch cost", "kernel launch",
        "cudalaunchkernel", "mode reduce overhead", "reduce overhead mode", "graphed", "stream is capturing",
        "capture the graph", "tiny kernel", "small kernel", "launch gap", "graphable",
        "graph captured", "captured graph", "capturable", "capture fails", "prevents capture", "be captured",
        "breaks capture",
    )  # fmt: skip
    near = ("capture", "captured", "capturing", "replay", "replaying", "replayed")
    examples = (
        "Apply CUDA Graph to my model",
        "Analyze train.py for CUDA Graph compatibility",
        "Get rid of the launch overhead in my decode loop",
    )

    analyses_anywhere = True

    def needs(self) -> tuple[Need, ...]:
        return (need_of_package("torch"), need_of_gpu())

    def seen(self, script: Path) -> tuple[str, ...]:
        """Returns what prevents the capture of the program's step, as the source shows it, a line each."""
        from tilewright.program.graphs.analysis import read_analysis

        read = read_analysis(script)
        if read.no_step:
            return (read.no_step,)
        return tuple(map(str, read.hazards)) or ("the source shows nothing that prevents the capture of a step",)

    def answer(self, delegation: Delegation) -> SpecialistAnswer:
        """Analyses the program of the delegation, and changes nothing.

        Without a GPU, the model runs with fake tensors. With a GPU it is captured, 20 replays are compared with eager
        calls, and both are timed in turn. Raises RequestError if there is no program, or if it has no step.
        """
        found = self._analysed(delegation)
        if found.no_step:
            raise RequestError(found.no_step)
        hazards = found.hazards
        findings = {f"{each.place} {each.kind}": str(each) for each in hazards}
        many = "1 place prevents" if len(hazards) == 1 else f"{len(hazards)} places prevent"
        said = f"{many} a capture" if hazards else "nothing that prevents a capture was found"
        trial = str(found.trial) if found.trial else f"no trial: {found.failed}"
        if found.trial is not None and found.failed:
            trial = f"{trial}; {found.failed}"
        return SpecialistAnswer("analysed", f"{said}; {trial}", tuple(_measures(found)), findings)

    def propose(self, delegation: Delegation) -> tuple[ProgramProposal, ...] | NoProposal:
        """Proposes to replay the model from buffers or, if it trains, its forward and backward pass; and to compile it.

        A replay is proposed only if nothing prevents the capture, and if 20 replays in the program's process were
        right. If no trial was possible, the coordinator's judgement is the only one.
        """
        if detect() is None:
            return NoProposal(
                "blocked", "no GPU here, and a graph can neither be captured nor timed without one", "a GPU"
            )
        found = self._analysed(delegation)
        if found.no_step:
            return NoProposal("inapplicable", found.no_step, found.modules[0].path.name)
        changes = _named(delegation.task) or _fitting(found)
        wrong = _wrong(found)
        possible = [each for each in changes if not wrong or isinstance(each, ReduceOverhead)]
        proposals = tuple(each for change in possible if (each := proposal_of(change, found.modules)) is not None)
        if proposals:
            return tuple(replace(each, rationale=f"{each.rationale}; {_said(found)}") for each in proposals)
        return wrong or refusal(changes, found.modules)

    def _analysed(self, delegation: Delegation) -> GraphAnalysis:
        from tilewright.program.graphs.analysis import analysed

        command = command_of(delegation)
        try:
            return analysed(command, min(TRIAL_SECONDS, delegation.seconds))
        except OSError as error:
            raise RequestError(f"cannot read {command.script}: {error.strerror}") from error


def _named(task: str) -> tuple[ProgramChange, ...]:
    """Returns the changes that a task names."""
    said = task.lower()
    return tuple(each for each in GRAPH_CHANGES if any(word in said for word in WORDS[each.name]))


def _fitting(found: GraphAnalysis) -> tuple[ProgramChange, ...]:
    """Returns the changes for a program that trains, or for one that does not: a kept one blocks the others."""
    return tuple(each for each in GRAPH_CHANGES if not isinstance(each, GraphChange) or each.trains is found.trains)


def _wrong(found: GraphAnalysis) -> NoProposal | None:
    """Returns why the model cannot be captured as it is; None if nothing is known against it."""
    from tilewright.program.graphs.analysis import in_one_line

    trial = found.trial
    if hazards := found.in_forward:
        return NoProposal("inapplicable", f"this prevents a capture: {in_one_line(hazards)}", hazards[0].place)
    if trial is not None and trial.captured is False:
        return NoProposal("inapplicable", trial.note, trial.model)
    if trial is not None and trial.captured and not trial.right:
        why = f"only {trial.within} of {trial.replays} replays give the outputs of an eager call"
        return NoProposal("inapplicable", why, trial.model)
    return None


def _said(found: GraphAnalysis) -> str:
    if found.trial is not None and found.trial.right:
        return "in a trial, replays with changing inputs gave the outputs of eager calls"
    return (
        "its source shows nothing against a capture" if not found.hazards else "what prevents a capture stays outside"
    )


def _measures(found: GraphAnalysis) -> Iterator[Measure]:
    """Yields the time of a call, eager and replayed. The evidence is the hash of the trial's record."""
    from statistics import median

    trial = found.trial
    if trial is not None and trial.eager_us:
        name = "a forward and a backward pass" if trial.trains else "a forward pass"
        times = median(trial.eager_us), median(trial.replay_us)
        yield Measure(f"{name} of {trial.model}, eager and replayed", "µs", *times, f"trial {trial.digest}")


SPECIALIST = CudaGraph()
