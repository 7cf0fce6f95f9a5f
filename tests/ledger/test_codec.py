"""Every record survives strict JSON, and what is not a record is refused with the field's name."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tilewright import records
from tilewright.ledger.codec import from_json, has_float, to_json
from tilewright.records import (
    Bound,
    Built,
    Candidate,
    Checked,
    Configuration,
    Failed,
    Machine,
    MachineCode,
    MeasuredTime,
    PredictedTime,
    Screened,
    TuningResult,
    Workload,
    WorkloadResult,
)

names = st.text(max_size=8)
values = st.none() | st.booleans() | st.integers() | st.floats() | names
mappings = st.dictionaries(names, values, max_size=5).filter(lambda mapping: list(mapping) != ["$float"])
configurations = mappings.map(Configuration.of)
st.register_type_strategy(Configuration, configurations)

plain = st.recursive(
    values,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(names, inner, max_size=3).filter(lambda mapping: list(mapping) != ["$float"])
    ),
    max_leaves=8,
)

workloads = st.builds(Workload, dims=mappings)
candidates = st.builds(
    Candidate, code=st.none() | st.builds(MachineCode, copies=st.dictionaries(names, st.integers(), max_size=3))
)
results = st.builds(
    WorkloadResult,
    workload=workloads,
    best=st.none() | candidates,
    candidates=st.lists(candidates, max_size=3).map(tuple),
    race=st.none() | st.dictionaries(names, plain, max_size=3).filter(lambda race: list(race) != ["$float"]),
)
machines = st.builds(Machine, versions=st.dictionaries(names, names, max_size=3).filter(lambda v: "$float" not in v))
tunings = st.builds(
    TuningResult,
    machine=machines,
    workloads=st.lists(results, max_size=2).map(tuple),
    seconds=st.dictionaries(names.filter(lambda name: name != "$float"), st.floats(), max_size=3),
)
simple = st.one_of(*(st.from_type(kind) for kind in (Failed, Bound, PredictedTime, MeasuredTime, Checked)))

CODE = MachineCode("k", 90, 40, 0, 1024, 128, 1, 0, 0, "HGMMA", 8, {"LDG.128": 4}, 200, "ab" * 32)
TILE = Configuration.of({"TILE_M": 64, "swap": True, "occupancy": None})
RACED = Candidate(TILE, "raced", "won", CODE, 0.5, measured=MeasuredTime(2.0, (1.0, 3.0), (1.0, 2.0, 3.0)))


def through_text(record: Any) -> Any:
    return from_json(type(record), json.loads(json.dumps(to_json(record), allow_nan=False)))


@given(st.one_of(simple, configurations, workloads, candidates, results, machines, tunings))
@settings(max_examples=300, deadline=None)
def test_every_record_survives_strict_json(record: Any) -> None:
    """By repr as well: it tells 1 from 1.0 and from True, 0.0 from -0.0, and shows NaN and the order."""
    again = through_text(record)
    assert type(again) is type(record)
    assert repr(again) == repr(record)
    assert repr(getattr(again, "samples_us", ())) == repr(getattr(record, "samples_us", ()))


@given(st.one_of(simple, candidates, results))
def test_data_without_infinity_is_read_the_same_without_a_copy(record: Any) -> None:
    text = json.dumps(to_json(record), allow_nan=False)
    if not has_float(text):
        kind = type(record)
        assert from_json(kind, json.loads(text), finite=True) == from_json(kind, json.loads(text)) == record


def test_an_escaped_name_may_hide_infinity() -> None:
    assert has_float('{"$float":"inf"}') and has_float(r'{"\u0024float":"inf"}') and not has_float('{"float":1.0}')


def test_a_configuration_is_a_plain_object_in_its_own_order() -> None:
    assert json.dumps(to_json(TILE)) == '{"TILE_M": 64, "swap": true, "occupancy": null}'
    assert through_text(TILE) == TILE
    assert list(through_text(Configuration.of({"b": 1, "a": 2}))) == ["b", "a"]


def test_a_knob_may_have_the_name_of_a_method() -> None:
    configuration = Configuration.of({"items": 1, "replace": 2, "item": 3})
    assert through_text(configuration) == configuration


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
def test_infinity_and_nan_are_not_texts(value: float) -> None:
    text = json.dumps(to_json(Checked("incorrect", "NaN in the output", error=value)), allow_nan=False)
    assert repr(from_json(Checked, json.loads(text)).error) == repr(value)
    knobs = Configuration.of({"number": value, "text": str(value)})
    assert repr(through_text(knobs)) == repr(knobs)


def test_what_looks_like_infinity_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^Workload\.dims: the key '\$float' is reserved"):
        to_json(Workload("w", {"$float": "inf"}))
    with pytest.raises(ValueError, match=r"Checked\.error: .* is not float"):
        from_json(Checked, {"verdict": "correct", "reason": "", "error": {"$float": "1e3"}, "cases": []})


def test_numpy_scalars_become_numbers() -> None:
    half: Any = np.float32(0.5)
    times = MeasuredTime(np.float64(2.5), (half, 3.0), (half,))
    race = {"rounds": np.int64(7), "separated": np.bool_(True)}
    assert through_text(times) == MeasuredTime(2.5, (0.5, 3.0), (0.5,))
    assert json.dumps(to_json(race)) == '{"rounds": 7, "separated": true}'


def test_an_integer_is_a_float_where_a_float_is_meant() -> None:
    again = through_text(PredictedTime(3, "model"))
    assert (again.us, type(again.us)) == (3.0, float)


@pytest.mark.parametrize("record", [CODE, RACED, RACED.measured, Checked("correct", "agrees")])
def test_a_missing_field_is_named(record: Any) -> None:
    whole = to_json(record)
    for name in whole:
        rest = {key: value for key, value in whole.items() if key != name}
        with pytest.raises(ValueError, match=rf"^{type(record).__name__}: missing field '{name}'$"):
            from_json(type(record), rest)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tile": 1}, "Candidate: unknown field 'tile'; known: configuration, status, "),
        ({"status": "fastest"}, "Candidate.status: 'fastest' is not one of 'raced', 'predicted', "),
        ({"reason": None}, "Candidate.reason: None is not str"),
        ({"compile_seconds": True}, "Candidate.compile_seconds: True is not float"),
        ({"compile_seconds": 10**400}, "Candidate.compile_seconds: 1000"),
        ({"configuration": [1]}, "Candidate.configuration: [1] is not an object"),
        ({"configuration": {"TILE_M": [64]}}, "Candidate.configuration.TILE_M: [64] is none of int, "),
        ({"code": to_json(CODE) | {"registers": 1.5}}, "Candidate.code.registers: 1.5 is not int"),
        ({"code": to_json(CODE) | {"copies": {"LDG": "8"}}}, "Candidate.code.copies.LDG: '8' is not int"),
        ({"measured": to_json(RACED.measured) | {"interval_us": [1.0]}}, "Candidate.measured.interval_us: 1 items"),
        ({"measured": to_json(RACED.measured) | {"samples_us": [1.0, "2"]}}, "Candidate.measured.samples_us[1]: '2'"),
        ({"measured": to_json(RACED.measured) | {"samples_us": "12"}}, "Candidate.measured.samples_us: '12' is not a"),
    ],
)
def test_a_wrong_field_is_named(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011 (the message is checked below)
        from_json(Candidate, to_json(RACED) | change)
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


def test_what_json_cannot_hold_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"^Built\.cubin: bytes has no JSON form$"):
        to_json(Built(TILE, "sm_90", b"\x7fELF", "k", 0.1))
    with pytest.raises(ValueError, match=r"^dict\.clocks\[1\]: set has no JSON form$"):
        to_json({"clocks": [1, {2}]})
    with pytest.raises(ValueError, match=r"^dict\.clocks: the key 1 is int, not text$"):
        to_json({"clocks": {1: 2}})


def test_old_data_takes_defaults_only_when_asked() -> None:
    old = {"verdict": "correct", "reason": "all cases agree"}
    assert from_json(Checked, old, defaults=True) == Checked("correct", "all cases agree")
    with pytest.raises(ValueError, match="missing field 'error'"):
        from_json(Checked, old)
    with pytest.raises(ValueError, match="missing field 'reason'"):
        from_json(Checked, {"verdict": "correct"}, defaults=True)
    assert from_json(_Grown, {"code": None}, defaults=True) == _Grown(None)


@dataclass(frozen=True)
class _Grown:
    code: MachineCode | None
    tags: dict[str, int] = field(default_factory=dict)


def test_every_record_that_is_stored_has_hints_that_the_codec_knows() -> None:
    """A field added to `records` with a hint of a new sort fails here, not in the store."""
    stored = [RACED, Screened(CODE, PredictedTime(1.0, "model"), "race", "fits", TILE)]
    for record in stored:
        assert through_text(record) == record
    for kind in (getattr(records, name) for name in dir(records)):
        if isinstance(kind, type) and kind.__module__ == records.__name__ and kind is not Built:
            with pytest.raises(ValueError, match=r"missing field|is not an object"):
                from_json(kind, {} if kind is not Configuration else [])
