"""Escape sequences of stores, ledgers, sources and file names reach neither the terminal nor the Markdown."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path

import pytest
from tests.made_runs import tune_run, tuned_workload
from tests.runtime.made_winners import winner

from tilewright.cli import main as cli
from tilewright.cli import terminal
from tilewright.ledger.tunings import TuneLedger
from tilewright.printable import printable
from tilewright.report.report import report
from tilewright.runtime.store.winners import Winners

HOSTILE = "k\x1b]0;owned\x07\x1b[2J\x9b31m\u202e\x7f\r"
CONTROLS = "\x1b\x07\x9b\u202e\x7f\r"


def test_text_stays_and_controls_become_escapes_that_json_reads() -> None:
    assert printable("µ → 🙂\tx\n") == "µ → 🙂\tx\n"
    shown = printable(HOSTILE)
    assert not set(shown) & set(CONTROLS) and json.loads(f'"{shown}"') == HOSTILE


@pytest.mark.parametrize(
    "command",
    [
        ["tuned", "list"], ["tuned", "list", "--json"], ["tuned", "show", "kk"],
        ["tuned", "prune", "--all", "--dry-run"],
        ["tuned", "export"], ["tuned", "list", HOSTILE], ["report", "latest"], ["report", "--list"],
        ["report", "latest", "--html", "-"], ["check", f"{HOSTILE}.py"], ["lint", f"{HOSTILE}.py"], [HOSTILE],
        ["inspect", f"{HOSTILE}/task.py"],
    ],
    ids=lambda command: " ".join(command).translate(dict.fromkeys(map(ord, HOSTILE), "·")),
)  # fmt: skip
def test_nothing_hostile_is_printed(
    command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / f"{HOSTILE}.py").write_text("import torch\nraise OSError('\\x1b[31m')\n")
    for key in ("kk1", "kk2"):
        Winners(strict=True).put(winner(key, kernel=HOSTILE, label=HOSTILE, parts={HOSTILE: HOSTILE, "n": key}))
    with TuneLedger() as ledger:
        run = ledger.begin(replace(tune_run(), task=HOSTILE)).run
        ledger.save(run, replace(tuned_workload(HOSTILE), reason=HOSTILE))
    cli.main(command)
    out, err = capsys.readouterr()
    assert out + err and not set(out + err) & set(CONTROLS)
    assert not set(report("latest").markdown()) & set(CONTROLS)


def test_a_terminal_gets_styles_but_no_sequence_of_the_text() -> None:
    """rich's own sequences are kept; those in its text are not. So are those of the help."""
    from rich.text import Text

    console = terminal.stdout()
    console.file, console._force_terminal = stream, _ = io.StringIO(), True
    console._color_system = console._detect_color_system() or console._color_system
    console.print(Text.assemble((HOSTILE, "bold")))
    assert "\\u001b]0;owned" in stream.getvalue() and "\x1b]0" not in stream.getvalue()
    assert not set(stream.getvalue()) & set("\x07\x9b\u202e")
