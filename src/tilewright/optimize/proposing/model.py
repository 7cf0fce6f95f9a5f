"""The built-in proposer: asks a language model through pydantic-ai (the extra `agents`).

`python -m tilewright.optimize.proposing.model NAME` speaks the protocol of any other proposer: a request on standard
input, an answer on standard output. NAME is a model of pydantic-ai, as PROVIDER:NAME. Provider, key and address come
from the environment as pydantic-ai reads them, for example OPENAI_BASE_URL for a local server, or OLLAMA_BASE_URL.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from tilewright.errors import in_one_line

if TYPE_CHECKING:
    from pydantic_ai.models import Model

INSTRUCTIONS = """\
You make one GPU kernel faster. You get the kernel's file, what limits it with numbers, and every earlier attempt with \
the reason for its outcome. Propose one change that has not been tried, and that the numbers support. The change is \
verified and measured by others; you cannot influence that. Give a unified diff with exact context lines, or the whole \
new text of a file. If you have no idea left, say why in `done`, and give no patch.\
"""
FIX = "pip install 'tilewright[agents]', and the provider's package as pydantic-ai names it"


@dataclass
class ModelAnswer:
    """The answer of the model, in the fields of the protocol.

    title: a few words. expected: the expected effect, and why. patch: a unified diff; or else files: file name to whole
    new text. done: the reason if nothing is left to propose.
    """

    title: str = ""
    expected: str = ""
    patch: str = ""
    files: dict[str, str] | None = None
    done: str = ""


def proposed_by(model: Model | str, request: dict[str, Any]) -> dict[str, Any]:
    """Asks the model for a proposal, and returns the answer as the protocol has it.

    model: a model of pydantic-ai, or its name.
    Raises what pydantic-ai raises if the model cannot be reached, or does not answer in the form.
    """
    from pydantic_ai import Agent

    fixed = ("version", "tilewright", "answer", "files")
    told = json.dumps({name: value for name, value in request.items() if name not in fixed}, ensure_ascii=False)
    files = "\n".join(f"--- {name}\n{text}" for name, text in request["files"].items())
    agent = Agent(model, output_type=ModelAnswer, instructions=INSTRUCTIONS)
    answer = asdict(agent.run_sync(f"{files}\n\n{told}").output)
    return {name: value for name, value in answer.items() if value}


def main(arguments: list[str]) -> int:
    """Answers one request, or with ``--check`` only makes sure that the model can be used. Returns the exit code."""
    try:
        from pydantic_ai.models import infer_model
    except ImportError:
        print(f"error: pydantic-ai is not installed; fix: {FIX}", file=sys.stderr)
        return 3
    name, *options = arguments
    try:
        model = infer_model(name)
        if "--check" not in options:
            print(json.dumps(proposed_by(model, json.load(sys.stdin))))
    except Exception as error:  # of pydantic-ai and of any provider's package
        print(f"error: the model {name}: {in_one_line(error)}", file=sys.stderr)
        return 3
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
