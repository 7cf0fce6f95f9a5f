"""The tuned store: the first writer wins, and nothing of it ever stops the user's program (Part 7 check 6)."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
import warnings
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.runtime.made_winners import as_another_user, lose_rights, winner

from tilewright.errors import StorageError
from tilewright.runtime.store import warn_once, winners
from tilewright.runtime.store.warn_once import TunedStoreWarning
from tilewright.runtime.store.winners import Unreadable, Winners


@pytest.fixture(autouse=True)
def nothing_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Each test has a folder of its own."""
    monkeypatch.setenv("TILEWRIGHT_TUNED", str(tmp_path / "tuned"))


# What is kept


def test_what_is_put_is_got_with_its_evidence_value_by_value() -> None:
    store = Winners()
    assert store.get("k1") is None
    assert store.put(winner()) == winner()
    found = Winners().get("k1")
    assert found == winner()
    assert found is not None and found.config is not None
    assert [type(value) for value in found.config.values()] == [int, bool, float, str, type(None)]


def test_a_moment_is_written_where_none_is_given() -> None:
    assert Winners().put(winner(created="")).created.startswith("20")


def test_the_first_writer_wins() -> None:
    first, later = winner(label="first"), winner(label="later")
    assert Winners().put(first) == first
    assert Winners().put(later) == first
    assert Winners().get("k1") == first


def test_who_puts_may_say_which_stands() -> None:
    Winners().put(winner(label="first"))
    later = [winner(label="later"), winner("k2", label="new")]
    kept = Winners().put_all(later, lambda new, earlier: earlier.label != "first")
    assert [(earlier and earlier.label, stands.label) for earlier, stands in kept] == [
        ("first", "first"),
        (None, "new"),
    ]
    assert Winners().put_all(later, lambda new, earlier: True)[0] == (winner(label="first"), later[0])
    assert [one.label for one in Winners().all()] == ["later", "new"]


def test_all_by_kernel_and_date_and_removed_by_key() -> None:
    store = Winners()
    for key, kernel, day in (("a", "softmax", 3), ("b", "softmax", 1), ("c", "matmul", 2)):
        store.put(winner(key, kernel=kernel, created=f"2026-01-0{day}"))
    assert [one.key for one in store.all()] == ["c", "b", "a"]
    assert store.remove(["a", "c", "unknown"]) == 2
    assert [one.key for one in store.all()] == ["b"]


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"TILEWRIGHT_TUNED": "/a/b", "XDG_CACHE_HOME": "/c", "HOME": "/h"}, "/a/b"),
        ({"XDG_CACHE_HOME": "/c", "HOME": "/h"}, "/c/tilewright"),
        ({"XDG_CACHE_HOME": "relative", "HOME": "/h"}, "/h/.cache/tilewright"),
        ({"TILEWRIGHT_TUNED": "", "HOME": "/h"}, "/h/.cache/tilewright"),
    ],
)
def test_where_it_lies(variables: dict[str, str], expected: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TILEWRIGHT_TUNED", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert winners.folder() == Path(expected)


# Several at once


_PUTTING = """
import sys
from concurrent.futures import ThreadPoolExecutor
sys.path.insert(0, sys.argv[1])
from tests.runtime.made_winners import winner
from tilewright.runtime.store.winners import Winners
process, threads = sys.argv[2], int(sys.argv[3])
def put(thread):
    own = [winner(f"{process}-{thread}-{number}") for number in range(4)]
    for each in (*own, winner("shared", label=f"{process}-{thread}")):
        stored = Winners().put(each)
        assert stored == Winners().get(each.key), each.key
        assert stored == each or each.key == "shared", each.key
    return stored.label
sys.stdin.readline()
with ThreadPoolExecutor(threads) as pool:
    print(*pool.map(put, range(threads)), sep="\\n")
"""


def test_sixteen_threads_and_sixteen_processes_lose_nothing_and_pick_the_same() -> None:
    """Part 7 check 6: concurrent writers. No warning, so no call gave up."""
    here, writers = str(Path(__file__).parents[3]), [("threads", 16), *((f"process{n}", 1) for n in range(16))]
    children = [
        subprocess.Popen(
            [sys.executable, "-W", "error", "-c", _PUTTING, here, name, str(threads)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for name, threads in writers
    ]  # fmt: skip
    for child in children:
        assert child.stdin is not None
        child.stdin.write("go\n")
        child.stdin.flush()
    told = [child.communicate() for child in children]
    assert [errors for _, errors in told if errors] == []
    assert len(labels := [label for out, _ in told for label in out.split()]) == 32 and len(set(labels)) == 1
    keys = {
        f"{name}-{thread}-{number}" for name, threads in writers for thread in range(threads) for number in range(4)
    }
    assert {one.key for one in Winners(strict=True).all()} == keys | {"shared"}


def test_threads_that_wait_do_not_stop_a_forked_child() -> None:
    with winners._one_thread():
        child = os.fork()
        if not child:
            os._exit(0 if Winners().put(winner()) == winner() else 1)
        assert os.waitpid(child, 0)[1] == 0


_TEXT = st.sampled_from(["", "a", "\0b", "\ud800", "é\x1b[31m"]) | st.text(max_size=3)
_VALUES = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), _TEXT)
_JSON = st.recursive(
    _VALUES, lambda inner: st.lists(inner, max_size=2) | st.tuples(inner) | st.dictionaries(_TEXT, inner, max_size=2)
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(
    key=_TEXT, kernel=_TEXT, label=_TEXT, parts=st.dictionaries(_TEXT, _JSON, max_size=3),
    config=st.none() | st.dictionaries(_TEXT, _VALUES, max_size=3), index=st.none() | st.integers(-(2**70), 2**70),
)  # fmt: skip
def test_what_put_returns_is_what_get_gives(recwarn: pytest.WarningsRecorder, **changes: Any) -> None:
    """Lone surrogates, NUL, NaN, tuples and numbers beyond 64 bits too; else one warning, and the program goes on."""
    recwarn.clear()
    warn_once._warned.clear()
    put = Winners().put(made := winner(**changes))
    if recwarn.list:
        assert put is made and "cannot keep the winner of" in str(recwarn.list[0].message)
    else:
        assert repr(put) == repr(Winners().get(made.key))  # repr, because NaN is not equal to NaN


_KILLED = """
import os, signal, sys
sys.path.insert(0, sys.argv[1])
from tests.runtime.made_winners import winner
from tilewright.runtime.store import warn_once
from tilewright.runtime.store import winners
store = winners.Winners()
store.put(winner("sound"))
def killed(row):
    os.kill(os.getpid(), signal.SIGKILL)  # inside the transaction, after the row was written
winners._winner = killed
store.put(winner("half"))
"""


def test_a_process_killed_while_it_writes_leaves_a_sound_store() -> None:
    killed = subprocess.run([sys.executable, "-c", _KILLED, str(Path(__file__).parents[3])], check=False)
    assert killed.returncode == -9
    assert [one.key for one in Winners(strict=True).all()] == ["sound"]
    assert Winners(strict=True).put(winner("half")).key == "half"


# What is wrong with it


def corrupt(path: Path) -> None:
    path.write_bytes(b"this is no database at all" * 100)


def cut_short(path: Path) -> None:
    Winners(path).put(winner())
    path.write_bytes(path.read_bytes()[:2500])


def newer(path: Path) -> None:
    Winners(path).put(winner())
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE tilewright_tuned_schema SET version = 99")


def foreign(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("CREATE TABLE songs (title TEXT)")


def tampered(path: Path) -> None:
    Winners(path).put(winner())
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE winners SET config = '[1, 2'")


def of_another_type(path: Path) -> None:
    Winners(path).put(winner())
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE winners SET config = ?", (json.dumps({"TILE": [1]}),))


def a_folder(path: Path) -> None:
    path.mkdir()


def without_its_table(path: Path) -> None:
    Winners(path).put(winner())
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("DROP TABLE winners")


def no_text(path: Path) -> None:
    Winners(path).put(winner())
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE winners SET config = CAST(x'7B2261223A22FF227D' AS TEXT)")


BROKEN = {
    corrupt: "not a database; fix: move that file away",
    cut_short: "malformed; fix: move that file away",
    newer: "another version of Tilewright (schema 99",
    foreign: "is a database of another program; fix: set TILEWRIGHT_TUNED",
    tampered: "holds an entry of softmax that this Tilewright cannot read, k1 (Expecting ',' delimiter",
    of_another_type: "cannot read, k1 (Winner.config.TILE",
    no_text: "fix: `tilewright tuned prune --key k1`",
    without_its_table: "no such table: winners; fix: move that file away",
    a_folder: "it is a folder; fix: move it away, or set TILEWRIGHT_TUNED to another",
}


@pytest.mark.parametrize("broken", BROKEN, ids=lambda broken: broken.__name__)
def test_a_broken_store_is_one_warning_and_the_program_goes_on(
    broken: Callable[[Path], None], tmp_path: Path, recwarn: pytest.WarningsRecorder
) -> None:
    path = tmp_path / "tuned.db"
    broken(path)
    store = Winners(path)
    for _ in range(3):
        assert store.get("k1") is None
        assert store.put(winner(label="mine")).label == "mine"
        assert store.all() == ()
    [said] = [str(one.message) for one in recwarn.list if one.category is TunedStoreWarning]
    assert len(recwarn) == 1 and "\n" not in said and BROKEN[broken] in said
    with pytest.raises(StorageError) as strict:
        Winners(path, strict=True).all()
    assert BROKEN[broken] in str(strict.value)


def test_warnings_as_errors_do_not_stop_the_program_either(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    corrupt(tmp_path / "tuned.db")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert Winners(tmp_path / "tuned.db").get("k1") is None
    assert capsys.readouterr().err.startswith("warning: tilewright: cannot use ")


def test_an_entry_that_cannot_be_read_does_not_hide_the_others() -> None:
    path = Winners(strict=True).path
    tampered(path)
    Winners(strict=True).put(winner("k2"))
    unreadable: list[Unreadable] = []
    assert [one.key for one in Winners(strict=True).all(unreadable.append)] == ["k2"]
    assert [(one.key, one.kernel) for one in unreadable] == [("k1", "softmax")]
    with pytest.warns(TunedStoreWarning, match="prune --key k1"):
        assert [one.key for one in Winners().all()] == ["k2"]
    assert Winners(strict=True).remove(["k1"]) == 1
    assert Winners(strict=True).all() == Winners(strict=True).all(unreadable.append)


@pytest.mark.parametrize("text", ['{"TILE":1},{"a":2}', '{"TILE":1', "", "[1],[2]"])
def test_a_column_that_is_not_one_json_value_is_unreadable(text: str) -> None:
    """The columns of a row are read in one call."""
    store = Winners(strict=True)
    store.put(winner("k1"))
    with closing(sqlite3.connect(store.path)) as file, file:
        file.execute("UPDATE winners SET config = ?", (text,))
    unreadable: list[Unreadable] = []
    assert store.all(unreadable.append) == () and [one.key for one in unreadable] == ["k1"]


def test_all_are_put_or_none() -> None:
    with pytest.raises(StorageError, match="bytes has no JSON form"):
        Winners(strict=True).put_all([winner("k1"), winner("k2", parts={"raw": b""})])
    assert Winners(strict=True).all() == ()
    tampered(Winners().path)
    with pytest.raises(StorageError, match="prune --key k1"):
        Winners(strict=True).put_all([winner("k2"), winner("k1")])
    assert Winners(strict=True).get("k2") is None


def test_a_file_where_the_folder_should_be(recwarn: pytest.WarningsRecorder) -> None:
    """The likeliest mistake: the variable names the file itself. It is no empty store."""
    Winners().put(winner())
    inside = Winners().path / "tuned.db"
    for ask in (lambda store: store.all(), lambda store: store.get("k1")):
        with pytest.raises(StorageError, match="fix: set TILEWRIGHT_TUNED to a folder; that is a file"):
            ask(Winners(inside, strict=True))
    assert Winners(inside).all() == () and Winners(inside).get("k1") is None
    assert len(recwarn) == 1


def test_a_folder_of_nobody_is_one_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWRIGHT_TUNED", "~nobody-of-that-name/here")
    with pytest.warns(TunedStoreWarning, match=r"TILEWRIGHT_TUNED=~nobody\S+ is; fix: give its whole path"):
        assert Winners().get("k1") is None
    with pytest.raises(StorageError, match="fix: give its whole path"):
        Winners(strict=True).all()


def test_a_locked_store_is_not_waited_for_long(
    monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder
) -> None:
    monkeypatch.setattr(winners, "HURRIED_SECONDS", 0.05)
    store = Winners()
    store.put(winner())
    with closing(sqlite3.connect(store.path, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        assert store.get("k1") is None
        assert store.put(winner("k2")) == winner("k2")
    assert "another process has been writing" in str(recwarn.pop(TunedStoreWarning).message)
    assert store.get("k1") == winner()


def test_a_folder_that_cannot_be_written_is_read(recwarn: pytest.WarningsRecorder) -> None:
    """Deployments ship a store in a folder that the program may only read."""
    with as_another_user() as folder:
        Winners(folder / "tuned.db").put(winner())
        (folder / "tuned.db").chmod(0o444)
        lose_rights(folder, 0o555)
        store = Winners(folder / "tuned.db")
        assert store.get("k1") == winner()
        assert not recwarn.list
        assert store.put(winner("k2")) == winner("k2") and store.get("k2") is None
        assert [one.category for one in recwarn.list] == [TunedStoreWarning]
        assert "readonly" in str(recwarn.list[0].message)


def test_a_folder_that_cannot_be_entered_is_one_warning(recwarn: pytest.WarningsRecorder) -> None:
    with as_another_user() as folder:
        lose_rights(folder, 0o000)
        assert Winners(folder / "tuned.db").get("k1") is None
        assert Winners(folder / "tuned.db").put(winner()) == winner()
    [said] = recwarn.list
    assert said.category is TunedStoreWarning and "Permission denied" in str(said.message)


def test_no_home_directory_is_one_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TILEWRIGHT_TUNED")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)  # as it is for a user without an entry
    with pytest.warns(TunedStoreWarning, match="fix: set TILEWRIGHT_TUNED"):
        assert Winners().get("k1") is None


@pytest.mark.parametrize(
    ("changes", "why"),
    [({"parts": {"raw": b"\0"}}, "bytes has no JSON form"), ({"config": {"TILE": 10**5000}}, "4300 digits")],
    ids=["bytes", "a number of 5001 digits"],
)
def test_what_is_not_plain_data_is_not_kept(changes: dict[str, Any], why: str) -> None:
    given = winner(**changes)
    with pytest.warns(TunedStoreWarning, match=f"cannot keep the winner of softmax: .*{why}"):
        assert Winners().put(given) is given
