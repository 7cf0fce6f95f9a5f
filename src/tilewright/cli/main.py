"""The command line: the typer app with its commands, and the exit code for each exception.

Results go to stdout, everything else to stderr. With ``--json`` stdout holds exactly one JSON value, also for an error.
A user's mistake, also one in the task file, is printed as one line that starts with ``error:``. A traceback means a
mistake in Tilewright. Each command is a module of this folder. A command imports other modules only when it runs, so
``--help`` is quick, and a command does not load the others. `exit_codes` lists the exit codes.
"""

from __future__ import annotations

import difflib
import errno
import os
import re
import sys
import traceback
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from itertools import takewhile
from typing import Annotated, NoReturn

import typer

from tilewright import __version__
from tilewright.cli import exit_codes, parameters, terminal
from tilewright.cli.interruption import Interrupted, ending, interruptible
from tilewright.cli.shared import help_without_a_command
from tilewright.errors import TilewrightError, in_task, is_task_code, place_in_task

UNWRITABLE = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM)
"""Errors of the file system that a user can fix."""
FEW = 9
"""An unknown command of a group with at most so many, such as `captured`, is answered with their names: one line."""

UsageError: type[Exception] = typer.BadParameter.__bases__[0]
"""The base class of typer's errors about options and arguments. It is found through a subclass, because its module
depends on typer's version."""

COMMANDS = (
    "inspect", "compare", "check", "tune", "optimize", "report", "run", "capture", "profile", "captured", "tuned",
    "agent", "route", "specialists", "casebook", "lint", "transfer", "mcp", "doctor", "new", "example", "clean",
)  # fmt: skip
"""All commands, in the order of ``--help``. The module and the function of a command have the command's name."""
GROUPS = {"captured": "capture", "tuned": "tuned"}
"""Maps the name of each group of commands to the module with the group's ``app``."""


def app(commands: Iterable[str] = COMMANDS) -> typer.Typer:
    """Returns the app with these commands, and imports their modules."""
    made = typer.Typer(
        name="tilewright", cls=parameters.Group, help="Makes GPU tile kernels fast, and proves it.",
        pretty_exceptions_enable=False, rich_markup_mode="markdown",
        context_settings={"help_option_names": ["-h", "--help"]},
    )  # fmt: skip
    made.callback(invoke_without_command=True)(_tilewright)
    for name in commands:
        module = import_module(f"tilewright.cli.{GROUPS.get(name, name)}")
        if name in GROUPS:
            made.add_typer(module.app, name=name)
        else:
            settings = getattr(module, "SETTINGS", None)
            made.command(cls=parameters.Command, context_settings=settings)(getattr(module, name))
    return made


def _tilewright(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version and end.")] = False,
) -> None:
    if version:
        print(f"tilewright {__version__}")
        raise typer.Exit
    help_without_a_command(context)


# From outcome to exit code ------------------------------------------------------------------------


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code."""
    terminal.replace_what_stdout_lacks()
    with terminal.printable_output():
        return _ended(arguments)


def _ended(arguments: Sequence[str] | None) -> int:
    words = sys.argv[1:] if arguments is None else arguments
    as_json = _wants_json(words)

    def failed(text: str, code: int) -> int:
        return exit_codes.error(text, code, as_json)

    received: list[int] = []
    try:
        with interruptible(received), _visible_exits():
            named = words[:1] if words and words[0] in COMMANDS else COMMANDS
            made = app(named)(args=arguments, obj=tuple(words), prog_name="tilewright", standalone_mode=False)
            code = int(made or 0)
        sys.stdout.flush()
        if code == exit_codes.INTERRUPTED:  # typer returns this code for every KeyboardInterrupt
            return failed(*ending(received))
        return code
    except Interrupted as interruption:
        return failed(str(interruption), interruption.code)
    except (KeyboardInterrupt, typer.Abort):
        return failed(*ending(received))
    except TilewrightError as error:
        return failed(str(error), error.exit_code)
    except UsageError as error:
        return failed(_usage(error, words), exit_codes.WRONG_REQUEST)
    except BrokenPipeError:
        _give_up_stdout()
        return exit_codes.DONE  # the reader of the pipe, such as `head`, has closed it
    except SystemExit as error:
        if place_in_task(error):
            return failed(in_task(error), exit_codes.WRONG_REQUEST)
        return exit_codes.DONE  # typer raises SystemExit if stdout was closed
    except Exception as error:
        return failed(*_unforeseen(error))


@contextmanager
def _visible_exits() -> Iterator[None]:
    """Makes ``os._exit`` in a task's code raise SystemExit: it would end the command without a word, perhaps with 0."""
    leave, here = os._exit, os.getpid()

    def visibly(status: int) -> NoReturn:
        ours = os.getpid() == here  # a process that the task's code has forked may end
        if ours and any(is_task_code(frame) for frame, _ in traceback.walk_stack(sys._getframe(1))):
            raise SystemExit(f"it calls os._exit({status})")
        leave(status)

    os._exit = visibly
    try:
        yield
    finally:
        os._exit = leave


def _wants_json(arguments: Sequence[str]) -> bool:
    """Returns whether ``--json`` is an argument of Tilewright, not of the program that `run` or `capture` starts."""
    ours = list(takewhile(lambda word: word != "--", arguments))
    if ours[:1] in (["run"], ["capture"]) and "--" not in arguments:
        ours = list(takewhile(lambda word: word.startswith("-"), ours[1:]))
    return "--json" in ours


def _usage(error: Exception, arguments: Sequence[str]) -> str:
    """Returns typer's message, the nearest option or command, and the ``--help`` command that lists the choices."""
    message = str(getattr(error, "format_message", error.__str__)()).replace("Value error, ", "")
    context = getattr(error, "ctx", None)  # the context of the innermost command
    if context is None:
        named = takewhile(lambda word: not word.startswith("-"), arguments[:1])
        return f"{message.rstrip('.')}; see {' '.join(('tilewright', *named, '--help'))}"
    if hasattr(error, "possibilities"):
        given, kind = str(getattr(error, "option_name", "")), "option"
        known = [name for parameter in context.command.params for name in parameter.opts]
    else:
        command = re.match(r"No such command '(.+?)'", message)
        given, kind, known = command[1] if command else "", "command", list(getattr(context.command, "commands", ()))
    if given:
        near = difflib.get_close_matches(given, known, 1)
        few = f"; known: {', '.join(known)}" if kind == "command" and len(known) <= FEW else ""
        message = f"no such {kind}: {given}" + (f"; did you mean {near[0]}?" if near else few)
    return f"{message.rstrip('.')}; see {context.command_path} --help"


def _unforeseen(error: Exception) -> tuple[str, int]:
    """Returns the message and the exit code for an exception that no command expects."""
    if isinstance(error, OSError) and error.errno in UNWRITABLE:
        return _unwritable(error), exit_codes.CANNOT
    if place_in_task(error):
        return in_task(error), exit_codes.WRONG_REQUEST
    traceback.print_exception(error)
    message = "this is a mistake in Tilewright, not in your task; `tilewright doctor` may tell more"
    return message, exit_codes.OUR_MISTAKE


def _unwritable(error: OSError) -> str:
    if error.filename is None:  # without a file name, stdout may be the full file
        _give_up_stdout()
    file = f" ({error.filename})" if error.filename else ""
    fix = "free some space" if error.errno in (errno.ENOSPC, errno.EDQUOT) else "choose a place that you can write"
    return f"{error.strerror}{file}: {fix}; TMPDIR and TILEWRIGHT_HOME set the folders"


def _give_up_stdout() -> None:
    """Redirects stdout to /dev/null. Otherwise Python would report at exit that it cannot write the rest."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
