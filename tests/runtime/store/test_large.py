"""A large store takes work by the number of its kernels, not of its entries. bench/large_stores.py has the times."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.runtime.made_winners import winner

from tilewright.ledger import codec
from tilewright.runtime.key import digest
from tilewright.runtime.store import evidence, unchanged
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
    assert len(evidence.Kernels(stored).winners) == count and unchanged.executed_files(stored) == ()
    assert calls == {"digest": KERNELS, "fitting": KERNELS, "slow": 0}


def test_the_quick_reader_agrees_with_the_one_that_names_the_field() -> None:
    made = winner()
    for data in (codec.to_json(made), codec.to_json(replace(made, index=None, launches={"w": float("nan")}))):
        assert repr(codec._Reader(True).read(Winner, data, "Winner")) == repr(codec._quick(Winner, True)(data))
