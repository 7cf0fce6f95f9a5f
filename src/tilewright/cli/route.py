"""`tilewright route`: names the specialists for a performance question."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tilewright.cli import completion
from tilewright.cli.shared import AsJson, print_json
from tilewright.errors import RequestError

Question = Annotated[str, typer.Argument(metavar="QUESTION", help="What you want, in English.")]
About = Annotated[
    Path | None, typer.Argument(metavar="[FILE]", help="The file that the question is about. It is read, never run.")
]
RouteArch = Annotated[
    str | None,
    typer.Option("--arch", metavar="A", help="Architecture.  [default: that of the question, or else the GPU's]",
                 autocompletion=completion.architectures),
]  # fmt: skip
Capability = Annotated[
    str | None, typer.Option("--capability", metavar="X.Y", help="Compute capability, in place of --arch.")
]


def route(
    question: Question, file: About = None, arch: RouteArch = None, capability: Capability = None,
    as_json: AsJson = False,
) -> None:  # fmt: skip
    """Names the specialists for a performance question in the order of their work, with the reasons.

    Decides by rules, words and the kernels in FILE, and asks no model. `tilewright specialists` prints the rules. The
    exit code is 0, even if the question is not about performance.

    Example: `tilewright route "Write a Triton kernel for fused SiLU-mul"`

    Example: `tilewright route "optimize this kernel" ops/softmax.py --arch sm_100`
    """
    from tilewright.coordinate import facts, routing
    from tilewright.coordinate.question import refuse_empty
    from tilewright.hardware.architectures import architecture

    refuse_empty(question)
    if arch is not None and capability is not None:
        raise RequestError("--arch and --capability say the same; give one of them")
    target = architecture(arch).name if arch else facts.arch_of_capability(capability) if capability else None
    kernels = facts.kernels_in(file) if file else facts.kernels_named_in(question)
    found = routing.route(question, kernels, target or facts.arch_here)
    if as_json:
        print_json({"question": question, **vars(found), "kernels": kernels})
        return
    print(", then ".join(found.specialists) or "nobody")
    print(f"why: {found.why}")
    if found.alternatives:
        print(f"alternatives: {', '.join(found.alternatives)}")
