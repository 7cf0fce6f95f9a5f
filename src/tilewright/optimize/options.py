"""The options of a run of `optimize`, and the key by which an interrupted run is continued."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal

from tilewright.compile.compile import BUDGET_SECONDS, one_language
from tilewright.compile.identity import code_of
from tilewright.errors import RequestError, UnknownChoice
from tilewright.executors.base import Executor
from tilewright.hardware.machine import Target
from tilewright.ledger.file import key_of
from tilewright.optimize.decide import PATIENCE, POLICIES
from tilewright.optimize.proposing.asked import Propose
from tilewright.optimize.versions.version import read_source
from tilewright.playbook import catalogue
from tilewright.playbook.base import Entry
from tilewright.progress import Progress
from tilewright.race.rules import Policy
from tilewright.records import Json, Workload
from tilewright.task.loading import editable_files, where_is
from tilewright.task.task import Task

ITERATIONS = 25
MINUTES = 10.0
"""The default time limit of one iteration, in minutes."""


@dataclass(frozen=True)
class Options:
    """The user's options for the loop."""

    policy: Literal["default", "base"] = "default"
    iterations: int = ITERATIONS
    minutes: float = MINUTES
    stop_after: float = math.inf
    """Minutes after which no iteration is begun. A resumed run starts to count again."""
    patience: int = PATIENCE
    lossy: bool = False
    """Whether to try entries that change the rounding of results by design."""
    slower_elsewhere: bool = False
    """Whether a change is kept although it is predicted slower on another architecture that the task names."""
    test: str = ""
    """The command of the project's own tests, which each kept version must pass; empty if there is none."""
    changes: tuple[Path, ...] = ()
    """Patches or files that are tried first."""
    jobs: int | None = None
    seconds: float = BUDGET_SECONDS
    """Limit of processor time for one compiler run."""
    only: tuple[str, ...] = ()
    """Names of the playbook's entries to try; all if empty."""
    propose: Propose | None = None
    """The proposer that is asked after the playbook; None for no proposer."""

    def __post_init__(self) -> None:
        if self.policy not in POLICIES:
            raise UnknownChoice("policy", self.policy, POLICIES)
        if self.iterations < 0 or self.patience < 1 or self.minutes <= 0 or not self.stop_after >= 0:
            raise RequestError("iterations and stop_after must be 0 or more, patience 1 or more, and minutes above 0")
        if self.propose is not None and self.propose.only and self.only:
            raise RequestError(
                "--propose-only leaves the playbook out, and --only names entries of it; give one of both"
            )
        known = [entry.about.id for entry in catalogue()]
        for name in self.only:
            if name not in known:
                raise UnknownChoice("entry", name, known)

    def to_json(self) -> dict[str, Json]:
        """Returns the options as the ledger stores them. Without a proposer, the field of the proposer is left out."""
        options = {**vars(self), "changes": [str(path) for path in self.changes], "only": [*self.only]}
        if (propose := options.pop("propose")) is not None:
            options["propose"] = dict(vars(propose))
        return options

    @property
    def entries(self) -> tuple[Entry, ...]:
        """The playbook's entries that may be tried."""
        if self.propose is not None and self.propose.only:
            return ()
        return tuple(entry for entry in catalogue() if not self.only or entry.about.id in self.only)


@dataclass(frozen=True)
class OptimizeRequest:
    """The arguments of one call of `optimize`."""

    task: Task
    target: Target
    workloads: tuple[Workload, ...]
    options: Options
    policy: Policy
    seed: int | None
    session: Executor | None
    progress: Progress

    @cached_property
    def language(self) -> str:
        """The name of the language of the task's kernel. Raises TaskError if configurations mix languages."""
        return one_language(self.task, self.workloads, self.target.board)

    @property
    def entries(self) -> tuple[Entry, ...]:
        """The entries to try, which are for the language of the task's kernel.

        Raises RequestError if ``only`` names an entry for another language, or one that has to be allowed.
        """
        language = self.language
        for about in (entry.about for entry in self.options.entries if self.options.only):
            if not about.is_for(language):
                raise RequestError(
                    f"entry '{about.id}' changes {about.language} kernels, and task '{self.task.name}' "
                    f"launches a {language} kernel; leave out --only {about.id}"
                )
            if about.risk == "lossy" and not self.options.lossy:
                raise RequestError(
                    f"{about.id} rounds differently; allow it with --allow-lossy, or leave out --only {about.id}"
                )
        return tuple(entry for entry in self.options.entries if entry.about.is_for(language))

    @property
    def texts(self) -> dict[Path, str]:
        return {path: read_source(path) for path in editable_files(self.task)}

    def key(self, versions: Mapping[str, str]) -> str:
        """Returns the key of the run. An interrupted run with the same key is continued."""
        options = self.options.to_json()
        del options["stop_after"], options["changes"]
        changes = {str(path): read_source(path) for path in self.options.changes}
        return key_of(
            {
                "optimize": where_is(self.task),
                "texts": {str(path): text for path, text in self.texts.items()},
                "task": self.task.file.read_text() if self.task.file else "",
                "code": code_of(self.task, self.workloads, self.target.board),
                "board": self.target.board.name,
                "measured": self.target.measured,
                "policy": self.policy.to_json(),
                "options": {**options, "changes": changes},
                "workloads": [workload.name for workload in self.workloads],
                "seed": self.seed,
                "versions": dict(versions),
            }
        )
