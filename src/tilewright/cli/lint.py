"""`tilewright lint`: finds known mistakes in cuTile and Triton code."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from tilewright.cli import terminal
from tilewright.cli.exit_codes import NO
from tilewright.cli.shared import AsJson, print_json, progress, write
from tilewright.errors import RequestError

Paths = Annotated[list[Path], typer.Argument(metavar="PATH…", help="Files, and folders of Python files.")]
SarifFile = Annotated[Path | None, typer.Option("--sarif", metavar="FILE", help="Also write SARIF 2.1.0 to this file.")]
Compile = Annotated[
    bool, typer.Option("--compile", help="Also compile task files, to find hints that change no machine code.")
]
LintArch = Annotated[
    str | None, typer.Option("--arch", metavar="A", help="Architecture for --compile.  [default: sm_90]")
]
Select = Annotated[str | None, typer.Option("--select", metavar="A,B", help="Only these rules, for example cache_key.")]
Ignore = Annotated[str | None, typer.Option("--ignore", metavar="A,B", help="Leave out these rules.")]
Inventory = Annotated[
    bool, typer.Option("--inventory", help="List the kernels, launches, spaces and searches of the files.")
]


def lint(
    paths: Paths, select: Select = None, ignore: Ignore = None, inventory: Inventory = False,
    compile: Compile = False, arch: LintArch = None, sarif: SarifFile = None, as_json: AsJson = False,
) -> None:  # fmt: skip
    """Finds known mistakes in cuTile and Triton code without running it: the line, the reason and the fix.

    Exit code 0 if nothing is found at warning or above, 1 otherwise; with `--inventory` always 0.
    The comment `# tilewright: ignore[RULE]` suppresses a finding.

    Example: `tilewright lint src/ --ignore process_only_cache --sarif lint.sarif`
    """
    from tilewright.cli import lint_table
    from tilewright.hardware.architectures import architecture
    from tilewright.lint.linting import lint_paths
    from tilewright.lint.rules import rules

    if arch is not None and not compile:
        raise RequestError("--arch is only for --compile; give both, or leave out --arch")
    name = architecture(arch).name if arch is not None else None
    only = _words(select)
    if select is not None and not only:
        raise RequestError(f"--select names no rule; known: {', '.join(rule.name for rule in rules())}")
    with progress(as_json):
        report = lint_paths(paths, select=only, ignore=_words(ignore), compile=compile, arch=name)
    if sarif is not None:
        from tilewright import __version__
        from tilewright.lint.linting import sarif as as_sarif

        log = as_sarif(report, Path.cwd(), __version__)
        write(sarif, json.dumps(log, indent=2, ensure_ascii=False) + "\n")
        terminal.note(f"wrote {sarif}")
    if as_json:
        print_json(lint_table.to_json(report))
    else:
        width = terminal.stdout().width
        for line in lint_table.inventory_lines(report) if inventory else lint_table.lines(report, width):
            print(line)
    if not inventory and not report.clean:
        raise typer.Exit(NO)


def _words(text: str | None) -> tuple[str, ...]:
    return tuple(word for word in (text or "").split(",") if word.strip())
