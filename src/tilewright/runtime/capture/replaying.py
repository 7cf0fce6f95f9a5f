"""Makes one call of a program again, in a process of its own, and describes the launches that it makes.

No kernel runs. The process imports changed files in place of the program's own. It runs code of versions, so it has the
limits of `candidate.sandbox`. The tensors are on the CPU, and the questions of a program about its GPU are answered
with the facts of a board. A search of the program takes the configuration that leads to the wanted launch.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tilewright.candidate.sandbox import confine
from tilewright.errors import MachineError, in_one_line
from tilewright.hardware.architectures import Board
from tilewright.ledger import codec
from tilewright.records import Value
from tilewright.runtime.capture.described import DescribedLaunch
from tilewright.runtime.capture.program_call import ProgramCall
from tilewright.runtime.capture.rebuilding import PROGRAM, attribute, rebuilt_arguments
from tilewright.source.source_file import SourceFile
from tilewright.tools import child
from tilewright.tools.packages import package_of

SECONDS = 60.0
"""Limit of processor time for a call, with the imports of the program."""


@dataclass(frozen=True)
class WantedLaunch:
    """What a search of the program should find: a launch with these ``numbers`` as its arguments that are not tensors,
    and with these hints."""

    numbers: tuple[Value, ...] = ()
    hints: Mapping[str, Value] = field(default_factory=dict)


def no_tensors(args: Iterable[object]) -> tuple[Value, ...]:
    """Returns the arguments of a launch that are not tensors."""
    return tuple(arg for arg in args if arg is None or isinstance(arg, (int, float, str)))


@dataclass(frozen=True)
class ReplayRequest:
    """What the process does. ``root``: the folder of the program's code. ``copy``: a folder with the changed files at
    the same paths. ``sms``, ``sm``: facts of the board. ``answer``: the file for the launches."""

    call: ProgramCall
    path: tuple[str, ...]
    root: str
    copy: str
    sms: int
    sm: int
    wanted: WantedLaunch
    answer: str


@dataclass(frozen=True)
class Replayed:
    """The launches of a call. ``problem``: why the call did not end, or was not made; empty if it ended."""

    launches: tuple[DescribedLaunch, ...] = ()
    problem: str = ""


def replayed(
    call: ProgramCall, texts: Mapping[Path, str], board: Board, wanted: WantedLaunch = WantedLaunch()
) -> Replayed:
    """Makes the call with ``texts`` in place of the files at these paths."""
    root = _import_root(call)
    if other := [path for path in texts if not path.is_relative_to(root)]:
        return Replayed(problem=f"{other[0]} is not below {root}, from which the program is imported")
    if not call.qualname:
        return Replayed(problem="no function around the launch can be called again with the recorded arguments")
    with child.workplace() as folder:
        copy, answer, question = folder / "copy", folder / "answer.json", folder / "question.json"
        copy.mkdir()
        for path, text in texts.items():
            changed = copy / path.relative_to(root)
            changed.parent.mkdir(parents=True, exist_ok=True)
            changed.write_bytes(text.encode())
        request = ReplayRequest(
            call, (str(root), *sys.path), str(root), str(copy), board.sms, board.sm, wanted, str(answer)
        )
        question.write_text(json.dumps(codec.to_json(request)))
        command = [sys.executable, "-m", "tilewright.runtime.capture.replaying", str(question)]
        try:
            ended = child.run(command, SECONDS, folder)
        except MachineError as error:
            return Replayed(problem=str(error))
        if not answer.is_file():
            last = (ended.stderr.strip().splitlines() or [f"exit code {ended.returncode}"])[-1]
            return Replayed(problem=f"the call could not be made again: {last}")
        try:
            return codec.from_json(Replayed, json.loads(answer.read_text()))
        except ValueError as error:  # the program's own code may have written to the folder
            return Replayed(problem=f"its answer cannot be read: {error}")


def _import_root(call: ProgramCall) -> Path:
    """Returns the folder from which the program's modules are imported."""
    file = Path(call.file)
    if call.module == PROGRAM and file.is_file() and (inside := package_of(file, SourceFile.requested(file).text)):
        return inside[0]
    return call.import_root(call.file) or file.parent


def main() -> None:
    """Makes the call of the request in the file ``sys.argv[1]``, and writes the answer."""
    gc.disable()  # a fifth of the time goes into collections that free nothing; the process ends after one call
    request = codec.from_json(ReplayRequest, json.loads(Path(sys.argv[1]).read_text()), defaults=True)
    sys.path[:] = list(request.path)
    answer = Path(request.answer)
    os.environ |= dict.fromkeys(("HOME", "XDG_CACHE_HOME"), str(answer.parent))  # nothing else can be written
    answer.write_text(json.dumps(codec.to_json(_made(request))))
    sys.stdout.flush()
    os._exit(0)  # threads and exit handlers of the program's libraries do not matter here


def _made(request: ReplayRequest) -> Replayed:
    import cuda.tile.tune  # its launches and searches are hooked before the program imports it
    import torch

    from tilewright.runtime.capture.kinds import ALWAYS
    from tilewright.runtime.capture.of_cutile import CapturedCuTile
    from tilewright.runtime.capture.recorder import Recorder
    from tilewright.runtime.copied import TilewrightCopied

    recorder = Recorder(Path(request.answer), exact=ALWAYS, describe=True)
    CapturedCuTile().start(recorder)
    cuda.tile.tune.exhaustive_search = partial(_search, request.wanted)
    _answer_as(torch, request.sms, request.sm)
    sys.meta_path.insert(0, TilewrightCopied(request.root, request.copy))
    confine(Path(request.answer).parent)
    problem = ""
    try:
        function, names = _function(request), [argument.name for argument in request.call.arguments]
        described = DescribedLaunch("", "", "", "", "", (), request.call.arguments)
        with torch.no_grad():
            function(**dict(zip(names, rebuilt_arguments(described, device="cpu"), strict=True)))
    except Exception as error:  # the program may raise anything, perhaps only because no kernel ran
        problem = in_one_line(error)
    return Replayed(tuple(each.launch for each in recorder.recorded().launches), problem)


def _function(request: ReplayRequest) -> Any:
    call = request.call
    if call.module != PROGRAM:
        return attribute(importlib.import_module(call.module), call.qualname)
    from tilewright.source.needed import loaded_part

    inside = Path(request.copy, Path(call.file).relative_to(request.root))
    return attribute(
        loaded_part(inside if inside.is_file() else Path(call.file), call.qualname, PROGRAM), call.qualname
    )


def _answer_as(torch: Any, sms: int, sm: int) -> None:
    """Answers torch's questions about the GPU as a board with ``sms`` SMs and the compute capability ``sm``."""
    major, minor = divmod(sm, 10)
    properties = SimpleNamespace(multi_processor_count=sms, major=major, minor=minor, name="a GPU that is not here")
    torch.cuda.current_stream = lambda *_: None
    torch.cuda.current_device = lambda: 0
    torch.cuda.get_device_properties = lambda *_: properties
    torch.cuda.get_device_capability = lambda *_: (major, minor)


def _search(
    wanted: WantedLaunch, search_space: Iterable[Any], stream: object, grid_fn: object, kernel: object,
    args_fn: Callable[[Any], Iterable[Any]], hints_fn: Callable[[Any], Mapping[str, Any]] | None = None, **_: object,
) -> Any:  # fmt: skip
    """Answers a search: the first configuration with the wanted arguments and hints, or else the first of all."""
    configurations = list(search_space)
    if not configurations:
        raise ValueError("the search has no configuration")

    def is_wanted(configuration: Any) -> bool:
        hints = hints_fn(configuration) if hints_fn is not None else {}
        given = {name: value for name, value in hints.items() if value is not None}
        return no_tensors(args_fn(configuration)) == wanted.numbers and given.items() <= wanted.hints.items()

    best = next(filter(is_wanted, configurations), configurations[0])
    measured = SimpleNamespace(config=best, mean_us=1.0, error_margin_us=0.0)
    return SimpleNamespace(best=measured, successes=(measured,), failures=())


if __name__ == "__main__":
    main()
