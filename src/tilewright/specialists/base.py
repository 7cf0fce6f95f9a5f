"""Defines the protocol of a specialist, which answers the performance questions of one domain.

    class Sparsity(Specialist):
        name = "sparsity"
        domain = "2:4 structured sparsity of weights"
        returns = "the time of the layer before and after, interleaved"
        names = ("structured sparsity", "2:4 sparsity")

        def needs(self):
            return (need_of_package("torch"), need_of_gpu())

    SPECIALIST = Sparsity()

Put the file into this folder, or name the specialist in the entry point group ``tilewright.specialists`` of your
package. Test it with `tilewright.testing.specialists.SpecialistContract`. `coordinate.routing` finds a specialist by
its ``names``. On a machine that does not meet its needs, a specialist raises MachineError. A specialist that changes
programs overrides `propose`: it returns the new texts, and the coordinator tries them on a copy of the program.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path

from tilewright.errors import MachineError
from tilewright.specialists.delegation import Delegation, SpecialistAnswer
from tilewright.specialists.proposal import NoProposal, ProgramProposal


@dataclass(frozen=True)
class Need:
    """One thing that a specialist needs. ``detail``: what was found on this machine, or how to install it."""

    what: str
    met: bool
    detail: str


class Specialist(ABC):
    """Answers the questions of one domain. Users and plans select a specialist by its ``name`` or an alias."""

    name: str
    order: int = 100
    """Specialists with small numbers are listed first."""
    aliases: tuple[str, ...] = ()
    domain: str
    """The subject of the specialist's questions, in one line."""
    returns: str
    """What the specialist measures and returns, in one line."""
    names: tuple[str, ...] = ()
    """Phrases that identify this domain in a question. A word that ends in ``*`` is the start of a word. ``=CuTe`` must
    match in upper and lower case. ``# gpu`` means ``gpu`` after a number above one, or after a word such as "several".
    Hyphens, underscores and plurals need not be listed."""
    near: tuple[str, ...] = ()
    """Words that name this domain only together with words about GPUs and models."""
    examples: tuple[str, ...] = ()
    """Questions that are routed to this specialist."""
    writes_kernels = False
    """Whether the domain is a kernel language."""
    analyses_anywhere = False
    """Whether `answer` analyses a program also on a machine that does not meet the needs, as far as it can."""
    stated: str = ""
    """The hardware that the compiler's vendor names, if Tilewright also compiles for other hardware."""

    @property
    def works(self) -> bool:
        """Whether the specialist can answer on this machine.

        A specialist that cannot answer is still listed and gets questions. Its answer then names its missing needs.
        """
        return type(self).answer is not Specialist.answer

    @abstractmethod
    def needs(self) -> tuple[Need, ...]:
        """Returns all needs of the specialist, and whether this machine meets them. Must be quick, and start no
        process."""

    def seen(self, script: Path) -> tuple[str, ...]:
        """Returns what the source of a program shows about the domain, a line each. Reads files, and runs nothing.

        A plan shows these lines, also on a machine that does not meet the needs. Default: nothing. Raises OSError.
        """
        return ()

    def answer(self, delegation: Delegation) -> SpecialistAnswer:
        """Answers a delegation with measured values.

        Default: raises MachineError. This is for a specialist that gets questions but cannot work yet.
        """
        missing = "; ".join(f"{need.what}: {need.detail}" for need in self.needs() if not need.met)
        raise MachineError(f"specialist '{self.name}' cannot answer here: {missing or 'this version has no way to'}")

    def propose(self, delegation: Delegation) -> tuple[ProgramProposal, ...] | NoProposal:
        """Proposes changes of the delegation's program (its ``file``), the best first, or says why there is none.

        Edits nothing. Default: no proposal. Raises RequestError if the file cannot be read, MachineError if a tool
        that it needs fails.
        """
        return NoProposal("blocked", f"the specialist '{self.name}' proposes no change of a program")
