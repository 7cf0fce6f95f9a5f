"""A shipped table: its rows find themselves, its nearest rule is a rule, and it needs neither database nor search."""

from __future__ import annotations

import copy
import json
import math
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.runtime.made_winners import winner

from tilewright.errors import RequestError
from tilewright.runtime.key import digest
from tilewright.runtime.store import config_file, evidence
from tilewright.runtime.store.config_file import ConfigFile, load, order_of
from tilewright.runtime.store.exporting import (
    Imported,
    as_json,
    as_python,
    config_file_of,
    import_config_files,
    sources_in,
)
from tilewright.runtime.store.warn_once import TunedStoreWarning
from tilewright.runtime.store.winners import Winner, Winners

H200 = "NVIDIA H200 sm_90"


@pytest.fixture(autouse=True)
def own_store(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TILEWRIGHT_TUNED", str(tmp_path / "tuned"))


def array(*shape: int, dtype: str = "bfloat16", strides: tuple[int, ...] | None = None) -> dict[str, Any]:
    row_major = [math.prod(shape[dim + 1 :]) for dim in range(len(shape))]
    return {"dtype": dtype, "shape": [*shape], "strides": [*(strides or row_major)], "alignment": 0}


def parts(rows: int = 4096, columns: int = 1024, **changes: Any) -> dict[str, Any]:
    made = {
        "kernel": "softmax",
        "source": "5" * 64,
        "board": H200,
        "toolkit": "cuda-tile 1.7.0, tileiras 13.4.92",
        "functions": {"grid": "9" * 64},
        "launch_mode": "eager",
        "in_place": [],
        "flags": {"causal": False},
        "arrays": {"x": array(rows, columns), "y": array(rows, columns)},
        "space": {"configurations": 2, "digest": "0" * 64},
        "hints": {"occupancy": "1"},
    }
    return made | changes


def stored(key_parts: Mapping[str, Any], tile: int, **changes: Any) -> Winner:
    made = {"key": digest(key_parts), "parts": key_parts, "config": {"TILE": tile}}
    return winner(**(made | changes))


def table(*rows: Mapping[str, Any]) -> ConfigFile:
    """Row n has the configuration TILE=n."""
    return load(json.loads(as_json(config_file_of([stored(one, place) for place, one in enumerate(rows)]))))


# The rule, as laws

extents = st.integers(1, 5000)
calls = st.builds(
    parts,
    rows=extents,
    columns=extents,
    board=st.sampled_from([H200, "NVIDIA B200 sm_100"]),
    launch_mode=st.sampled_from(["eager", "graph"]),
    toolkit=st.sampled_from(["1.6", "1.7"]),
    flags=st.fixed_dictionaries({"causal": st.booleans()}),
    source=st.sampled_from(["5" * 64, "6" * 64]),
)
typed_calls = st.builds(
    lambda call, dtype: call | {"arrays": {name: one | {"dtype": dtype} for name, one in call["arrays"].items()}},
    calls,
    st.sampled_from(["float16", "bfloat16"]),
)


@given(st.lists(typed_calls, min_size=1, max_size=8))
def test_a_row_always_finds_itself(drawn: list[dict[str, Any]]) -> None:
    """Of one source and toolkit: an export keeps the latest of a call."""
    rows = [one | {"source": "5" * 64, "toolkit": "1.7"} for one in drawn]
    asked = table(*rows)
    for call in rows:
        found = asked.find(json.loads(json.dumps(call)))
        assert found is not None and found.match == "exact"
        assert rows[found.config["TILE"]] == call  # of equal rows the first


@pytest.mark.filterwarnings("ignore::tilewright.runtime.store.warn_once.TunedStoreWarning")
@given(st.lists(typed_calls, min_size=1, max_size=8), typed_calls)
def test_nearest_never_crosses_what_has_to_be_equal_and_nothing_is_nearer(
    rows: list[dict[str, Any]], call: dict[str, Any]
) -> None:
    asked = table(*rows)
    found = asked.find(call)
    again = table(*rows).find(copy.deepcopy(call))
    assert found == again
    near = {
        place: sum(
            abs(math.log2(a / b))
            for name in "xy"
            for a, b in zip(row["arrays"][name]["shape"], call["arrays"][name]["shape"], strict=True)
        )
        for place, row in enumerate(rows)
        if all(row[name] == call[name] for name in ("kernel", "board", "launch_mode", "flags", "source"))
        and row["arrays"]["x"]["dtype"] == call["arrays"]["x"]["dtype"]
        and order_of(*_lay(row)) == order_of(*_lay(call))
        and all(
            max(a, b) <= 2 * min(a, b)
            for a, b in zip(row["arrays"]["x"]["shape"], call["arrays"]["x"]["shape"], strict=True)
        )
    }
    assert (found is None) == (not near)
    if found is not None:
        assert near[found.config["TILE"]] == pytest.approx(min(near.values()))


def _lay(call: Mapping[str, Any]) -> tuple[Any, Any]:
    return call["arrays"]["x"]["shape"], call["arrays"]["x"]["strides"]


@given(typed_calls, typed_calls)
def test_the_distance_is_symmetric_and_zero_only_between_equal_shapes(
    one: dict[str, Any], other: dict[str, Any]
) -> None:
    other = one | {"arrays": other["arrays"]}
    there, back = table(one).find(other), table(other).find(one)
    assert (there and there.distance) == (back and back.distance)
    assert (there is not None and there.distance == 0.0) == (one["arrays"] == other["arrays"])


# The rule, by example


def test_twice_as_long_is_near_and_more_is_not() -> None:
    asked = table(parts(4096))
    found = asked.find(parts(8192))
    assert found is not None and found.match == "nearest"
    assert (found.config, found.distance) == ({"TILE": 0}, 2.0)  # one step in x and one in y
    assert asked.find(parts(8193)) is None
    assert asked.find(parts(2047)) is None


def test_of_equally_near_rows_the_first() -> None:
    found = table(parts(2048), parts(8192)).find(parts(4096))
    assert found is not None and found.config == {"TILE": 0}


@pytest.mark.parametrize(
    "change",
    [
        {"kernel": "rms_norm"},
        {"board": "NVIDIA H100 sm_90"},
        {"launch_mode": "graph"},
        {"in_place": ["y = x"]},
        {"hints": {"occupancy": "2"}},
        {"flags": {"causal": True}},
        {"flags": {"causal": False, "n": 3}},
        {"arrays": {"x": array(4096, 1000)}},
        {"arrays": {"x": array(4096, 1000, 1), "y": array(4096, 1000)}},
        {"arrays": {"x": array(4096, 1000), "y": array(4096, 1000, dtype="float16")}},
        {"arrays": {"x": array(4096, 1000), "y": array(4096, 1000) | {"alignment": 4}}},
        {"arrays": {"x": array(4096, 1000), "y": array(4096, 1000, strides=(1, 4096))}},
        {"arrays": {"x": array(4096, 1000), "y": array(4096, 1000, strides=(0, 1))}},
        {"arrays": {"x": array(4096, 1000), "y": array(4096, 1000, strides=(2000, 2))}},
        {"another": 1},
    ],
    ids=str,
)
def test_what_must_be_equal(change: dict[str, Any]) -> None:
    """X-21: a configuration is never served for another dtype, layout, flag, board or way to launch."""
    assert table(parts(4096, 1024)).find(parts(4096, 1000)) is not None
    assert table(parts(4096, 1024)).find(parts(4096, 1000, **change)) is None


def test_arrays_in_lists_are_arrays() -> None:
    groups = {"a": [array(512, 64), array(1024, 64)]}
    asked = table(parts(arrays=groups))
    near = asked.find(parts(arrays={"a": [array(600, 64), array(1000, 64)]}))
    assert near is not None and near.distance == pytest.approx(math.log2(600 / 512) + math.log2(1024 / 1000))
    assert asked.find(parts(arrays={"a": [array(512, 64)]})) is None


def test_another_toolkit_is_near_and_says_so() -> None:
    found = table(parts()).find(parts(toolkit="cuda-tile 1.8.0"))
    assert found is not None and found.match == "nearest"
    assert (found.distance, found.differs) == (0.0, ("toolkit",))


def test_of_equal_distance_the_same_toolkit_goes_first() -> None:
    asked = table(parts(toolkit="old"), parts(2048), parts(8192, toolkit="old"))
    found = asked.find(parts(4096))
    assert found is not None and found.config == {"TILE": 0} and found.differs == ("toolkit",)
    found = table(parts(2048, toolkit="old"), parts(8192)).find(parts(4096))
    assert found is not None and found.config == {"TILE": 1} and found.differs == ()


def test_another_source_is_not_used_and_that_is_said_once() -> None:
    """Part 7 check 6: a stale entry is not launched unseen."""
    asked = table(parts())
    with pytest.warns(TunedStoreWarning, match="tuned for another source .* `tilewright tuned export softmax") as said:
        found = [asked.find(parts(source="new")), asked.find(parts(4100, functions={"grid": "new"}))]
    assert found == [None, None] and len(said) == 1


def test_a_configuration_of_another_space_is_taken_only_where_the_caller_has_it() -> None:
    asked = table(parts(2048), parts(3000))
    wider = parts(space={"configurations": 3, "digest": "1" * 64})
    assert asked.find(wider) is None
    found = asked.find(wider, allowed=lambda config: config["TILE"] == 0)
    assert found is not None and found.config == {"TILE": 0}
    assert asked.find(wider, allowed=lambda config: False) is None
    assert asked.find(parts(2048), allowed=lambda config: config["TILE"] == 1).config == {"TILE": 1}  # type: ignore[union-attr]


# The file


def test_the_file_reads_well_and_says_its_rule() -> None:
    text = as_json(config_file_of([stored(parts(), 1), stored(parts(8192), 2)]))
    data = json.loads(text)
    assert max(map(len, text.splitlines())) <= 120
    assert data["common"]["source"] == "5" * 64 and data["rows"][0]["parts"]["board"] == H200
    assert [set(row["parts"]) for row in data["rows"]] == [{"arrays", "board"}] * 2
    assert data["rows"][0]["us"] == 10.0 and data["rows"][0]["shipped_us"] == 12.5
    assert data["rule"]["factor"] == 2.0 and data["rule"]["fallback"] == "shipped"
    assert any(line.startswith("nearest: ") for line in data["rule"]["text"])


def test_the_rule_in_the_file_is_the_one_that_is_used() -> None:
    data = config_file_of([stored(parts(4096), 1)])
    data["rule"]["factor"] = 4.0
    assert load(data).find(parts(16384)) is not None
    data["rule"]["may_differ"] = []
    assert load(data).find(parts(16384, toolkit="other")) is None


def test_boards_share_a_file() -> None:
    asked = table(parts(), parts(board="NVIDIA B200 sm_100"))
    found = [asked.find(parts(5000)), asked.find(parts(5000, board="NVIDIA B200 sm_100"))]
    assert [one and one.config for one in found] == [{"TILE": 0}, {"TILE": 1}]


def test_json_and_python_hold_the_same(tmp_path: Path) -> None:
    data = config_file_of([stored(parts(), 1), stored(parts(8192), 2)])
    (tmp_path / "softmax.json").write_text(as_json(data))
    (tmp_path / "softmax.py").write_text(as_python(data))
    read = load(tmp_path / "softmax.json"), load(str(tmp_path / "softmax.py"))
    assert read[0].rows == read[1].rows and read[0].parts == read[1].parts
    run = "import sys; from softmax import TABLE; assert 'tilewright' not in sys.modules; print(len(TABLE['rows']))"
    done = subprocess.run([sys.executable, "-c", run], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout == "2\n"


def test_the_name_of_a_kernel_cannot_break_out_of_exported_python(tmp_path: Path) -> None:
    """The name comes from the store, which may be somebody else's."""
    for name in ('"""\nopen("it ran", "w")\n"""', "\\", 'k"""+open("it ran","w")+"""', "a\nb\x1b[31m"):
        (tmp_path / "named.py").write_text(as_python(config_file_of([stored(parts(), 1, kernel=name)])))
        subprocess.run([sys.executable, "named.py"], cwd=tmp_path, check=True)
        assert load(tmp_path / "named.py").kernel == name and not (tmp_path / "it ran").exists()


def test_it_loads_without_sqlite_torch_and_cuda_tile(tmp_path: Path) -> None:
    (tmp_path / "softmax.json").write_text(as_json(config_file_of([stored(parts(), 1)])))
    (tmp_path / "call.json").write_text(json.dumps(parts(5000)))
    run = (
        "import sys, json; sys.modules |= dict.fromkeys(('sqlite3', 'torch', 'cuda', 'numpy'))\n"
        "from tilewright.runtime.store.config_file import load\n"
        "print(load('softmax.json').find(json.load(open('call.json'))).match)"
    )
    done = subprocess.run([sys.executable, "-c", run], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout == "nearest\n"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("no json", "is no file of tuned configurations: Expecting value"),
        ("[1]", "its format is not 'tilewright tuned kernel'"),
        ('{"format": "tilewright tuned kernel", "version": 9}', "has version 9 of the format, this Tilewright reads 1"),
        ('{"format": "tilewright tuned kernel", "version": 1}', "'rule' is missing"),
        (
            '{"format": "tilewright tuned kernel", "version": 1, "kernel": "k", "common": {}, "rule": '
            '{"factor": 2, "may_differ": []}, "rows": [{"parts": {}, "config": 3}]}',
            "config of row 0 is not an object of plain values",
        ),
        (
            '{"format": "tilewright tuned kernel", "version": 1, "kernel": "k", "common": {}, "rule": '
            '{"factor": 2, "may_differ": []}, "rows": [{"parts": {"x": {"dtype": "", "shape": [1], "strides": [], '
            '"alignment": 0}}, "config": {}}]}',
            "shape and strides of an array",
        ),
    ],
)
def test_what_is_no_table_is_one_line(text: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "t.json").write_text(text)
    with pytest.raises(RequestError) as error:
        load(tmp_path / "t.json")
    assert said in str(error.value) and "t.json" in str(error.value) and "\n" not in str(error.value)


def test_a_module_without_a_table_and_a_file_that_is_not_there(tmp_path: Path) -> None:
    (tmp_path / "t.py").write_text("import os\nos.abort()\n")
    with pytest.raises(RequestError, match=r"has no TABLE = "):
        load(tmp_path / "t.py")
    with pytest.raises(RequestError, match=r"cannot read .*none.json: No such file"):
        load(tmp_path / "none.json")


TABLE = {
    "format": "tilewright tuned kernel", "version": 1, "kernel": "k", "common": {},
    "rule": {"factor": 2, "may_differ": []}, "rows": [{"parts": {"kernel": "k"}, "config": {"T": 1}}],
}  # fmt: skip


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"us": "x"}, "us of row 0 is not a time"),
        ({"us": True}, "us of row 0 is not a time"),
        ({"us": 10**400}, "us of row 0 is not a time"),
        ({"shipped_us": -1.0}, "shipped_us of row 0 is not a time"),
        ({"shipped": 5}, "shipped of row 0 is not an object of plain values"),
        ({"config": {"A": [1]}}, "config of row 0 is not an object of plain values"),
        ({"config": {"A": math.nan}}, "no file of tuned configurations: Out of range float"),
        ({"config": {"A": {1, 2}}}, "no file of tuned configurations: Object of type set"),
        ({"index": 2**70}, "index of row 0 is not a whole number from 0 on"),
        ({"parts": [1]}, "parts of row 0 is not an object"),
    ],
    ids=str,
)
def test_a_row_that_another_hand_changed_is_one_line(row: dict[str, Any], said: str) -> None:
    """And is no error of the store later on, where it would be in the way of all other entries."""
    with pytest.raises(RequestError, match=f"^the config file of k.*{said}"):
        load(TABLE | {"rows": [TABLE["rows"][0] | row]})
    assert load(TABLE).find({"kernel": "k"}) is not None


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"rule": {"factor": 0, "may_differ": []}}, "factor of the rule is not a number from 1 on"),
        ({"rule": {"factor": "2", "may_differ": []}}, "factor of the rule is not a number from 1 on"),
        ({"rule": {"factor": 2, "may_differ": "toolkit"}}, "may_differ of the rule is not a list"),
        ({"rule": {"factor": 2, "may_differ": ["board"]}}, "may_differ of the rule is not a list of: toolkit, space"),
        ({"rule": {"factor": 2, "may_differ": [["space"]]}}, "may_differ of the rule is not a list"),
        (
            {"common": {"x": {"dtype": "", "shape": [10**400], "strides": [1], "alignment": 0}}},
            "shape and strides of an",
        ),
        ({"rule": {"factor": 2}}, "'may_differ' is missing"),
        ({"rule": 2}, "rule is not an object"),
        ({"rows": {"a": 1}}, "rows is not a list"),
        ({"rows": [1]}, "row 0 is not an object"),
        ({"common": 5}, "common is not an object"),
        ({"kernel": 5}, "kernel or module is not a name"),
    ],
    ids=str,
)
def test_a_table_that_another_hand_changed_is_one_line(changed: dict[str, Any], said: str) -> None:
    with pytest.raises(RequestError, match=f"{said}.*; export it again$"):
        load(TABLE | changed)


@pytest.mark.parametrize("name", ["t.json", "t.py"])
def test_a_table_that_is_nested_too_deeply_is_one_line(name: str, tmp_path: Path) -> None:
    text = "[" * 100_000
    (tmp_path / name).write_text(f"TABLE = {text}" if name == "t.py" else text)
    with pytest.raises(RequestError, match="is no file of tuned configurations"):
        load(tmp_path / name)


def test_what_is_imported_can_always_be_shown() -> None:
    odd = {"kernel": "k", "arrays": {"x": {"dtype": "f", "shape": 5}, "y": {"dtype": 3, "bucket": [{}]}}}
    imported(load(TABLE | {"rows": [{"parts": odd, "config": {}}]}))
    [found] = Winners(strict=True).all()
    assert evidence.summary(found)["shapes"] == "3 ≤None"


def test_configurations_without_named_fields_are_not_exported() -> None:
    with pytest.raises(RequestError, match="no named fields"):
        config_file_of([stored(parts(), 1, config=None)])


# What `tilewright run` stored


def searched(tile_of_second: int, causal: bool, rows: int = 4096) -> dict[str, Any]:
    candidates = [
        {"label": "1", "grid": [rows], "arguments": ["array 0, storage 0", 64, causal], "hints": {}},
        {"label": "2", "grid": [rows // 2], "arguments": ["array 0, storage 0", tile_of_second, causal], "hints": {}},
        {"label": "3", "failed": "launch"},
    ]
    return {
        "format": 1, "search": "exhaustive_search", "board": H200, "toolkit": "1.7", "sources": ["5" * 64],
        "arrays": [array(rows, 64)], "candidates": candidates,
    }  # fmt: skip


def test_rows_of_a_patched_search_have_what_its_candidates_share() -> None:
    data = config_file_of([stored(searched(128, False), 1), stored(searched(128, True), 2)])
    assert [row["parts"]["arguments"] for row in data["rows"]] == [
        ["array 0, storage 0", "of the configuration", False],
        ["array 0, storage 0", "of the configuration", True],
    ]
    asked = load(data)
    call = dict(data["common"]) | data["rows"][1]["parts"] | {"arrays": [array(5000, 64)]}
    found = asked.find(call)
    assert found is not None and found.config == {"TILE": 2}
    assert imported(asked) == ()


# Into the store


def imported(given: ConfigFile, **options: Any) -> tuple[Imported, ...]:
    return import_config_files([given], Winners(strict=True), **options)


def test_what_is_imported_is_found_by_the_key_of_the_call() -> None:
    [added] = imported(table(parts()))
    assert added.outcome == "added"
    found = Winners().get(digest(parts()))
    assert found is not None and (found.origin, found.config, found.parts) == ("import", {"TILE": 0}, parts())


def test_what_stands_is_shown_and_kept_unless_replaced() -> None:
    Winners(strict=True).put(stored(parts(), 7, origin="import"))
    [kept] = imported(table(parts()))
    assert kept.outcome == "kept" and kept.stored.config == {"TILE": 7} and kept.row.config == {"TILE": 0}
    [replaced] = imported(table(parts()), replace=True)
    assert replaced.outcome == "replaced" and replaced.stored.config == {"TILE": 0}
    [same] = imported(table(parts()))
    assert same.outcome == "same"


def test_what_was_measured_here_is_never_replaced_by_a_file() -> None:
    Winners(strict=True).put(stored(parts(), 7))
    [kept] = imported(table(parts()), replace=True)
    assert kept.outcome == "kept" and kept.stored.config == {"TILE": 7}


def test_an_imported_winner_is_exported_again_with_its_times() -> None:
    before = config_file_of([stored(parts(), 0)])
    imported(load(before))
    after = config_file_of(Winners(strict=True).all())
    row = after["rows"][0] | {"created": before["rows"][0]["created"]}
    assert row == before["rows"][0] and after["common"] == before["common"]


def launched_from(module: str, qualname: str = "softmax") -> dict[str, Any]:
    return {"winner": {"module": module, "qualname": qualname, "file": f"/a/{module}.py"}}


def test_kernels_of_one_name_in_two_modules_do_not_share_a_table() -> None:
    one, other = (stored(parts(), tile, launches=launched_from(f"lib_{tile}")) for tile in (1, 2))
    with pytest.raises(RequestError, match="softmax is the name of 2 kernels, in lib_1, lib_2; export one"):
        config_file_of([one, other])
    assert config_file_of([other])["module"] == "lib_2"
    imported(load(config_file_of([other])))
    [found] = Winners().all()
    assert evidence.module(found) == "lib_2"


def test_how_many_sources_are_in_a_table() -> None:
    assert sources_in(config_file_of([stored(parts(), 1), stored(parts(8192), 2)])) == 1
    assert sources_in(config_file_of([stored(parts(), 1), stored(parts(8192, source="6" * 64), 2)])) == 2


def test_the_format_is_not_forgotten() -> None:
    """Tables lie in other people's repositories: this file must stay readable."""
    assert (config_file.FORMAT, config_file.VERSION) == ("tilewright tuned kernel", 1)


# With the wrapper


def test_a_wrapper_serves_what_was_exported_without_the_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tuned here, shipped as a table, launched there: exact and near shapes, never a search (mode `stored`)."""
    torch = pytest.importorskip("torch")
    pytest.importorskip("cuda.tile")
    from tests.runtime.kit_wrapper import World

    def arrays(rows: int) -> tuple[Any, ...]:
        return torch.zeros(rows, 64), torch.zeros(rows, 64), 2.0

    tuning = World(fastest=lambda trials: [one.label for one in trials].index("TILE=4 occupancy=2"))
    tuning.tuned()(0, *arrays(4096))
    assert len(tuning.searches) == 1
    (tmp_path / "scale.json").write_text(as_json(config_file_of(Winners(strict=True).all())))

    monkeypatch.setenv("TILEWRIGHT_TUNED", str(tmp_path / "another machine"))
    monkeypatch.setenv("TILEWRIGHT_TUNING", "stored")
    serving = World()
    shipping = serving.tuned(config_file=tmp_path / "scale.json")
    for rows in (4096, 5000, 8192):
        shipping(0, *arrays(rows))
    assert serving.tiles == [4, 4, 4] and not serving.searches
    with pytest.warns(UserWarning, match="nothing is stored"):
        shipping(0, *arrays(9000))
    assert serving.tiles[-1] == 2  # the shipped configuration

    imported(load(tmp_path / "scale.json"))
    importing = World()
    importing.tuned()(0, *arrays(4096))
    assert importing.tiles == [4]
