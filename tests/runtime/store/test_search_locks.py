"""Claims: one tunes, the others wait or go on; and a killed process leaves nothing behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from tests.runtime.made_winners import as_another_user, lose_rights

from tilewright.runtime.store import search_locks
from tilewright.runtime.store.search_locks import search_lock
from tilewright.runtime.store.warn_once import TunedStoreWarning


@pytest.fixture(autouse=True)
def own_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("TILEWRIGHT_TUNED", str(tmp_path / "tuned"))
    return tmp_path / "tuned" / "locks"


HOLDING = """
import sys
from tilewright.runtime.store.search_locks import search_lock
with search_lock("k", wait=False) as mine:
    print(mine, flush=True)
    sys.stdin.readline()
"""


def holder() -> subprocess.Popen[str]:
    """Another process that has the claim of ``k`` until a line comes."""
    child = subprocess.Popen([sys.executable, "-c", HOLDING], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None and child.stdout.readline() == "True\n"
    return child


def test_one_thread_holds_it_and_others_do_not() -> None:
    with search_lock("k", wait=False) as first, search_lock("k", wait=True, seconds=0.05) as second:
        assert first and not second
        with search_lock("another", wait=False) as third:
            assert third
    with search_lock("k", wait=False) as again:
        assert again


def test_it_is_freed_when_the_block_fails(own_folder: Path) -> None:
    with pytest.raises(KeyboardInterrupt), search_lock("k", wait=False):
        raise KeyboardInterrupt
    assert list(own_folder.iterdir()) == []
    with search_lock("k", wait=False) as mine:
        assert mine


def test_of_many_threads_one_at_a_time() -> None:
    inside, most, done = 0, 0, 0

    def work() -> None:
        nonlocal inside, most, done
        with search_lock("k", wait=True, seconds=60) as mine:
            assert mine
            inside += 1
            most = max(most, inside)
            time.sleep(0.005)
            inside -= 1
            done += 1

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (most, done) == (1, 8)


def test_another_process_holds_it_until_it_ends() -> None:
    child = holder()
    with search_lock("k", wait=False) as mine:
        assert not mine
    with search_lock("another", wait=False) as mine:
        assert mine
    child.communicate("done\n")
    with search_lock("k", wait=False) as mine:
        assert mine


def test_a_killed_process_frees_it(own_folder: Path) -> None:
    child = holder()
    child.send_signal(signal.SIGKILL)
    with search_lock("k", wait=True, seconds=60) as mine:
        assert mine
    child.communicate()
    assert list(own_folder.iterdir()) == []


WAITING = """
import sys
from pathlib import Path
from tilewright.runtime.store.search_locks import search_lock
counter = Path(sys.argv[1])
for _ in range(20):
    with search_lock("k", wait=True, seconds=60) as mine:
        assert mine
        counter.write_text(str(int(counter.read_text()) + 1))
"""


def test_processes_that_wait_lose_no_turn(tmp_path: Path) -> None:
    """Files of search_locks come and go meanwhile: two holders at once would lose a count."""
    counter = tmp_path / "counter"
    counter.write_text("0")
    children = [subprocess.Popen([sys.executable, "-c", WAITING, str(counter)]) for _ in range(3)]
    assert [child.wait() for child in children] == [0, 0, 0]
    assert counter.read_text() == "60"


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_child_holds_nothing_and_keeps_nothing(own_folder: Path) -> None:
    """A worker that outlives the process that tuned does not block the next one."""
    gate, told = os.pipe(), os.pipe()
    with search_lock("k", wait=False):
        child = os.fork()
        if child == 0:
            try:
                with search_lock("k", wait=False) as mine:
                    os.write(told[1], b"1" if mine else b"0")
                os.read(gate[0], 1)
            finally:
                os._exit(0)
        assert os.read(told[0], 1) == b"0"
    with search_lock("k", wait=False) as mine:
        assert mine
    os.write(gate[1], b"x")
    assert os.waitpid(child, 0)[1] == 0


def test_a_folder_that_cannot_be_written_is_said_once_and_protects_the_threads_only(
    recwarn: pytest.WarningsRecorder,
) -> None:
    with as_another_user() as folder:
        lose_rights(folder, 0o555)
        for key in "ab":
            with search_lock(key, wait=False, folder=folder / "locks") as mine:
                assert mine
                with search_lock(key, wait=False, folder=folder / "locks") as second:
                    assert not second
    [said] = recwarn.list
    assert said.category is TunedStoreWarning
    assert "cannot lock files" in str(said.message) and "fix: set TILEWRIGHT_TUNED" in str(said.message)


def test_without_a_home_directory_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TILEWRIGHT_TUNED")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)
    with (
        pytest.warns(TunedStoreWarning, match="no home directory") as said,
        search_lock("k", wait=False) as mine,
        search_lock("k", wait=False) as second,
    ):
        assert mine and not second
    assert len(said) == 1
    assert not search_locks._held_locks
