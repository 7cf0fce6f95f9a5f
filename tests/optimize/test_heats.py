"""A field in heats of three: what cannot win is neither verified nor raced, and not built upon."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from tests.optimize.kit import H200, Lines, compiled

from tilewright.ledger.records import Attempt
from tilewright.optimize.attempting import Request, Variant
from tilewright.optimize.fields import FieldBuilder
from tilewright.optimize.gates.base import RankedVariant
from tilewright.optimize.gates.heats import HEAT, LEFT_OUT, MISSES, Heats
from tilewright.optimize.versions.version import KernelVersion
from tilewright.records import Value

RECORDED = Path(__file__).parents[2] / "bench/recorded/h200-captured-gains-2026-11-28.json"
HINTS = ("occupancy=", "worker_warps=", "latency=")


def made(value: Value, us: float = 1.0) -> Variant:
    """A variant with machine code of its own, and a predicted time."""
    plain = compiled()
    codes = {name: replace(code, code_hash=str(value)) for name, code in plain.codes.items()}
    predicted = {name: replace(each, us=us) for name, each in plain.predicted.items()}
    version = KernelVersion(str(value), {"ops.py": f"{value}/ops.py"})
    return replace(plain, value=value, version=version, codes=codes, predicted=predicted)


@dataclass
class Gpu:
    """Verifies and races variants by their values. ``times``: the time / the incumbent's time."""

    times: Mapping[str, float]
    wrong: Sequence[str] = ()
    crashes: Sequence[str] = ()
    verified: list[str] = field(default_factory=list)
    raced: list[list[str]] = field(default_factory=list)

    def failure(self, variant: Variant) -> Attempt | None:
        self.verified.append(str(variant.value))
        return variant.attempt("wrong", "y[3] is 7, should be 6") if variant.value in self.wrong else None

    def race(self, variants: Sequence[Variant]) -> tuple[list[RankedVariant], list[Attempt]]:
        self.raced.append([str(variant.value) for variant in variants])
        ran = [variant for variant in variants if variant.value not in self.crashes or len(self.raced) == 1]
        attempts = [variant.attempt("raced" if variant in ran else "crashed", "in the race") for variant in variants]
        return [RankedVariant(variant, self.times[str(variant.value)]) for variant in ran], attempts

    def heats(self) -> Heats:
        return Heats(self.failure, self.race)


# The order and the end of the heats ----------------------------------------------------------------------


def test_the_first_heat_has_each_form_and_the_next_the_fastest() -> None:
    gpu = Gpu({"a": 0.95, "a, 1": 1.0, "a, 2": 1.0, "b": 0.8, "b, 1": 0.85, "b, 2": 0.7, "c": 1.3, "c, 1": 1.3})
    raced = gpu.heats().race([made(value) for value in gpu.times])
    assert gpu.raced == [["a", "b", "c"], ["b", "b, 1", "b, 2", "a, 1"]]
    assert raced.ranked[0].variant.value == "b, 2"
    left_out = {each.value for each in raced.attempts if each.reason == LEFT_OUT}
    assert left_out == {"a, 2", "c, 1"}, "their forms are more than 1.25 × as slow as the leader"


def test_two_heats_without_a_new_leader_end_the_field() -> None:
    gpu = Gpu({str(number): 0.9 + number / 1000 for number in range(20)})
    raced = gpu.heats().race([made(value) for value in gpu.times])
    assert len(gpu.raced) == 1 + MISSES and len(gpu.verified) == HEAT * (1 + MISSES)
    assert raced.ranked[0].variant.value == "0" and len(raced.attempts) == len(gpu.times)


def test_configurations_have_no_forms_and_are_all_raced() -> None:
    """TileGym's MLA decoding: the first variant with TILE_H=32 spilled, and the last one took half the time."""
    slow = {"TILE_H=32,num_worker_warps=8": 9.7, "TILE_N=32": 1.3, "occupancy=2": 1.01}
    gpu = Gpu({**slow, **{f"TILE_N=64,occupancy={count}": 1.2 for count in range(9)}, "TILE_H=32": 0.5})
    raced = gpu.heats().race([replace(made(value), kind="tiles") for value in gpu.times])
    assert raced.ranked[0].variant.value == "TILE_H=32" and len(gpu.verified) == len(gpu.times)
    assert all(each.reason != LEFT_OUT for each in raced.attempts)


def test_a_gain_within_the_tie_band_is_no_new_leader() -> None:
    gpu = Gpu({str(number): 0.9 - number / 10000 for number in range(20)})
    gpu.heats().race([made(value) for value in gpu.times])
    assert len(gpu.raced) == 1 + MISSES


def test_what_is_wrong_is_never_raced_and_its_place_goes_to_another() -> None:
    gpu = Gpu(dict.fromkeys("abcd", 0.9), wrong=("a", "c"))
    raced = gpu.heats().race([made(value) for value in gpu.times])
    assert gpu.raced == [["b", "d"]]
    outcomes = [("a", "wrong"), ("b", "raced"), ("c", "wrong"), ("d", "raced")]
    assert sorted((each.value, each.status) for each in raced.attempts) == outcomes
    assert raced.correct and not Gpu({}, wrong="a").heats().race([made("a")]).correct


def test_a_leader_that_crashes_in_a_later_heat_is_not_ranked() -> None:
    gpu = Gpu({"a": 0.5, "b": 0.9, "c": 0.9, "d": 0.9}, crashes=("a",))
    raced = gpu.heats().race([made(value) for value in gpu.times])
    assert [each.variant.value for each in raced.ranked] == ["b", "c", "d"]
    assert [each.status for each in raced.attempts if each.value == "a"] == ["crashed"]


# Rounds of a field -----------------------------------------------------------------------------------------


def build(built: list[str]) -> Callable[[Sequence[Request]], tuple[list[Variant], list[Attempt]]]:
    """Returns a function that builds versions at once, and notes them."""

    def at_once(requests: Sequence[Request]) -> tuple[list[Variant], list[Attempt]]:
        built.extend(str(value) for value, _, _ in requests)
        return [replace(made(value), texts=texts) for value, _, texts in requests], []

    return at_once


@dataclass(frozen=True)
class Structural(Lines):
    """An entry of the kit whose change is tried with the entry ``H``."""

    @property
    def about(self):  # type: ignore[no-untyped-def]  # as in `Lines`
        return replace(super().about, together=("H",))


@pytest.mark.parametrize(("times", "hinted"), [((0.9, 0.8, 1.2), "2"), ((1.9, 1.7, 1.8), "")])
def test_only_the_fastest_version_is_built_upon(times: Sequence[float], hinted: str) -> None:
    """Issue 16, 8: what cannot win any more is not compiled. Hints cannot save what is 1.5 × as slow."""
    change, hints, built = Structural("S", values=(1, 2, 3)), Lines("H", values=("x", "y")), list[str]()
    gpu = Gpu({**dict(zip("123", times, strict=True)), f"{hinted}, H=x": 0.6, f"{hinted}, H=y": 0.7})
    start, ranking = replace(compiled(), value="start"), gpu.heats()
    builder = FieldBuilder(start, (), (change, hints), build(built), lambda variant: FACTS, ranking)  # type: ignore[arg-type]
    requests = [(value, str(value), start.texts) for value in change.values]
    variants, attempts = builder._screened(build(built)(requests)[0], [], change.about.together, "1")
    assert built == ["1", "2", "3", *([f"{hinted}, H=x", f"{hinted}, H=y"] if hinted else [])]
    assert [each.reason for each in attempts] == ([] if hinted else ["not added: the best version takes 1.70× the "
                                                                      "incumbent's time"])  # fmt: skip
    best = ranking.race(variants).ranked[0]
    assert best.ratio == min(gpu.times[name] for name in built)


@pytest.mark.parametrize(("registers", "added"), [(255, True), (32, False)])
def test_hints_are_added_to_a_slow_change_that_fills_the_registers(registers: int, added: bool) -> None:
    """The compiler may give a thread all registers, so that an SM holds one CTA. A hint undoes that."""
    change, hints, built = Structural("S", values=(1,)), Lines("H", values=("x",), eases=("residency",)), list[str]()
    gpu = Gpu({"1": 1.8, "1, H=x": 0.6})
    start, ranking = replace(compiled(), value="start"), gpu.heats()
    builder = FieldBuilder(start, (), (change, hints), build(built), lambda variant: FACTS, ranking)  # type: ignore[arg-type]
    full = {name: replace(code, registers=registers) for name, code in start.codes.items()}
    builder._screened([replace(made(1, us=1e6), codes=full)], [], change.about.together, "1")
    assert built == (["1, H=x"] if added else [])
    assert builder._screened([], [], change.about.together, "1")[0] == [], "without a version that compiles"


class FACTS:
    """The facts that `Lines` and the field read."""

    kernel, board = "", H200

    @staticmethod
    def sites_of(entry: Lines, source: object) -> object:
        return entry.sites(source, FACTS)  # type: ignore[arg-type]


# Recorded fields -------------------------------------------------------------------------------------------


def recorded(kind: str) -> dict[str, float]:
    """The versions of a field that were raced on an H200, the best predicted first, with their times."""
    [row] = [row for row in json.loads(RECORDED.read_text())["rows"] if row["kind"] == kind]
    outcomes = (text.split(": ", 2) for text in row["tried"][0]["versions"])
    return {value: float(reason.split(" ")[0]) for value, status, reason in outcomes if status == "raced"}


@pytest.mark.parametrize("kind", ["poly_norm", "sparsemax"])
def test_the_heats_find_what_the_race_of_all_found(kind: str) -> None:
    """The same times, in the order of the rounds: a hint is built upon the fastest version only."""
    times = recorded(kind)
    gpu = Gpu(times)
    heats = gpu.heats()
    alone = [value for value in times if not any(hint in value for hint in HINTS)]
    field = [made(value) for value in alone]
    for _ in range(2):
        heats.heat(field)
    for hint in HINTS:
        leader = min(heats.times, key=heats.times.__getitem__)
        field += [made(value) for value in times if value.startswith(f"{leader}, {hint}") and value.count(",") < 3]
        heats.heat(field)
    best = heats.race(field).ranked[0]
    assert best.ratio <= 1.01 * min(times.values())
    assert len(field) <= 0.75 * len(times) and len(gpu.verified) <= 0.75 * len(times)
