"""Lists what `optimize` would try, in order, and changes nothing: `tilewright optimize FILE --dry-run`."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from tilewright.candidate.client import Candidates
from tilewright.hardware.gpu import detect
from tilewright.hardware.machine import target_of
from tilewright.inspect.work import CountedWork, bound_of, count
from tilewright.ledger.codec import Encodable
from tilewright.ledger.ledger import Ledger
from tilewright.ledger.records import MIXED
from tilewright.optimize.attempting import Builder
from tilewright.optimize.choosing import Past, Proposal, proposals, why_not
from tilewright.optimize.ending import outcome_of
from tilewright.optimize.options import OptimizeRequest, Options
from tilewright.optimize.proposed import FromFiles, Seen, check_changes, proposal_of
from tilewright.playbook.base import KernelFacts, by_present_name
from tilewright.progress import silent
from tilewright.race.rules import Policy
from tilewright.records import Workload
from tilewright.task.loading import editable_files, where_is
from tilewright.task.task import Task
from tilewright.tools import child


@dataclass(frozen=True)
class ProposalPlan:
    """The proposals for the untouched code, the first one first. After a kept change, the order is made anew.

    cannot: entries that cannot read the code, and named entries without a proposal, with the reasons.
    """

    task: str
    arch: str
    proposals: tuple[Proposal, ...]
    cannot: tuple[str, ...]

    def to_json(self) -> dict[str, Encodable]:
        """Returns the object that `optimize --dry-run --json` prints. Scripts rely on these names."""
        rows = [
            {"n": n, "entry": each.entry, "optimization": each.name, "site": each.place, "line": each.line,
             "risk": each.risk, "why": each.why}
            for n, each in enumerate(self.proposals, 1)
        ]  # fmt: skip
        return {"task": self.task, "arch": self.arch, "proposals": rows, "cannot": list(self.cannot)}


def planned(
    task: Task, *, arch: str | None = None, workloads: Sequence[str] | str | None = None, options: Options,
    ledger: Ledger,
) -> ProposalPlan:  # fmt: skip
    """Compiles the untouched code, and asks the changes of ``options`` and the playbook for what they would try.

    Raises RequestError for a wrong argument or task.
    """
    check_changes(options.changes, editable_files(task))
    target = target_of(arch, detect())
    task = task.on(target.board.arch)
    selected = tuple(task.selected(workloads))
    request = OptimizeRequest(task, target, selected, options, Policy(), 0, None, silent)
    texts = request.texts
    with ExitStack() as stack:
        folder = stack.enter_context(child.workplace())
        candidates = stack.enter_context(Candidates(texts))
        builder = Builder(
            candidates, task, where_is(task), target.board, selected, folder, options.jobs, options.seconds
        )
        baseline = builder.build_one("baseline", texts)
        bounds = {workload.name: bound_of(task, workload, target.board) for workload in selected}

        def counted(workload: Workload) -> CountedWork:
            return count(baseline.task, workload, target.board)

        facts = KernelFacts(baseline.task, target.board, selected, bounds, baseline.codes, counted)
        kinds = {bound.kind for bound in bounds.values()}
        kind = MIXED if len(kinds) > 1 else next(iter(kinds))
        history = ledger.history(measured=target.measured, arch=target.board.arch, kind=kind)
        past = Past(
            by_present_name(history), {}, 0, options.lossy, (), {},
            measured=target.measured, by_place=options.policy == "base",
        )  # fmt: skip
        first = [_of_file(path, facts, texts) for path in options.changes]
        ranked, cannot = proposals(texts, facts, request.entries, past)
        present = {proposal.entry for proposal in ranked} | {reason.split()[0] for reason in cannot}
        for entry in request.entries if options.only else ():
            if (about := entry.about).id not in present:
                cannot.append(f"{about.id}: {outcome_of(about, (), (), False, why_not(entry, texts, facts))}")
    return ProposalPlan(task.name, target.board.arch, (*first, *ranked), tuple(cannot))


def _of_file(path: Path, facts: KernelFacts, texts: dict[Path, str]) -> Proposal:
    change = FromFiles([path]).propose(Seen(texts, facts, ()))
    assert change is not None, "one file is one change"
    return proposal_of(change, texts)
