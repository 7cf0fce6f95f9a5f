"""Defines the proposal of a specialist: new texts of the user's files.

A proposal writes nothing. The coordinator tries each proposal on a copy of the program, and keeps it only if the
program is correct and faster.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

from tilewright.errors import RequestError
from tilewright.ledger.records import Risk
from tilewright.program.changes.base import Impact

WhyNot: TypeAlias = Literal["mechanism already present", "inapplicable", "blocked"]


@dataclass(frozen=True)
class ProgramProposal:
    """One change of a user's program.

    Raises RequestError for a relative path, an invalid pattern, or a proposal that changes no file.
    """

    name: str
    """The name of the change, such as ``scaled_dot_product_attention``."""
    rationale: str
    """The reason why the change should help, in one sentence."""
    texts: Mapping[Path, str]
    """The whole new text of each file, by the absolute path of the user's file. A file may be new."""
    risk: Risk
    site: str
    """The place of the change, as ``file:line``."""
    ran: tuple[str, ...] = ()
    """Patterns of the names of operations or kernels that appear, or appear more often, when the changed code runs."""
    impact: Impact = "Medium"
    """The usual gain of such a change."""
    gone: tuple[str, ...] = ()
    """Patterns of names that disappear, or appear less often, when the changed code runs."""

    def __post_init__(self) -> None:
        if not self.texts:
            raise RequestError(f"the proposal '{self.name}' changes no file; give the new text of one")
        for path in self.texts:
            if not path.is_absolute():
                raise RequestError(f"the proposal '{self.name}' names {path}; give the absolute path")
        for pattern in (*self.ran, *self.gone):
            try:
                re.compile(pattern)
            except re.error as error:
                raise RequestError(f"the proposal '{self.name}' has the pattern '{pattern}': {error}") from error


@dataclass(frozen=True)
class NoProposal:
    """The reason why a specialist proposes nothing. ``evidence``: ``file:line``, or the missing thing."""

    why: WhyNot
    reason: str
    """The reason in one line."""
    evidence: str = ""


OUT_OF_TIME = "the time limit was reached; raise it with --seconds"
LATE = NoProposal("blocked", f"not tried (time): {OUT_OF_TIME}")
"""The result of a specialist whose time is over."""
