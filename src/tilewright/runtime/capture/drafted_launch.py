"""The text of a captured task about its launch: the launch functions, and the captured kernel as the reference."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from tilewright.errors import TilewrightError
from tilewright.ledger import codec
from tilewright.playbook.analyses.host_launch import launch_number
from tilewright.playbook.base import NotApplicable
from tilewright.records import Json, Value
from tilewright.runtime.capture.described import DescribedLaunch
from tilewright.runtime.capture.drafted_space import literal
from tilewright.runtime.capture.program_call import ProgramCall, ProgramLine
from tilewright.source.needed import is_quiet
from tilewright.source.syntax import Source


def editable_text(launch: DescribedLaunch, call: ProgramCall | None) -> Iterator[str]:
    """Yields the lines that load the files which may be edited: the kernel's, and that with the program's launch."""
    kernel, *others = _editable(launch, call)
    yield f"module = tw.editable({kernel!r})"
    yield from (f"tw.editable({other!r})  # the program makes the launch there" for other in others)
    yield from ("", "")


def edit_text(launch: DescribedLaunch, call: ProgramCall | None) -> str:
    """Returns the line of the task that names the files which may be edited. The task file has the launch."""
    return f"    edit=({', '.join(map(repr, _editable(launch, call)))}, __file__),"


def launch_place(call: ProgramCall) -> ProgramLine | None:
    """Returns the innermost line of the program with a ``ct.launch``; None if there is none."""
    for place in call.places:
        with suppress(NotApplicable, TilewrightError, OSError):
            launch_number(Source(place.file, Path(place.file).read_text()), place.line)
            return place
    return None


def _editable(launch: DescribedLaunch, call: ProgramCall | None) -> tuple[str, ...]:
    """Returns the modules or files that may be edited, as `tilewright.editable` takes them. The file with the program's
    launch is left out if loading it would run a program."""
    kernel = launch.module if "." in launch.module else launch.file
    place = None if call is None else launch_place(call)
    if call is None or place is None or not is_quiet(file := Path(place.file)) or file.resolve() == Path(launch.file):
        return (kernel,)
    root = call.import_root(place.file)
    return (kernel, str(file) if root is None else ".".join(file.relative_to(root).with_suffix("").parts))


def launch_text(kernel: str, names: str, launch: str, launched: str, more: str = "") -> Iterator[str]:
    """Yields the lines of the task's launch, and of the captured launch, which never changes.

    names: the parameters. more: further parameters of the captured launch.
    launch, launched: the grid and the arguments of both, as arguments of `tilewright.Launch`.
    """
    yield from _function(
        f"launched(kernel, {names}{more})", "The captured launch, for the reference.", "kernel", launched
    )
    about = "The launch that may be changed together with the kernel."
    yield from _function(f"launch({names})", about, kernel, launch)


def produced_text(names: str, launched: str) -> Iterator[str]:
    """Yields the lines of the captured launch that is made before, for the reference."""
    yield from _function(f"produced(kernel, {names})", "The captured launch before it.", "kernel", launched)


def _function(head: str, about: str, kernel: str, launched: str) -> Iterator[str]:
    yield from (f"def {head}:", f'    """{about}"""', f"    return tw.Launch({kernel}, {launched})", "", "")


def reference_text(
    launch: DescribedLaunch, shipped: Mapping[str, Value], call: ProgramCall | None, more: Iterable[str] = ()
) -> Iterator[str]:
    """Yields the lines that make the captured kernel the reference. call: where the program made the launch.

    more: further arguments of `Captured`, as lines.
    """
    yield "captured = Captured("
    yield from _kernel_text(launch)
    yield f"    tensors=TENSORS, launch=launched, shipped={literal(shipped)}, flops=flops,"
    yield from more
    if launch.closure:
        yield f"    closure={literal(launch.closure)},"
    if call is not None:
        yield f"    call={_short(codec.to_json(call))!r},  # where the program made the launch"
    yield ")"


def producer_text(launch: DescribedLaunch, constants: Mapping[str, Value], like: str, dtype: str) -> Iterator[str]:
    """Yields the argument of `Captured` with the kernel that is launched before. constants: those of the task."""
    yield "    producer=Producer("
    yield from (f"    {line}" for line in _kernel_text(launch))
    hints = {name: value for name, value in launch.hints.items() if value is not None}
    yield f"        launch=produced, shipped={literal({**constants, **hints})}, like={like!r}, dtype={dtype!r},"
    yield "    ),"


def _kernel_text(launch: DescribedLaunch) -> Iterator[str]:
    yield from (f"    {name}={getattr(launch, name)!r}," for name in ("module", "file", "qualname", "source"))


def _short(data: Json) -> Json:
    """Returns JSON without the fields that have no value, or the value 0 by default."""
    if isinstance(data, list):
        return [_short(item) for item in data]
    if not isinstance(data, dict):
        return data
    zero = ("storage", "offset", "address_offset")
    return {
        name: _short(item)
        for name, item in data.items()
        if item not in (None, "", []) and not (name in zero and item == 0)
    }
