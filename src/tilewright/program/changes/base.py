"""Defines the protocol of a change of a user's PyTorch program.

    class BenchmarkConvolutions(ProgramChange):
        name = "cudnn_benchmark"
        about = "lets cuDNN choose the fastest convolution for each shape"
        words = ("cudnn benchmark", "convolution autotune*")
        findings = ("hot-kernel",)

        def look(self, module):
            ...

    CHANGE = BenchmarkConvolutions()

Put the file into this folder, or name the change in the entry point group ``tilewright.program.changes`` of your
package. Test it with `tilewright.testing.changes.ChangeContract`. Only `look` must be written. It yields a `ChangeSite`
for each place where the source shows that the change is correct. For a similar place where this is not shown, it yields
a `NearMiss` with the reason. Each changed program is run, compared and raced afterwards, but `look` must already leave
out every wrong change.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, TypeAlias

from tilewright.ledger.records import Risk
from tilewright.program.reading.module import Edit, ReadModule

Impact: TypeAlias = Literal["High", "Medium", "Low"]
Inapplicable: TypeAlias = Literal["mechanism already present", "inapplicable", "blocked"]


@dataclass(frozen=True)
class ChangeSite:
    """One place where the source shows that a change is correct, with the edits that make it.

    ``line`` is from 1. ``what`` says in a few words what is changed. ``note`` says what a reader should know, for
    example that random numbers differ.
    """

    line: int
    what: str
    edits: tuple[Edit, ...]
    note: str = ""


@dataclass(frozen=True)
class NearMiss:
    """A place that resembles a site of a change, and why the change is not made there."""

    line: int
    reason: str


class ProgramChange(ABC):
    """One kind of change, without state."""

    name: str
    """The name of the change in commands, ledgers and reports."""
    about: str
    """What the change does and why that helps, in one sentence."""
    risk: Risk = "lossless"
    impact: Impact = "Medium"
    """How much the change usually gains where it applies. Changes of high impact are tried first."""
    words: tuple[str, ...] = ()
    """Phrases that identify this change in a recommendation. All parts of one entry must be in the recommendation. A
    part that ends in ``*`` is the start of a word.
    """
    findings: tuple[str, ...] = ()
    """The kinds of profile findings that the change can remedy, such as ``host-sync``."""
    ran: tuple[str, ...] = ()
    """Patterns of names of operations or kernels that appear, or appear more often, when the changed code runs."""
    gone: tuple[str, ...] = ()
    """Patterns of names of operations or kernels that disappear, or appear less often."""
    order: int = 100
    """Changes with a small ``order`` are proposed first."""
    asked_only = False
    """Whether the change is proposed only if the user asks for it or allows it."""
    never: tuple[Inapplicable, str] | None = None
    """Set if Tilewright knows the recommendation but never follows it: the kind of the refusal, and the reason."""
    absent: str = "the program has no place for it"
    """The reason if `look` yields nothing."""

    @abstractmethod
    def look(self, module: ReadModule) -> Iterator[ChangeSite | NearMiss]:
        """Yields the places of a file where the change is correct, and similar places where this is not shown."""

    def rewrite(self, module: ReadModule, *sites: ChangeSite) -> str:
        """Returns the whole new source text with the change made at these sites of the file.

        A site that overlaps an earlier one is left out; a later call can make it.
        """
        edits: list[Edit] = []
        for site in sites:
            if not any(new.overlaps(old) for new in site.edits for old in edits):
                edits += site.edits
        return module.edited(edits)

    def present(self, module: ReadModule) -> str:
        """Returns one line with ``file:line`` if the file already has the mechanism; else an empty string."""
        return ""

    def sites(self, module: ReadModule) -> tuple[ChangeSite, ...]:
        """Returns the places of a file where the change is correct, in source order."""
        found = (each for each in self._seen(module) if isinstance(each, ChangeSite))
        return tuple(sorted(found, key=lambda site: site.line))

    def near_misses(self, module: ReadModule) -> tuple[NearMiss, ...]:
        """Returns the places of a file that resemble a site, in source order."""
        found = (each for each in self._seen(module) if isinstance(each, NearMiss))
        return tuple(sorted(found, key=lambda miss: miss.line))

    def _seen(self, module: ReadModule) -> Iterator[ChangeSite | NearMiss]:
        return iter(()) if module.unreadable else self.look(module)
