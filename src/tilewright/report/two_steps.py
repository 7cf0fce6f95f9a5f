"""The report of a Triton kernel's move to Tile IR. In the first step the source gets a form for Tile IR; in the second,
hints are tuned.

Every value comes from the ledger, and a cell names the ledger ids from which it was computed (see `sourced`). Without a
GPU, values that only a GPU can measure are `NOT_MEASURED`. The report is the same on Ampere, Hopper and Blackwell.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from tilewright.languages.triton.hints import PTX, ROUTE, TILE_IR, on_tile_ir
from tilewright.ledger.records import Iteration
from tilewright.records import Candidate, Configuration, Json
from tilewright.report.cells import number
from tilewright.report.evidence import OptimizeEvidence
from tilewright.report.sourced import LEDGER, NOT_MEASURED, Sourced, ids_of, key, row_json, shortened, stored_at
from tilewright.report.tune_evidence import TunedWorkload, TuneEvidence

NOT_STORED = "not stored"
FORM, HINTS = "source form → Tile IR form", "hints tuned"
PTX_HINTS = "hints of Triton's own compiler"
HINT_ENTRIES = {"tune_space", "tile_ir_hints", "occupancy", "clusters", "worker_warps", "tile_sizes"}
"""The playbook's entries that change knobs. On Tile IR they are the second step. Other entries change form or route."""
VALIDATED = ("version", "workload", "correct", "how", "error / allowed")
UNTUNED = "Tile IR, without hints"
TO_TILE_IR, FORMERLY = "tile_ir_route=", " on Tile IR"
"""Parts of a value that also takes the kernel to Tile IR. The second is of ledgers of earlier versions."""
HOW: Mapping[str, Callable[..., Any]] = {
    "": lambda value: value,
    "ms": lambda us: us / 1e3,
    "speedup": lambda before, after: before / after,
    "count": len,
    "configuration": lambda knobs: str(Configuration.of(knobs)),
    "waits": lambda command: "to confirm on a GPU",
    "patch": lambda run: f"runs/{run}/changes.patch",
}
"""The functions that compute a cell's value from the values at its ids, by the name of the computation."""


Row = Sequence[str]


@dataclass(frozen=True)
class ReportTable:
    """One section, which is a table. When it is shown, its last column has the ledger ids."""

    heading: str
    header: tuple[str, ...]
    rows: tuple[Row, ...]

    def table(self) -> tuple[list[str], list[list[str]]]:
        """Returns header and rows as text."""
        return [*self.header, LEDGER], [[*row, shortened(ids_of(row))] for row in self.rows]

    def to_json(self) -> list[Json]:
        return [row_json(self.header, row) for row in self.rows]


def two_steps(details: OptimizeEvidence | TuneEvidence) -> tuple[ReportTable, ...]:
    """Returns the sections of the report; empty if the kernel is not in Triton."""
    if details.run.language != "triton":
        return ()
    steps = _OptimizeSteps(details) if isinstance(details, OptimizeEvidence) else _TuneSteps(details)
    return (
        ReportTable("Classification", ("", "value"), tuple(steps.classification())),
        ReportTable("Compatibility Check", ("", "value"), tuple(steps.compatibility())),
        ReportTable("Transformations Applied", steps.changed_by, tuple(steps.transformations())),
        ReportTable("Validation", VALIDATED, tuple(steps.validation())),
        ReportTable(
            "Benchmark Comparison",
            ("version", "workload", "backend", "status", "ms", "speedup", "predicted ms", "predicted speedup"),
            tuple(steps.benchmark()),
        ),
        ReportTable("Output File", ("", "value"), tuple(steps.output())),
    )


def to_json_of(details: OptimizeEvidence | TuneEvidence) -> dict[str, Json]:
    """Maps each heading to the rows of its table. The entry ``ledger`` of a row maps each column to the ids of its
    value.
    """
    return {part.heading: part.to_json() for part in two_steps(details)}


class _Steps:
    """The parts of the report that are the same for `tune` and `optimize`."""

    def __init__(self, details: OptimizeEvidence | TuneEvidence) -> None:
        self.details = details

    def cell(self, how: str, *ids: str, missing: str = NOT_STORED) -> Sourced:
        """Computes a cell from the values that the ledger stores at ``ids``. If one of these values is missing, the
        cell has no value."""
        try:
            values = [stored_at(self.details.records, each) for each in ids]
        except (LookupError, TypeError):  # the record lacks this part
            return Sourced(missing)
        if None in values:
            return Sourced(missing, *ids)
        value = HOW[how](*values)
        return Sourced(number(value) if isinstance(value, float) else value, *ids, value=value)

    def classification(self) -> Iterator[Row]:
        for name, what in (
            ("class", "class"), ("about", "what it is"), ("hints", "hints of its class"),
            ("configurations", "configurations of its class"), ("fewest", "at least"), ("most", "at most"),
        ):  # fmt: skip
            yield what, self.cell("", f"run/classification/{name}")
        yield "shipped", self.cell("", "run/classification/shipped")

    def compatibility(self) -> Iterator[Row]:
        yield "architecture", self.cell("", "run/machine/arch")
        yield "GPU", self.cell("", "run/machine/gpu", missing=NOT_MEASURED)
        for package in ("triton", "cuda-tile", "nvidia-cuda-tileiras"):
            yield package, self.cell("", f"run/machine/versions/{package}")

    def _times(self, before: str, after: str, workload: str = "") -> tuple[Sourced, ...]:
        """Returns time and speed-up, measured and predicted.

        before, after: where the ledger ids of the times begin.
        workload: the workload in the id of ``after``, if the record has the times of all workloads.
        """
        cells = []
        for kind, missing in (("measured", NOT_MEASURED), ("predicted", NOT_STORED)):
            old, new = f"{before}/{kind}/us", f"{after}/{kind}{workload}/us"
            cells += [self.cell("ms", new, missing=missing), self.cell("speedup", old, new, missing=missing)]
        return tuple(cells)


class _OptimizeSteps(_Steps):
    """The report on a run of `optimize`. Each of the two steps consists of some iterations of the run."""

    details: OptimizeEvidence
    changed_by = ("step", "change", "value", "status", "values tried", "reason")

    @cached_property
    def versions(self) -> tuple[tuple[str, Iteration | None], ...]:
        """The untouched code, and the version after each step. None if a step made no correct version."""
        first, second = (_result([each for each in self.details.tried if self._step(each) == step])
                         for step in (FORM, HINTS))  # fmt: skip
        untouched = next(iter(self.details.iterations), None)
        return ("source form", untouched), (FORM, first), (HINTS, second)

    def compatibility(self) -> Iterator[Row]:
        yield from super().compatibility()
        yield "the untouched code is correct", self.cell("", "iteration/0/correctness")
        yield "registers of the untouched code", self.cell("", "iteration/0/outcomes/0/code/registers")

    def transformations(self) -> Iterator[Row]:
        for step in (PTX_HINTS, FORM, HINTS):
            tried = [each for each in self.details.tried if self._step(each) == step]
            for each in tried:
                at = f"iteration/{each.n}"
                yield (step, self.cell("", f"{at}/optimization"), self.cell("", f"{at}/value"), self._status(each),
                       self._tried(each), self.cell("", f"{at}/reason"))  # fmt: skip
            if not tried and step != PTX_HINTS:
                yield step, "none tried", "", "", "", ""

    def validation(self) -> Iterator[Row]:
        for name, iteration in self.versions:
            if iteration is None:
                yield name, "", "none tried", "", ""
                continue
            for n, _ in enumerate(iteration.outcomes):
                checked = f"iteration/{iteration.n}/outcomes/{n}/checked"
                workload = self.cell("", f"iteration/{iteration.n}/outcomes/{n}/workload")
                yield (name, workload, self.cell("", f"iteration/{iteration.n}/correctness"),
                       self.cell("", f"{checked}/reason"), self.cell("", f"{checked}/error"))  # fmt: skip

    def benchmark(self) -> Iterator[Row]:
        for name, iteration in self.versions:
            if iteration is None:
                yield name, "", "none tried", "", *[NOT_MEASURED] * 4
                continue
            for n, _ in enumerate(iteration.outcomes):
                before, after = (f"iteration/{number}/outcomes/{n}" for number in (0, iteration.n))
                shown, backend = self.cell("", f"{after}/workload"), self._backend(iteration)
                yield name, shown, backend, self._status(iteration), *self._times(before, after)
                other = self._on_tile_ir(iteration) if backend == PTX else None
                if other is not None:
                    tried = f"iteration/{iteration.n}/attempts/{other}"
                    times = self._times(before, tried, f"/{key(iteration.outcomes[n].workload)}")
                    yield name, shown, TILE_IR, self.cell("", f"{tried}/status"), *times

    def _on_tile_ir(self, iteration: Iteration) -> int | None:
        """Returns the index of the first value of an iteration that was correct on Tile IR. The best values come
        first."""
        for n, attempt in enumerate(iteration.attempts):
            is_unhinted = attempt.value.endswith((f"{ROUTE.name}={TILE_IR}", FORMERLY))
            if is_unhinted and attempt.status in ("raced", "predicted"):
                return n
        return None

    def _status(self, iteration: Iteration) -> Sourced:
        """Returns the status of an iteration: ``keep``, ``revert``, ``crash``, or a phrase for waiting for a GPU."""
        if iteration.to_confirm is not None:
            return self.cell("waits", f"iteration/{iteration.n}/to_confirm/command")
        return self.cell("", f"iteration/{iteration.n}/status")

    def _tried(self, iteration: Iteration) -> Sourced:
        count = self.details.tried_values(iteration)
        return Sourced(count, f"iteration/{iteration.n}/attempts", value=count)

    def _step(self, iteration: Iteration) -> str:
        if iteration.entry not in HINT_ENTRIES:
            return FORM
        return HINTS if self._backend(iteration) == TILE_IR else PTX_HINTS

    def _backend(self, iteration: Iteration) -> str:
        """Returns the compiler of a version: Tile IR's if it was shipped, or if a change up to this one chose it."""
        route = _route(str(self.details.run.classification.get("shipped"))) or PTX
        for each in (*self.details.kept, iteration):
            if 0 < each.n <= iteration.n:
                is_changed = each.entry == "tile_ir_route" or TO_TILE_IR in each.value or FORMERLY in each.value
                route = TILE_IR if is_changed else _route(each.value) or route
        return route

    def output(self) -> Iterator[Row]:
        yield "file", self.cell("", "run/where")
        yield "patch", self.cell("patch", "run/run")
        yield "branch", self.cell("", "run/branch")
        yield "base commit", self.cell("", "run/base_commit")


def _route(text: str) -> str | None:
    """Returns the route in a string such as ``BLOCK=64,route=tileir``. Returns None if the string has no route."""
    return next((part.partition("=")[2] for part in text.split(",") if part.startswith(f"{ROUTE.name}=")), None)


def _result(tried: Sequence[Iteration]) -> Iteration | None:
    """Returns the last kept change; else the best change that waits for a GPU; else the last correct change."""
    kept = [each for each in tried if each.status == "keep"]
    waiting = [(each.to_confirm.speedup, -each.n, each) for each in tried if each.to_confirm is not None]
    correct = [each for each in tried if each.correctness == "PASS" and each.outcomes]
    return kept[-1] if kept else max(waiting)[2] if waiting else correct[-1] if correct else None


class _TuneSteps(_Steps):
    """The report on a run of `tune`. It compares the best candidates through PTX, through Tile IR without hints, and
    through Tile IR with tuned hints."""

    details: TuneEvidence
    changed_by = ("step", "workload", "configuration", "status", "reason")

    def versions(self, workload: TunedWorkload) -> Iterator[tuple[str, str, int | None]]:
        """Yields the name of each version, its backend, and the index of its best candidate."""
        candidates = workload.result.candidates
        on_tile = [each for each in candidates if on_tile_ir(each.configuration)]
        hints = {name for name in workload.result.shipped if name in TUNED}
        untuned = [each for each in on_tile if all(each.configuration[name] is None for name in hints)]
        for name, backend, some in (
            ("source form", PTX, [each for each in candidates if each not in on_tile]), (UNTUNED, TILE_IR, untuned),
            (HINTS, TILE_IR, on_tile),
        ):  # fmt: skip
            best = next((each for each in workload.candidates if each in some and _works(each)), None)
            yield name, backend, None if best is None else candidates.index(best)

    def compatibility(self) -> Iterator[Row]:
        yield from super().compatibility()
        for n, _ in enumerate(self.details.workloads):
            yield "candidates", self.cell("count", f"workload/{n}/candidates")

    def transformations(self) -> Iterator[Row]:
        for n, name, _, at in self._every():
            if at is None:
                yield name, self._named(n), "none works", "", ""
                continue
            place = f"workload/{n}/candidates/{at}"
            yield (name, self._named(n), self.cell("configuration", f"{place}/configuration"),
                   self.cell("", f"{place}/status"), self.cell("", f"{place}/reason"))  # fmt: skip

    def validation(self) -> Iterator[Row]:
        for n, name, _, at in self._every():
            if at is None:
                yield name, self._named(n), "none works", "", ""
                continue
            checked = f"workload/{n}/candidates/{at}/checked"
            yield (name, self._named(n), self.cell("", f"{checked}/verdict"), self.cell("", f"{checked}/reason"),
                   self.cell("", f"{checked}/error"))  # fmt: skip

    def benchmark(self) -> Iterator[Row]:
        for n, workload in enumerate(self.details.workloads):
            versions = tuple(self.versions(workload))
            first = f"workload/{n}/candidates/{versions[0][2]}"
            for name, backend, at in versions:
                place = f"workload/{n}/candidates/{at}"
                status = self.cell("", f"{place}/status", missing="none works")
                yield name, self._named(n), backend, status, *self._times(first, place)

    def output(self) -> Iterator[Row]:
        yield "file", self.cell("", "run/where")
        for n, _ in enumerate(self.details.workloads):
            yield "best configuration", self.cell("configuration", f"workload/{n}/best/configuration")

    def _every(self) -> Iterator[tuple[int, str, str, int | None]]:
        for n, workload in enumerate(self.details.workloads):
            for version in self.versions(workload):
                yield n, *version

    def _named(self, n: int) -> Sourced:
        return self.cell("", f"workload/{n}/workload/name")


TUNED = ("occupancy", "num_ctas", "num_worker_warps", "num_stages")
"""The hints of Tile IR's compiler."""


def _works(candidate: Candidate) -> bool:
    return candidate.status not in ("failed", "wrong") and (candidate.predicted or candidate.measured) is not None
