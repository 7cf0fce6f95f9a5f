"""Compares a change on the other architectures that a kernel ships on.

A change that is kept on one architecture is compiled for the others, too, and its times there are predicted. If it is
slower there, or does not compile, it is refused, because the source has only one form for all. Hints and configurations
have a value per architecture (`playbook.analyses.per_architecture`), so they change nothing elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from tilewright.hardware.architectures import default_board
from tilewright.optimize.attempting import Builder, Variant
from tilewright.optimize.decide import PREDICTED_WORTH
from tilewright.optimize.gates.base import Judged
from tilewright.playbook.analyses.edited_files import edited_files
from tilewright.playbook.analyses.per_architecture import elsewhere

Texts = Mapping[Path, str]
ALLOW = "--allow-slower-elsewhere"


@dataclass
class OtherArchitectures:
    """The builders for the other architectures of a task, by name. ``allowed``: whether a change may be slower."""

    builders: Mapping[str, Builder]
    allowed: bool = False
    _incumbents: dict[str, tuple[Texts, Variant | str]] = field(default_factory=dict)
    _built: int = 0

    @classmethod
    def of(cls, builder: Builder, baseline: Variant, allowed: bool) -> OtherArchitectures:
        """Finds the architectures that the untouched code names (`per_architecture.elsewhere`)."""
        sources = [files.source for files in edited_files(baseline.texts)]
        named = frozenset[str]().union(
            *(elsewhere(source, baseline.task, name) for source in sources for name in source.kernels)
        ) | {*baseline.task.architectures, *baseline.task.space.shipped_for}
        others = sorted(named - {builder.board.arch})
        return cls({arch: replace(builder, board=default_board(arch)) for arch in others}, allowed)

    def judged(self, judged: Judged, incumbent: Variant) -> Judged:
        """Returns the judgement with the predicted change elsewhere. A change that is slower there is not kept."""
        if not self.builders or not (judged.keep or judged.to_confirm):
            return judged
        compared = [self._compared(arch, incumbent.texts, judged.best.texts) for arch in self.builders]
        reason = f"{judged.reason}; elsewhere: {', '.join(text for text, _ in compared)}"
        if not any(worse for _, worse in compared):
            return replace(judged, reason=reason)
        if self.allowed:
            return replace(judged, reason=f"{reason} ({ALLOW})")
        return replace(judged, keep=False, to_confirm=False, reason=f"{reason}: refused; {ALLOW} keeps it")

    def _compared(self, arch: str, before: Texts, after: Texts) -> tuple[str, bool]:
        """Returns what a change does on ``arch``, in a few words, and whether it is a regression."""
        incumbent, candidate = self._incumbent(arch, before), self._build(arch, after)
        if isinstance(incumbent, str):
            return f"{arch} not compared ({incumbent})", False
        if isinstance(candidate, str):
            return f"{arch} {candidate}", True
        if candidate.identity == incumbent.identity:
            return f"{arch} unchanged", False
        ratios = {name: time.us / incumbent.predicted[name].us for name, time in candidate.predicted.items()}
        name, worst = max(ratios.items(), key=lambda each: each[1])
        where = f" on {name}" if len(ratios) > 1 else ""
        return f"{arch} predicted {worst:.2f} × the time{where}", worst > 1 + PREDICTED_WORTH

    def _incumbent(self, arch: str, texts: Texts) -> Variant | str:
        known = self._incumbents.get(arch)
        if known is None or known[0] != texts:
            known = self._incumbents[arch] = texts, self._build(arch, texts)
        return known[1]

    def _build(self, arch: str, texts: Texts) -> Variant | str:
        """Returns the version on ``arch``, or the reason why it cannot run there."""
        self._built += 1
        variants, dropped = self.builders[arch].build([("", f"{arch}-{self._built}", texts)])
        return variants[0] if variants else f"fails: {dropped[0].reason}"
