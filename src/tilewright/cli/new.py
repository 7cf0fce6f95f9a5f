"""`tilewright new`: writes a task file to start from."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tilewright.cli import terminal
from tilewright.cli.completion import kinds
from tilewright.cli.shared import Arch, AsJson, default_architecture, print_json, write
from tilewright.errors import RequestError

File = Annotated[Path, typer.Argument(metavar="FILE.py", help="The task file to write, or a file with kernels.")]
_KIND = "Such as norm, matmul or fmha; an unknown one lists all."
KindName = Annotated[str, typer.Option("--kind", metavar="KIND", help=_KIND, autocompletion=kinds)]
Kernel = Annotated[str | None, typer.Option(metavar="NAME", help="The kernel of FILE.  [default: the first]")]


def new(
    file: File, kind: KindName = "elementwise", kernel: Kernel = None, arch: Arch = None, as_json: AsJson = False
) -> None:
    """Writes a task to start from. It runs as it is: `check` finds it correct, and `tune` tunes it.

    If FILE exists and holds cuTile or Triton kernels but no task, a task for one of these kernels is written beside
    FILE, into FILE_task.py or FILE_KERNEL_task.py. The kernel's parameters are filled in; FILL IN marks what you must
    add. Never overwrites a file.

    Example: `tilewright new my_kernel.py --kind matmul`

    Example: `tilewright new ops/attention.py --kernel attention_fwd`
    """
    from tilewright.cli import skeletons
    from tilewright.hardware.architectures import architecture
    from tilewright.source.cutile import tasks
    from tilewright.source.source_file import SourceFile

    if file.suffix != ".py":
        raise RequestError(f"{file} is not a Python file; name one, e.g. {file.with_suffix('.py')}")
    written = file
    if file.exists():
        source = SourceFile.requested(file)
        if tasks(source):
            raise RequestError(f"{file} exists and holds a task; tune it: tilewright tune {file}")
        taken = file.with_name(f"{file.stem}_task.py")
        written = file.with_name(f"{file.stem}_{kernel}_task.py") if kernel and taken.exists() else taken
        text = skeletons.for_kernel(source, kernel, written)
        if written != taken:
            terminal.note(f"{taken} exists, so the task of {kernel} gets a file of its own")
    elif kernel is not None:
        raise RequestError(f"--kernel names a kernel of an existing file, and there is no {file}")
    else:
        text = skeletons.of_kind(kind, architecture(arch or default_architecture()).number, file.name)
    write(written, text, mode="x")
    if as_json:
        print_json({"file": str(written)})
    first = "" if written == file else f"complete its lines that say {skeletons.FILL_IN}, then: "
    terminal.note(f"wrote {written}; {first or 'next: '}tilewright check {written}")
