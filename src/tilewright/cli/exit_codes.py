"""The exit codes of `tilewright`, and how an error is printed."""

from __future__ import annotations

import json
import sys

import typer

from tilewright.cli.interruption import INTERRUPTED as INTERRUPTED
from tilewright.cli.interruption import TERMINATED as TERMINATED

DONE, NO, WRONG_REQUEST, CANNOT, OUR_MISTAKE = 0, 1, 2, 3, 70

EXIT_CODES = {
    DONE: ("done", "what was asked for is done"),
    NO: ("no", "the answer is no: the kernel is incorrect, inspect compiled nothing, or no configuration works"),
    WRONG_REQUEST: ("request", "the request is wrong: an option, the task file, or a kernel that never compiles"),
    CANNOT: ("machine", "this machine cannot do it: no compiler, no GPU, or no disk space"),
    OUR_MISTAKE: ("internal", "a mistake in Tilewright; its traceback is on stderr"),
    INTERRUPTED: ("interrupted", "Ctrl-C (SIGINT)"),
    TERMINATED: ("terminated", "a request to end (SIGTERM)"),
}
"""Maps an exit code to the kind of error that `--json` prints, and to its meaning. `run` and `capture` return the exit
code of the program that they start."""


def error(text: str, code: int, as_json: bool) -> int:
    """Prints an error as one line on stderr, and with ``as_json`` as an object on stdout. Returns ``code``."""
    line = " ".join(text.split())
    prefix = "" if code in (INTERRUPTED, TERMINATED) else "error: "
    print(f"{prefix}{line}", file=sys.stderr, flush=True)
    if as_json:
        kind, _ = EXIT_CODES.get(code, EXIT_CODES[WRONG_REQUEST])
        print(json.dumps({"error": {"kind": kind, "message": line, "exit_code": code}}, indent=2), flush=True)
    return code


def ended(text: str, code: int, as_json: bool = False) -> typer.Exit:
    """Prints an error. Returns the exception to raise, which ends the command with ``code``."""
    return typer.Exit(error(text, code, as_json))
