"""Finds the arguments of a program's function calls: runs a copy of the program with a decorator that records calls.

The source does not contain the dtypes, shapes and layouts of the arguments. The copy runs on the device that the
program chooses. Without a GPU this is the CPU, if the program supports that.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tilewright.program.command import ProgramCommand
from tilewright.program.copies import program_copy
from tilewright.runtime.called import VARIABLE
from tilewright.specialists.hot.functions import HotFunction
from tilewright.specialists.hot.inserting import after_imports, free_name
from tilewright.specialists.hot.running import ProgramEnd, started
from tilewright.tools.child import workplace

SECONDS = 120.0
"""Most seconds of the recorded run."""


@dataclass(frozen=True)
class CalledTensor:
    """A tensor that a function received or returned."""

    dtype: str
    shape: tuple[int, ...]
    device: str
    contiguous: bool
    gradient: bool
    plain: bool
    """Whether the object is a plain tensor or a parameter. False for other subclasses."""


@dataclass(frozen=True)
class ObservedCall:
    """One kind of call of a function.

    tensors: the tensors among the arguments, by name. Attributes of ``self`` are named ``self.NAME``.
    values: the Python text of the other plain arguments, by name.
    others: arguments of other types.
    seconds: the time of all such calls in the recorded run, on its device.
    """

    tensors: Mapping[str, CalledTensor]
    values: Mapping[str, str]
    others: tuple[str, ...]
    results: tuple[CalledTensor, ...]
    grad: bool
    """Whether gradients were recorded during the call."""
    autocast: bool
    count: int
    seconds: float

    @property
    def needs_gradient(self) -> bool:
        return self.grad and any(each.gradient for each in self.tensors.values())


def calls_of(
    command: ProgramCommand, functions: Sequence[HotFunction], seconds: float = SECONDS
) -> tuple[Mapping[HotFunction, tuple[ObservedCall, ...]], ProgramEnd]:
    """Runs a copy of the program. Returns the calls of each function. Calls with the longest total time are first.

    Raises RequestError if the program cannot be copied or started.
    """
    by_key = {f"{number}": each for number, each in enumerate(functions)}
    texts = {path: recorded_text(path, by_key) for path in dict.fromkeys(each.file for each in functions)}
    with workplace() as folder, program_copy(command, texts) as copy:
        end = started(copy, {VARIABLE: str(folder)}, seconds, lambda: any(Path(folder).glob("*.json")))
        rows = [row for file in sorted(Path(folder).glob("*.json")) for row in json.loads(file.read_text())]
    found: dict[HotFunction, list[ObservedCall]] = {}
    for row in sorted(rows, key=lambda row: -row["seconds"]):
        function = by_key[row["function"]]
        found.setdefault(function, []).append(_call(function, row))
    return {each: tuple(calls) for each, calls in found.items()}, end


def recorded_text(path: Path, functions: Mapping[str, HotFunction]) -> str:
    """Returns the text of a file with the recording decorator above each function."""
    text = path.read_text(encoding="utf-8")
    lines, name = text.splitlines(keepends=True), free_name(text, "observed_by_tilewright")
    for key, each in sorted(functions.items(), key=lambda item: -item[1].line):
        if each.file == path:
            at = each.node.lineno - 1
            indent = lines[at][: each.node.col_offset]
            lines.insert(at, f"{indent}@{name}({key!r}, {each.attributes!r})\n")
    return after_imports("".join(lines), f"from tilewright.runtime.called import observed as {name}\n")


def _call(function: HotFunction, row: Mapping[str, Any]) -> ObservedCall:
    wanted = {*function.parameters, *(f"self.{each}" for each in function.attributes)}
    given = {name: each for name, each in row["arguments"].items() if name in wanted}
    tensors = {name: _tensor(each) for name, each in given.items() if "dtype" in each}
    values = {name: each["value"] for name, each in given.items() if "value" in each}
    others = tuple(name for name, each in given.items() if not each)
    results = tuple(_tensor(each) for each in row["results"] if "dtype" in each)
    return ObservedCall(tensors, values, others, results, row["grad"], row["autocast"], row["count"], row["seconds"])


def _tensor(row: Mapping[str, Any]) -> CalledTensor:
    return CalledTensor(**{**row, "shape": tuple(row["shape"])})
