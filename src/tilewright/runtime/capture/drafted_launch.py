"""The text of a captured task about its launch: the launch functions, and the captured kernel as the reference."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from tilewright.ledger import codec
from tilewright.records import Json, Value
from tilewright.runtime.capture.described import DescribedLaunch
from tilewright.runtime.capture.program_call import ProgramCall


def where_defined(launch: DescribedLaunch) -> str:
    """Returns the module or the file that defines the kernel, as `tilewright.editable` takes it."""
    return launch.module if "." in launch.module else launch.file


def launch_text(kernel: str, names: str, launched: str) -> Iterator[str]:
    """Yields the lines of the task's launch, and of the captured launch, which never changes.

    names: the parameters. launched: the grid and the arguments, as arguments of `tilewright.Launch`.
    """
    for head, of, about in (
        (f"launched(kernel, {names})", "kernel", "The captured launch, for the reference."),
        (f"launch({names})", kernel, "The launch that may be changed together with the kernel."),
    ):
        yield from (f"def {head}:", f'    """{about}"""', f"    return tw.Launch({of}, {launched})", "", "")


def reference_text(launch: DescribedLaunch, shipped: Mapping[str, Value], call: ProgramCall | None) -> Iterator[str]:
    """Yields the lines that make the captured kernel the reference. call: where the program made the launch."""
    yield "captured = Captured("
    yield from (f"    {name}={getattr(launch, name)!r}," for name in ("module", "file", "qualname", "source"))
    yield f"    tensors=TENSORS, launch=launched, shipped={shipped!r}, flops=flops,"
    if call is not None:
        yield f"    call={_short(codec.to_json(call))!r},  # where the program made the launch"
    yield ")"


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


def other_editable(launch: DescribedLaunch, call: ProgramCall | None) -> str | None:
    """Returns the file in which the program makes the launch, if that is not the kernel's file and only defines
    names."""
    from tilewright.source.needed import is_quiet

    if call is None or not Path(call.file).is_file() or Path(call.file).resolve() == Path(launch.file):
        return None
    return call.file if is_quiet(Path(call.file)) else None
