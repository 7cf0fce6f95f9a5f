"""`tilewright profile`: shows how a program spends its time on the GPUs, from a trace or from a traced run."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tilewright.cli import run, terminal
from tilewright.cli.shared import HERE, All, AsJson, On, print_json, progress, run_elsewhere, write
from tilewright.errors import RequestError

if TYPE_CHECKING:
    from tilewright.profile.figures import Profile

TRACE = re.compile(r".*\.(json|gz|nsys-rep|ncu-rep|sqlite|pt\.trace)$")
"""Names of files that count as traces."""
PROGRAM_STEPS = "10:15"

What = Annotated[
    list[str] | None, typer.Argument(metavar="TRACE… | -- PROGRAM [ARGS]…", help="Traces, or the program to trace.")
]
Html = Annotated[Path | None, typer.Option("--html", metavar="FILE", help="Write the HTML page to this file.")]
Text = Annotated[Path | None, typer.Option("--markdown", metavar="FILE", help="Write the profiling report.")]
Analysis = Annotated[Path | None, typer.Option("--analysis", metavar="FILE", help="Write the analysis report.")]
ForAgent = Annotated[
    Path | None, typer.Option("--for-agent", metavar="FILE", help="Write the recommendations, for autopilot.")
]
Folder = Annotated[
    Path | None, typer.Option("--out", metavar="DIR", help="Folder for the traces.  [default: .tilewright/profiles/…]")
]
_STEPS = "Only the steps from A to before B.  [default: 10:15 of a program's optimizer steps, all of a trace]"
Steps = Annotated[str | None, typer.Option(metavar="A:B", help=_STEPS)]
Seconds = Annotated[
    float, typer.Option(min=0.0, help="Seconds to trace at most, from the first use of CUDA; 0: no limit.")
]
Counters = Annotated[
    bool, typer.Option("--counters", help="Then run the program again under Nsight Compute, for its hot kernels.")
]
Collectives = Annotated[
    bool,
    typer.Option("--collectives", help="Communication: in traces of ranks, or without TRACE measured on this host."),
]
Cpu = Annotated[bool, typer.Option("--cpu", help="With --collectives: between two processes of the CPU (gloo).")]


def profile(
    context: typer.Context,
    what: What = None, html: Html = None, markdown: Text = None, analysis: Analysis = None, for_agent: ForAgent = None,
    out: Folder = None,
    steps: Steps = None, seconds: Seconds = 60.0, counters: Counters = False,
    collectives: Collectives = False, cpu: Cpu = False, on: On = HERE, show_all: All = False, as_json: AsJson = False,
) -> None:  # fmt: skip
    """Shows where the time goes: compute, exposed communication and copies, idle time and its cause, hot kernels.

    TRACE is a trace of torch.profiler; reading it needs no GPU. A program runs unchanged under torch.profiler; the
    exit code is then the program's. FILE may be - for stdout.

    Example: `tilewright profile trace.json.gz --html profile.html`
    """
    if not what and not collectives and not cpu:
        raise RequestError("name a trace, or a program: tilewright profile -- python train.py")
    if (collectives or cpu) and any((html, markdown, analysis, for_agent, out)):
        raise RequestError("--collectives writes no file; fix: leave out the names of files, or use --json > FILE")
    reads = "a trace is read here, without a GPU; fix: leave --on out"
    outputs = [path for path in (html, markdown, analysis, for_agent, out) if path != Path("-")]
    refused = reads if what and _is_trace(what[0]) else ""
    run_elsewhere(context, on, None, outputs, refused, files=bool(what))

    from tilewright.profile.profile import profile as profiled
    from tilewright.runtime.started import recorded, trace_folder

    if collectives or cpu:
        _collectives(what or [], cpu, _range(steps) if steps else None, seconds, as_json)
        return
    assert what
    if _is_trace(what[0]):
        with progress(as_json) as shown:
            found, code = profiled(*_traces(what), steps=_range(steps) if steps else None, progress=shown), 0
    else:
        chosen = _range(steps or PROGRAM_STEPS)
        folder = trace_folder(out)
        code = _traced(what, folder, chosen[1], seconds, as_json)
        with progress(as_json) as shown:
            traces, times = recorded(folder, code)
            found = _located(profiled(*traces, steps=chosen, command=what, steps_us=times, progress=shown), what)
        terminal.note(f"traces: {folder}")
    if counters:
        from tilewright.profile.nsight import with_counters

        found = with_counters(found)
    _write(found, html, markdown, analysis, for_agent)
    _show(found, show_all, as_json, quiet=any((html, markdown, analysis, for_agent)))
    if code:
        raise typer.Exit(code)


def _collectives(what: list[str], cpu: bool, steps: tuple[int, int] | None, seconds: float, as_json: bool) -> None:
    """Shows the communication in the named traces; without a trace, measures that of this host."""
    from tilewright.cli.collectives import of_this_host, of_traces

    if what and (cpu or not all(map(_is_trace, what))):
        raise RequestError("--collectives takes traces of ranks, or nothing to measure this host (--cpu: its CPU)")
    of_traces(_traces(what), steps, as_json) if what else of_this_host(cpu, seconds or 60.0, as_json)


def _located(found: Profile, command: list[str]) -> Profile:
    """Returns the profile with lines of the program's source, if the command starts a Python script."""
    from tilewright.program.command import ProgramCommand
    from tilewright.program.places import located

    with suppress(RequestError):
        return located(found, ProgramCommand.of(command).script)
    return found


def _is_trace(word: str) -> bool:
    """Returns whether a word of the command names a trace or a folder, and not a program."""
    return bool(TRACE.fullmatch(word) or (word and Path(word).is_dir()))


def _traces(named: Sequence[str]) -> list[Path]:
    """Returns the trace files. For a folder, returns all traces in it."""
    other = next((each for each in named if not _is_trace(each)), None)
    if other is not None:
        raise RequestError(f"'{other}' is no trace: give traces, or a program to trace, but not both")
    found = []
    for path in map(Path, named):
        inside = sorted(each for each in path.glob("*.json*") if not each.name.endswith(".steps.json"))
        if path.is_dir() and not inside:
            raise RequestError(f"no traces (*.json, *.json.gz) in the folder {path}")
        found += inside if path.is_dir() else [path]
    return found


def _range(steps: str) -> tuple[int, int]:
    first, colon, last = steps.partition(":")
    if not (colon and first.isdecimal() and last.isdecimal() and int(first) < int(last)):
        raise RequestError(f"--steps {steps} is not A:B with A < B, such as {PROGRAM_STEPS}")
    return int(first), int(last)


def _traced(command: list[str], folder: Path, last: int, seconds: float, as_json: bool) -> int:
    """Runs the program with the recorder, which stops before step ``last``. Returns the program's exit code."""
    from tilewright.runtime.started import traced

    run.check_named(command)
    if command[0].endswith(".py") and not os.access(command[0], os.X_OK):
        raise RequestError(f"{command[0]} is a program: tilewright profile -- python {' '.join(command)}")
    return run.wait_for(command, traced(os.environ, folder, last, seconds), as_json)


def _write(found: Profile, *paths: Path | None) -> None:
    from tilewright.report import profile_views as views

    kinds = (views.page, views.profiling, views.analysis, views.for_agent)
    for path, view in zip(paths, kinds, strict=True):
        if path == Path("-"):
            sys.stdout.write(view(found))
        elif path is not None:
            write(path, view(found))
            terminal.note(f"wrote {path}")


def _show(found: Profile, show_all: bool, as_json: bool, quiet: bool) -> None:
    from tilewright.cli import profile_table
    from tilewright.cli.terminal_table import ROWS

    if as_json:
        print_json(found)
    elif not quiet:
        terminal.stdout().print(profile_table.profiled(found, None if show_all else ROWS))
