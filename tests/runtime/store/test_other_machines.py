"""The stores of several machines become one: no result is lost or doubled, in whatever order they are merged."""

from __future__ import annotations

import itertools
import os
import re
import sqlite3
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.runtime.made_winners import winner

from tilewright.errors import StorageError
from tilewright.runtime.key import digest
from tilewright.runtime.store.config_file import load
from tilewright.runtime.store.exporting import as_json, config_file_of
from tilewright.runtime.store.other_machines import MergedWinner, SharedWinners, content_of, readable, store_at
from tilewright.runtime.store.winners import Unreadable, Winner

State = dict[str, tuple[str, frozenset[str]]]


def made(call: int, host: str, tile: int = 64, **changes: object) -> Winner:
    parts = {"kernel": "softmax", "board": "NVIDIA H200 sm_90", "flags": {"n": call}}
    config = {"TILE": tile}
    found = winner(digest(parts), parts=parts, config=config, shipped=config, label=f"TILE={tile}",
                   outcomes=({"label": f"TILE={tile}", "status": "timed", "us": 1.0},), index=0,
                   machine={"board": "NVIDIA H200 sm_90", "host": host})  # fmt: skip
    return replace(found, **changes)  # type: ignore[arg-type]


def store(path: Path, winners: Sequence[Winner] = ()) -> SharedWinners:
    new = SharedWinners(path / "tuned.db", strict=True)
    new.put_all(winners)
    return new


def merge(into: SharedWinners, other: SharedWinners) -> tuple[MergedWinner, ...]:
    def refused(entry: Unreadable) -> None:
        raise AssertionError(entry.problem)

    return into.merge(tuple(readable(other, refused)))


def state(of: SharedWinners) -> State:
    """What is launched for each key, and the contents that are stored for it."""
    others = of.others()
    return {
        each.key: (content_of(each), frozenset(content_of(one) for one in (each, *others) if one.key == each.key))
        for each in of.all()
    }


results = st.builds(
    made,
    call=st.integers(0, 2),
    host=st.sampled_from(["a", "b"]),
    tile=st.sampled_from([64, 128]),
    created=st.sampled_from(["2026-01-02T00:00:00+00:00", "2026-01-03T00:00:00+00:00"]),
    origin=st.sampled_from(["wrapper", "run", "import"]),
)
machines = st.lists(results, max_size=4)


@settings(max_examples=15, deadline=None)
@given(local=machines, first=machines, second=machines)
def test_the_order_of_merges_does_not_matter(
    local: Sequence[Winner], first: Sequence[Winner], second: Sequence[Winner]
) -> None:
    """Commutative, associative and idempotent, and nothing is lost."""
    with tempfile.TemporaryDirectory() as name:
        numbers = itertools.count()

        def new(winners: Sequence[Winner] = ()) -> SharedWinners:
            return store(Path(name) / str(next(numbers)), winners)

        a, b = new(first), new(second)
        one, other, grouped = new(local), new(local), new(local)
        for each in (a, b):
            merge(one, each)
        for each in (b, a):
            merge(other, each)
        both = new()
        merge(both, b)
        merge(both, a)
        merge(grouped, both)
        assert state(one) == state(other) == state(grouped)
        before, mine = state(one), new(local)
        for each in (a, both, other):
            assert {row.outcome for row in merge(one, each)} <= {"same"}
        assert state(one) == before
        for single in (mine, a, b):
            assert all(contents <= before[key][1] for key, (_, contents) in state(single).items())
        assert all(before[each.key][0] == content_of(each) for each in mine.all() if each.is_local)


def test_what_was_measured_here_is_launched_and_the_other_kept_beside_it(tmp_path: Path) -> None:
    here = store(tmp_path / "here", [made(0, "here", 64, created="2026-05-01T00:00:00+00:00")])
    there = store(tmp_path / "there", [made(0, "there", 128), made(1, "there", 128)])
    assert [row.outcome for row in merge(here, there)] in (["kept", "added"], ["added", "kept"])
    local, new = here.get(made(0, "").key), here.get(made(1, "").key)
    assert local is not None and local.config == {"TILE": 64} and local.is_local
    assert new is not None and (new.came_from, new.origin, new.is_local) == ("there", "wrapper", False)
    assert new.created == made(1, "there").created and new.outcomes == made(1, "there", 128).outcomes
    [other] = here.others(local.key)
    assert (other.config, other.came_from) == ({"TILE": 128}, "there")


def test_a_new_measurement_here_replaces_what_came_from_elsewhere(tmp_path: Path) -> None:
    here, there = store(tmp_path / "here"), store(tmp_path / "there", [made(0, "there", 128)])
    merge(here, there)
    assert here.put(made(0, "here", 64)).config == {"TILE": 64}
    assert [row.outcome for row in merge(here, there)] == ["kept"]
    assert here.put(made(0, "here", 256)).config == {"TILE": 64}, "of two searches here the first one wins"


def test_removed_is_removed_with_all_that_is_kept_beside_it(tmp_path: Path) -> None:
    here = store(tmp_path / "here", [made(0, "here", 64)])
    merge(here, store(tmp_path / "there", [made(0, "there", 128)]))
    assert here.remove([made(0, "").key]) == 1 and here.all() == () and here.others() == []


CHANGES = {
    "its key is not the digest of its parts": ("parts", '{"kernel":"other"}'),
    "TILE=1048576 is none of the configurations": ("config", '{"TILE":1048576}'),
    "cannot read": ("outcomes", "[{"),
}


@pytest.mark.parametrize("problem", CHANGES)
def test_a_damaged_or_hostile_row_is_refused_by_a_line_and_the_others_are_merged(tmp_path: Path, problem: str) -> None:
    launches = {"winner": {"kernel": "softmax", "module": "os", "qualname": "system", "file": "/x.py", "source": "",
                           "grid": [1, 1, 1], "arguments": [], "text": "0"}}  # fmt: skip
    there = store(tmp_path / "there", [made(0, "there", launches=launches), made(1, "there")])
    column, value = CHANGES[problem]
    with closing(sqlite3.connect(there.path)) as file, file:
        file.execute(f"UPDATE winners SET {column} = ? WHERE key = ?", (value, made(0, "").key))
    said: list[str] = []
    here = store(tmp_path / "here")
    here.merge(tuple(readable(there, lambda entry: said.append(entry.problem))))
    assert [each.key for each in here.all()] == [made(1, "").key]
    assert len(said) == 1 and problem in said[0] and made(0, "").key[:12] in said[0] and "\n" not in said[0]


def test_only_a_store_is_taken_for_one(tmp_path: Path) -> None:
    there = store(tmp_path / "there", [made(0, "there")])
    assert store_at(tmp_path / "there") == store_at(there.path) == there.path
    (tmp_path / "table.json").write_text("{}")
    assert store_at(tmp_path / "table.json") is store_at(tmp_path) is store_at(tmp_path / "nowhere") is None


def test_merges_at_the_same_time_lose_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for machine in range(3):
        store(tmp_path / str(machine), [made(call, f"m{machine}", 64 + machine) for call in range(8)])
    monkeypatch.setenv("TILEWRIGHT_TUNED", str(tmp_path / "here"))
    command = [sys.executable, "-m", "tilewright", "tuned", "import"]
    running = [subprocess.Popen([*command, str(tmp_path / str(n))], stdout=subprocess.DEVNULL) for n in range(3)]
    assert [each.wait(timeout=60) for each in running] == [0, 0, 0]
    here = state(store(tmp_path / "here"))
    assert len(here) == 8 and all(len(contents) == 3 for _, contents in here.values())
    expected = min(content_of(made(0, f"m{machine}", 64 + machine)) for machine in range(3))
    assert here[made(0, "").key][0] == expected, "of equal dates the smallest digest"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("CREATE VIEW others AS WITH RECURSIVE n(k) AS (SELECT 1 UNION ALL SELECT k FROM n) SELECT k AS key FROM n",
         "has a view 'others', so somebody changed it"),
        ("ALTER TABLE winners DROP COLUMN machine", r"cannot read, \w+ \('machine'\)"),
    ],
)  # fmt: skip
def test_a_store_with_other_tables_is_refused_by_a_line(tmp_path: Path, change: str, said: str) -> None:
    there = store(tmp_path / "there", [made(0, "there")])
    with closing(sqlite3.connect(there.path)) as file, file:
        file.execute(change)
    refused: list[str] = []
    try:
        assert not tuple(readable(store(tmp_path / "there"), lambda entry: refused.append(entry.problem)))
    except StorageError as error:
        refused.append(str(error))
    assert len(refused) == 1 and re.search(said, refused[0])


def test_a_pipe_is_read_once(tmp_path: Path) -> None:
    """As of `tilewright tuned import <(ssh host tilewright tuned export softmax)`."""
    os.mkfifo(tmp_path / "pipe")
    content = as_json(config_file_of([made(0, "there")]))
    writer = threading.Thread(target=(tmp_path / "pipe").write_text, args=(content,), daemon=True)
    writer.start()
    assert store_at(tmp_path / "pipe") is None and load(tmp_path / "pipe").rows
    writer.join(10)
