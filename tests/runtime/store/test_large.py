"""A large store takes work by the number of its kernels, not of its entries. bench/large_stores.py has the times."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.runtime.made_winners import winner

from tilewright.ledger import codec
from tilewright.runtime.key import digest
from tilewright.runtime.store import evidence, unchanged, verifying, winners
from tilewright.runtime.store.winners import Winner, Winners

KERNELS = 5


def entries(count: int, file: Path) -> list[Winner]:
    made = []
    for number in range(count):
        kernel = f"kernel{number % KERNELS}"
        parts = {"n": number}
        launch: dict[str, Any] = {
            "kernel": kernel, "module": "__main__", "qualname": kernel, "file": str(file), "source": "", "grid": [1],
            "arguments": [], "text": "another",
        }  # fmt: skip
        made.append(winner(digest(parts), kernel=kernel, parts=parts, config={"TILE": 128}, launches={"w": launch}))
    return made


@pytest.mark.parametrize("count", [20, 200])
def test_names_and_files_are_read_once_for_each_kernel(
    count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "kernels.py"
    file.write_text("".join(f"def kernel{number}(): ...\n" for number in range(KERNELS)))
    Winners(strict=True).put_all(entries(count, file))
    calls = {"digest": 0, "fitting": 0, "slow": 0}

    def counted(name: str, function: Any) -> Any:
        def call(*arguments: Any, **options: Any) -> Any:
            calls[name] += 1
            return function(*arguments, **options)

        return call

    monkeypatch.setattr(unchanged, "digest_of_needed", counted("digest", unchanged.digest_of_needed))
    monkeypatch.setattr(evidence.Kernels, "_fitting", counted("fitting", evidence.Kernels._fitting))
    monkeypatch.setattr(codec._Reader, "_record", counted("slow", codec._Reader._record))
    stored = Winners(strict=True).all()
    kernels = evidence.Kernels(Winners(strict=True).places)
    assert len(kernels) == count and len(list(kernels)) == KERNELS and unchanged.executed_files(stored) == ()
    assert calls == {"digest": KERNELS, "fitting": KERNELS, "slow": 0}


def test_the_quick_reader_agrees_with_the_one_that_names_the_field() -> None:
    made = winner()
    for data in (codec.to_json(made), codec.to_json(replace(made, index=None, launches={"w": float("nan")}))):
        assert repr(codec._Reader(True).read(Winner, data, "Winner")) == repr(codec._quick(Winner, True, False)(data))


@pytest.mark.parametrize("count", [7, 20])
def test_a_store_is_read_in_chunks_in_its_order(count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No more rows than a chunk are in memory, and a key that is no text is found, too."""
    store = Winners(strict=True)
    store.put_all(entries(count, tmp_path / "kernels.py"))
    with closing(sqlite3.connect(store.path)) as connection, connection:
        connection.execute("UPDATE winners SET key = CAST(key AS BLOB) WHERE kernel = 'kernel1'")
        expected = connection.execute("SELECT CAST(key AS TEXT) FROM winners ORDER BY kernel, created, key").fetchall()
    sizes: list[int] = []
    rows = winners._rows

    def counted(*given: Any) -> Any:
        sizes.append(len(found := rows(*given)))
        return found

    monkeypatch.setattr(winners, "_rows", counted)
    monkeypatch.setattr(winners, "CHUNK", 5)
    assert [one.key for one in store.each()] == [key for (key,) in expected]
    assert sizes[0] == count and max(sizes[1:]) == 5 and sum(sizes[1:]) == count


def test_a_plan_keeps_verdicts_and_keys_but_no_winner(tmp_path: Path) -> None:
    file = tmp_path / "kernels.py"
    file.write_text("def kernel0(): ...\n")
    gone = entries(4, tmp_path / "gone.py")
    plan = verifying.planned(gone, verifying.Here(None, "now"))
    assert plan.files == () and all("file is gone" in entry.reason for entry in plan.entries)  # type: ignore[union-attr]
    assert not any(isinstance(value, Winner) for entry in plan.entries for value in vars(entry).values())
