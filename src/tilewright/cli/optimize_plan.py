"""The output of `tilewright optimize --dry-run`: the proposals in order, each with its reasons."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tilewright.cli import shared
from tilewright.cli.terminal import stdout
from tilewright.cli.terminal_table import ROWS
from tilewright.printable import plural

if TYPE_CHECKING:
    from tilewright.optimize.planned import ProposalPlan


def show(plan: ProposalPlan, as_json: bool, show_all: bool) -> None:
    """Prints the plan."""
    if as_json:
        return shared.print_json(plan.to_json())
    shown = plan.proposals if show_all else plan.proposals[:ROWS]
    for n, proposal in enumerate(shown, 1):
        lossy = " (lossy)" if proposal.risk == "lossy" else ""
        stdout().print(f"{n:>3}  {proposal.name}{lossy}\n     {proposal.why}", soft_wrap=True, markup=False)
    if rest := len(plan.proposals) - len(shown):
        print(f"and {rest} more (--all)")
    for reason in plan.cannot:
        print(f"left out: {reason}")
    print(f"{plural(len(plan.proposals), 'proposal')} for {plan.task} on {plan.arch}; nothing was changed or stored")
    print("after each kept change the order is made anew; all values of a proposal are one iteration")
    return None
