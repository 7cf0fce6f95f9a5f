"""The output of `tilewright agent` for a question that asks for a new kernel. No program is involved."""

from __future__ import annotations

import typer

from tilewright.cli import terminal
from tilewright.cli.shared import print_json
from tilewright.coordinate.kernel_questions import KernelQuestion, answers
from tilewright.ledger.codec import to_json

NOT_WRITTEN = 1


def answered(asked: KernelQuestion, as_json: bool) -> None:
    """Prints the result of each specialist when it arrives. Exits with code 1 if the kernel was not written."""
    found = []
    for delegation, answer in answers(asked):
        found.append({"specialist": delegation.specialist, **to_json(answer)})
        if not as_json:
            print(f"{delegation.specialist}: {answer.outcome}: {answer.summary}")
            for name, text in answer.findings.items():
                print(f"  {name}: {text}")
            for measure in answer.measures:
                print(f"  {measure.metric}: {measure.before:.4g} → {measure.after:.4g} {measure.unit}")
        if answer.file and not as_json:
            terminal.note(f"wrote {answer.file}; next: tilewright optimize {answer.file}")
    if as_json:
        print_json({"question": asked.question, "answers": found})
    if not found[0]["file"]:
        raise typer.Exit(NOT_WRITTEN)
