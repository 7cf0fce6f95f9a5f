"""No damage of a store, a ledger or a config file ends in a traceback, or reaches the user's program."""

from __future__ import annotations

import os
import random
import shutil
import sqlite3
import warnings
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from tests.bench.kit import bench_module
from tests.made_agent_runs import several
from tests.made_runs import baseline_iteration, metrics, raced, run_record, tuned
from tests.runtime.made_winners import winner
from tests.runtime.store.test_config_file import parts, stored

from tilewright.cli import main as cli
from tilewright.ledger.agent_runs import AgentLedger
from tilewright.ledger.ledger import Ledger
from tilewright.ledger.tunings import TuneLedger
from tilewright.runtime.store import warn_once
from tilewright.runtime.store.warn_once import TunedStoreWarning
from tilewright.runtime.store.winners import Winners

DAMAGE = bench_module("faults_damage")
ASIDE = "TILEWRIGHT_DAMAGE_ASIDE" in os.environ
CELLS, FILES = DAMAGE.names(aside=ASIDE)
LEDGER_COMMANDS = [["report", "--list"], *[["report", run, *how] for run in ("TUNE", "OPTIMIZE", "AGENT")
                                           for how in (["--html", "-", "--markdown", "-"], ["--json"])]]  # fmt: skip
STORE_COMMANDS = [["list"], ["list", "--json"], ["show", "KEY"], ["export"], ["export", "--python"], ["verify"],
                  ["prune", "--all", "--dry-run"], ["prune", "--missing-source", "--dry-run"]]  # fmt: skip


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, dict[str, str]]:
    """A ledger with a run of each command, a store, and the names of the runs."""
    folder = tmp_path_factory.mktemp("sound")
    ledger = folder / "ledger.db"
    names = {}
    with Ledger(ledger) as optimized:
        names["OPTIMIZE"] = run = optimized.begin(run_record()).run
        for iteration in (baseline_iteration(), raced(1, 15.0, 20.0, keep=True)):
            optimized.append(run, iteration)
        optimized.finish(run, "nothing left", (metrics("large", 15.0, before_us=20.0),), "")
    with TuneLedger(ledger) as tunings:
        names["TUNE"] = tuned(tunings)
    with AgentLedger(ledger) as agent:
        names["AGENT"] = several(agent)
    with closing(sqlite3.connect(ledger)) as connection:
        connection.execute("PRAGMA journal_mode = DELETE")
    store = Winners(folder / "tuned.db", strict=True)
    for one in (stored(parts(), 1), stored(parts(8192), 2), winner(launches={"winner": {"module": "m", "file": "/f"}})):
        store.put(one)
    return ledger, store.path, names


SHARE = float(os.environ.get("TILEWRIGHT_DAMAGE_SHARE", "0.01"))
"""The share of all pairs of a damage and a column that runs. bench/faults.py runs more."""


def problems_of(arguments: list[str], names: dict[str, str], capsys: pytest.CaptureFixture[str]) -> Iterator[str]:
    code = cli.main([names.get(word, word) for word in arguments])
    out, err = capsys.readouterr()
    errors = [line for line in err.splitlines() if line.startswith("error:")]
    if code not in (0, 1, 2, 3) or "Traceback" in err or len(errors) > 1:
        yield f"{arguments}: {code}: {' | '.join(err.strip().splitlines()[-4:])[-400:]}"
    if any(control in out + err for control in "\x1b\x9b\x07\u202e"):
        yield f"{arguments}: escape sequences"


def cases(path: Path, folder: Path, seed: str) -> Iterator[tuple[str, Path]]:
    """Yields the name of each damage, and a damaged copy."""
    rng = random.Random(seed)
    every = list(DAMAGE.columns(path))
    for name in FILES:
        broken = _copied(path, folder / name)
        DAMAGE.FILES[name](broken, rng)
        yield name, broken
    for name in CELLS:
        for table, column in every:
            if rng.random() < SHARE:
                broken = _copied(path, folder / f"{name} {table} {column}")
                DAMAGE.damage_cell(broken, table, column, name, rng)
                yield f"{name} in {table}.{column}", broken


def _copied(path: Path, to: Path) -> Path:
    to.mkdir(parents=True)
    return Path(shutil.copy(path, to))


def test_a_damaged_store_is_one_line_and_the_program_goes_on(
    sound: tuple[Path, Path, dict[str, str]], tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    key, problems = Winners(sound[1]).all()[0].key, []
    for what, broken in cases(sound[1], tmp_path / "stores", "store"):
        monkeypatch.setenv("TILEWRIGHT_TUNED", str(broken.parent))
        monkeypatch.setattr(warn_once, "_warned", set())
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            try:
                Winners().get(key), Winners().all()
                Winners().put(winner("new"))
            except Exception as error:  # the user's program must go on
                problems.append(f"{what}: the program got {error!r}")
        texts = [str(one.message) for one in said if one.category is TunedStoreWarning]
        if len(texts) != len(said) or len(texts) > 1 or "\n" in "".join(texts):
            problems.append(f"{what}: {[str(one.message) for one in said]}")
        for command in STORE_COMMANDS if " in " in what else STORE_COMMANDS[:1]:
            problems += [f"{what}: {each}" for each in problems_of(["tuned", *command], {"KEY": key[:12]}, capsys)]
    assert not problems, "\n".join(problems)


def test_a_damaged_ledger_is_one_line(
    sound: tuple[Path, Path, dict[str, str]], tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    problems = []
    for what, broken in cases(sound[0], tmp_path / "ledgers", "ledger"):
        monkeypatch.setenv("TILEWRIGHT_HOME", str(broken.parent))
        for command in LEDGER_COMMANDS if " in " in what else LEDGER_COMMANDS[:2]:
            problems += [f"{what}: {each}" for each in problems_of(command, sound[2], capsys)]
    assert not problems, "\n".join(problems)
