"""A kept gain is divided into the part of the structure and the part of the hints, where one field raced both."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from tests.optimize.kit import Lines, compiled, repository
from tests.optimize.test_heats import FACTS, Gpu, Structural, build, made
from tests.optimize.test_measured_run import H200, TILED, Simulated, Tiles, tile

from tilewright.hardware.prediction_error import ChangeKind
from tilewright.ledger.ledger import Ledger
from tilewright.ledger.records import GainParts
from tilewright.optimize import loop, options, setup
from tilewright.optimize.fields import FieldBuilder
from tilewright.optimize.gain_parts import gain_parts
from tilewright.optimize.optimized import to_json
from tilewright.playbook.base import EntryDescription, Site
from tilewright.records import Value
from tilewright.report.report import report
from tilewright.source.syntax import Source


@dataclass(frozen=True)
class Hints(Lines):
    """An entry of the kit that only changes hints."""

    def kind(self, value: Value) -> ChangeKind:
        return "hints"


@dataclass(frozen=True)
class Route(Lines):
    """An entry of the kit that chooses another compiler, with hints for it."""

    @property
    def about(self) -> EntryDescription:
        return replace(super().about, all_values=True)


def parts(times: Mapping[str, float], entries: Sequence[Lines], wrong: Sequence[str] = ()) -> GainParts | None:
    """Returns the parts of the gain of the fastest version of a field: a change ``S`` = 1, with ``entries``."""
    gpu, change = Gpu(times, wrong), Structural("S", values=("1",))
    start, ranking = replace(compiled(), value="start"), gpu.heats()
    builder = FieldBuilder(start, (), entries, build([]), lambda variant: FACTS, ranking)  # type: ignore[arg-type]
    together = [entry.about.id for entry in entries]
    variants, attempts = builder._screened([made(value) for value in change.values], [], together, "1")
    raced = ranking.race(variants)
    return gain_parts(raced.ranked[0].variant, raced.ranked, (*raced.attempts, *attempts))


def test_the_structure_at_the_incumbents_hints_and_the_hints_each_have_a_part() -> None:
    found = parts({"1": 0.8, "1, H=x": 0.4}, [Hints("H", values=("x",))])
    assert found is not None and found.hints == "H=x"
    assert (found.of_structure, found.of_hints) == pytest.approx((1.25, 2.0))
    assert str(found) == "in the race 1.25× (the structure at the incumbent's hints) × 2.00× (H=x)"


def test_a_second_change_of_the_structure_belongs_to_the_structure() -> None:
    """``rows_per_tile`` is added to ``persistent``, and hints to both."""
    form, hints = Lines("F", values=("y",)), [Hints("H", values=("x",)), Hints("I", values=("z",))]
    found = parts({"1": 0.9, "1, F=y": 0.8, "1, F=y, H=x": 0.5, "1, F=y, H=x, I=z": 0.4}, [form, *hints])
    assert found is not None and found.hints == "H=x, I=z"
    assert (found.of_structure, found.of_hints) == pytest.approx((1.25, 2.0))


def test_another_compiler_with_its_hints_is_no_part_of_the_structure() -> None:
    found = parts({"1": 1.25, "1, R=x": 0.5}, [Route("R", values=("x",))])
    assert found is not None and (found.of_structure, found.of_hints) == pytest.approx((0.8, 2.5))


def test_a_change_without_added_hints_has_no_parts() -> None:
    assert parts({"1": 0.4, "1, H=x": 0.5}, [Hints("H", values=("x",))]) is None
    assert parts({"1": 0.8, "1, F=y": 0.5}, [Lines("F", values=("y",))]) is None


def test_a_structure_that_was_not_raced_is_not_separated() -> None:
    found = parts({"1, H=x": 0.5}, [Hints("H", values=("x",))], wrong=("1",))
    assert found is not None and found.of_structure is None and found.of_hints is None
    assert str(found) == (
        "not separated from H=x: the structure alone was not raced (wrong: y[3] is 7, should be 6)"
    )  # fmt: skip
    kept = replace(made("1, H=x"), structure="1")
    same = made("1").attempt("duplicate", "same machine code and grid as the incumbent's")
    assert "same machine code" in str(gain_parts(kept, (), [same]))


# A whole run -----------------------------------------------------------------------------------------------


class Twice(Hints):
    """In place of a hint: other code with the same results, because a hint leaves the code of so small a kernel."""

    def apply(self, source: Source, site: Site, value: Value) -> str:
        return source.text.replace("* 2)", "* 4 * 0.5)")


@dataclass
class Hinted(Simulated):
    """Takes half the time for the second and each further code of a tile size: those with hints."""

    first: dict[int, str] = field(default_factory=dict)

    def us(self, source: Any) -> float:
        return super().us(source) / (1 if self.first.setdefault(tile(source), source.cubin) == source.cubin else 2)


def test_the_ledger_json_the_output_and_the_report_have_the_parts(tmp_path: Path) -> None:
    """256 elements a tile take 18 of 40 µs, and a hint halves that."""
    entries = Tiles("S", values=(256,), hinted="H"), Twice("H", values=("x",))
    with pytest.MonkeyPatch.context() as patch, Ledger(tmp_path / "ledger.db") as ledger:
        patch.setattr(loop, "detect", lambda: H200)
        for module in (options, setup):
            patch.setattr(module, "catalogue", lambda: entries)
        file = repository(tmp_path / "ops", TILED)
        result = loop.optimize(str(file), only=("S",), iterations=1, ledger=ledger, seed=1, session=Hinted())
        [kept] = [each for each in ledger.iterations(result.record.run)[1:] if each.status == "keep"]
    assert kept.gain_parts is not None and kept.gain_parts.hints == "H=x"
    assert kept.gain_parts.of_structure == pytest.approx(40 / 18, rel=0.02)
    assert kept.gain_parts.of_hints == pytest.approx(2, rel=0.02)
    [_, row] = to_json(result)["iterations"]  # type: ignore[misc]
    assert row["gain_parts"] == result.iterations[1].gain_parts  # type: ignore[index]
    evidence, told = report(ledger=tmp_path / "ledger.db"), str(kept.gain_parts)
    assert kept.reason.endswith(f"; {told}")
    assert told in evidence.markdown() and told in evidence.html()
