"""`tilewright run`: starts a program in which Tilewright replaces the searches of cuda-tile and of Triton."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Annotated, Literal

import typer

from tilewright.cli.completion import one_of
from tilewright.cli.exit_codes import ended
from tilewright.cli.shared import print_json
from tilewright.errors import RequestError

NOT_FOUND, NOT_EXECUTABLE = 127, 126
"""Exit codes that shells and `env` use for a program that they cannot start."""

SETTINGS = {"allow_interspersed_args": False}
"""Settings for typer: options after the program's name belong to the program, with or without ``--``."""

Command = Annotated[
    list[str], typer.Argument(metavar="-- PROGRAM [ARGS]…", help="The program, as you start it without Tilewright.")
]
Widen = Annotated[bool, typer.Option("--widen", help="Also try neighbours of cuTile configurations.")]
_MODE = "now: search; stored: only look up; off: the program's own search.  [default: now]"
HowMuch = Annotated[Literal["now", "stored", "off"] | None, one_of("--mode", "now", "stored", "off", help=_MODE)]
ShowIt = Annotated[bool, typer.Option("--json", help="Print what would be started, and start nothing.")]


def run(command: Command, widen: Widen = False, mode: HowMuch = None, as_json: ShowIt = False) -> None:
    """Runs a program with the searches of `exhaustive_search` and `triton.autotune` replaced, and stores the winners.

    Changes no file of the program, of cuda-tile or of Triton. Works also in workers and ranks that the program starts.
    The program replaces this process, so output, exit code and signals are the program's own.

    Example: `tilewright run -- python train.py --steps 100`
    """
    check_named(command)
    changes = environment(os.environ, widen=widen, mode=mode)
    check_modes({**os.environ, **changes})
    if as_json:
        print_json({"command": command, "environment": changes})
        return
    sys.stdout.flush()
    sys.stderr.flush()
    with starting(command[0]):
        os.execvpe(command[0], command, {**os.environ, **changes})  # noqa: S606  (as `env` does)


def check_named(command: Sequence[str]) -> None:
    """Raises RequestError if the program's name is empty, for example ``"$PYTHON"`` with that variable not set."""
    if not command[0]:
        raise RequestError("the name of the program is empty; was a variable for it not set?")


def check_modes(environment: Mapping[str, str]) -> None:
    """Raises RequestError if a variable of the mode has a value that is not known. Else the program would, later."""
    from tilewright.runtime.modes import SWITCHES, VARIABLE, Mode, from_values

    from_values(tuple(map(environment.get, (VARIABLE, *SWITCHES))), Mode.NOW)


def environment(before: Mapping[str, str], *, widen: bool = False, mode: str | None = None) -> dict[str, str]:
    """Returns the variables to set for the program. ``before``: the environment without them."""
    from tilewright.runtime.started import python_path

    changes = {"PYTHONPATH": python_path(before), "TILEWRIGHT_PATCH": "1"}
    if widen:
        changes["TILEWRIGHT_WIDEN"] = "1"
    if mode is not None:
        changes["TILEWRIGHT_TUNING"] = mode
    return changes


@contextmanager
def starting(program: str, as_json: bool = False) -> Iterator[None]:
    """If the program cannot be started, prints the reason in one line, and exits with the code that a shell would use:
    127 if the program is not found, 126 if it cannot be executed. For any other reason, raises RequestError.
    """
    hint = f"; start it with its interpreter: python {program}" if program.endswith(".py") else ""
    try:
        yield
    except (FileNotFoundError, NotADirectoryError) as error:
        raise ended(f"no such program: {program}{hint}", NOT_FOUND, as_json) from error
    except PermissionError as error:
        raise ended(f"cannot execute {program}{hint}", NOT_EXECUTABLE, as_json) from error
    except (OSError, ValueError) as error:
        raise RequestError(f"cannot start {program}: {getattr(error, 'strerror', None) or error}") from error


FORWARDED = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)
SI_KERNEL = 0x80
"""`si_code` of a signal from the terminal (sigaction(2)). The terminal sends it to the program, too."""


def wait_for(command: list[str], environment: Mapping[str, str], as_json: bool) -> int:
    """Runs the program and returns the exit code that a shell would return.

    Each signal in `FORWARDED` is passed on to the program, once. A signal that this process ignores (as under `nohup`)
    is not, because the program ignores it as well.
    """
    early: list[int] = []
    numbers = [number for number in FORWARDED if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, lambda number, frame: early.append(number)) for number in numbers}
    waited = {*numbers, signal.SIGCHLD}
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    try:
        with starting(command[0], as_json):
            process = subprocess.Popen(command, env=environment, stdout=2 if as_json else None)
        signal.pthread_sigmask(signal.SIG_BLOCK, waited)  # after the start, because the program inherits the mask
        for number in early:
            process.send_signal(number)
        while (code := process.poll()) is None:
            received = signal.sigwaitinfo(waited)
            if received.si_signo in numbers and received.si_code != SI_KERNEL:
                process.send_signal(received.si_signo)
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    return code if code >= 0 else 128 - code  # -N: ended by signal N, for which shells report 128 + N
