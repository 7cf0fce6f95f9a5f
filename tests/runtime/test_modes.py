"""The mode in force: read at each call, and before any cache (A-16)."""

from __future__ import annotations

import os
import sys

import pytest

from tilewright.runtime.modes import CONTAINER, NAMES, SWITCHES, VARIABLE, Mode, fastest_view, from_values, mode
from tilewright.runtime.store import warn_once


@pytest.fixture(autouse=True)
def _silent(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (VARIABLE, *SWITCHES):
        monkeypatch.delenv(name, raising=False)


def test_tunes_now_unless_told_otherwise() -> None:
    assert mode() is Mode.NOW
    assert mode(Mode.STORED) is Mode.STORED


@pytest.mark.parametrize("name", [one.value for one in Mode])
def test_the_environment_overrides_the_author(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, f" {name.upper()} ")
    assert mode(Mode.NOW) is mode(Mode.STORED) is Mode(name)
    monkeypatch.setenv(VARIABLE, "")
    assert mode(Mode.STORED) is Mode.STORED


def test_a_change_is_seen_by_the_next_call() -> None:
    """A-16: nothing of it is remembered."""
    assert mode() is Mode.NOW
    os.environ[VARIABLE] = "stored"
    try:
        assert mode() is Mode.STORED
        os.environ[SWITCHES[0]] = "1"
        assert mode() is Mode.OFF
        os.environ[SWITCHES[0]] = "0"
        assert mode() is Mode.STORED
    finally:
        del os.environ[VARIABLE], os.environ[SWITCHES[0]]
    assert mode() is Mode.NOW


@pytest.mark.parametrize("switch", SWITCHES)
@pytest.mark.parametrize("value", ["1", "true", "YES", "on"])
def test_the_switches_win_and_mean_off(switch: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A-16; both names, with the values that TileGym takes."""
    monkeypatch.setenv(VARIABLE, "now")
    monkeypatch.setenv(switch, value)
    assert mode(Mode.BACKGROUND) is Mode.OFF


@pytest.mark.parametrize("value", ["0", "false", "no", "off", ""])
def test_a_switch_that_is_off_says_nothing(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SWITCHES[0], value)
    assert mode(Mode.BACKGROUND) is Mode.BACKGROUND


def test_mistakes_name_the_choices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "sometimes")
    known = r"TILEWRIGHT_TUNING=sometimes .* now \| background \| stored \| off; until that is corrected nothing"
    with pytest.warns(warn_once.TuningWarning, match=known) as warned:
        assert mode() is mode() is Mode.STORED
    assert [(each.filename, each.lineno) for each in warned] == [(__file__, sys._getframe().f_lineno - 1)]
    monkeypatch.setenv(SWITCHES[1], "perhaps")
    with pytest.warns(warn_once.TuningWarning, match="TILEGYM_DISABLE_AUTOTUNE=perhaps is neither on nor off"):
        assert mode() is Mode.STORED


def test_where_the_bytes_are_not_to_be_had_the_public_way_is_taken() -> None:
    environment = {VARIABLE: "background"}
    container, names = fastest_view(environment)

    def read() -> Mode:
        return from_values(tuple(map(container.get, names)), Mode.NOW)

    assert container is environment and read() is Mode.BACKGROUND
    del environment[VARIABLE]
    assert read() is Mode.NOW
    environment[SWITCHES[1]] = "1"
    assert read() is Mode.OFF


def test_here_they_are_to_be_had() -> None:
    assert CONTAINER is os.environ._data and all(isinstance(name, bytes) for name in NAMES)  # type: ignore[attr-defined]
