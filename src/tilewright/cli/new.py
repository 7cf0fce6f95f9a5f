"""`tilewright new`: writes a task file to start from, or a task with a kernel written from a reference."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tilewright.cli import terminal
from tilewright.cli.completion import kinds
from tilewright.cli.shared import Arch, AsJson, default_architecture, print_json, write
from tilewright.errors import RequestError

_FILE = "The task file to write, a file with kernels, or a reference as FILE.py:FUNCTION."
File = Annotated[str | None, typer.Argument(metavar="FILE.py[:FUNCTION]", help=_FILE)]
_KIND = "Such as norm, matmul or fmha; an unknown kind lists all."
KindName = Annotated[str, typer.Option("--kind", metavar="KIND", help=_KIND, autocompletion=kinds)]
Kernel = Annotated[str | None, typer.Option(metavar="NAME", help="The kernel of FILE.  [default: the first]")]
_WRITE = "Write a kernel for a named operation, such as 'fused SiLU-mul'; an unknown operation lists all."
Operation = Annotated[str | None, typer.Option("--write", metavar="OPERATION", help=_WRITE)]
_LANGUAGE = "The language of a kernel that is written from a reference: cutile or triton."
KernelLanguage = Annotated[str, typer.Option("--language", metavar="NAME", help=_LANGUAGE)]
Dtype = Annotated[
    str, typer.Option(metavar="NAME", help="The dtype of the tensors for which the reference names none.")
]

DEFAULT_LANGUAGE, DEFAULT_DTYPE = "cutile", "bfloat16"


def new(
    file: File = None, kind: KindName = "elementwise", kernel: Kernel = None, operation: Operation = None,
    language: KernelLanguage = DEFAULT_LANGUAGE, dtype: Dtype = DEFAULT_DTYPE,
    arch: Arch = None, as_json: AsJson = False,
) -> None:  # fmt: skip
    """Writes a task to start from. The task works at once: `check` finds it correct, and `tune` tunes it.

    FILE may hold cuTile or Triton kernels, but no task. Then a task for one of the kernels is written beside FILE, into
    FILE_task.py or FILE_KERNEL_task.py. The kernel's parameters are filled in; FILL IN marks the lines that you must
    complete. Never overwrites a file.

    With FILE.py:FUNCTION or --write, the kernel itself is written, from a reference over NumPy or torch arrays. The
    reference may be a chain of element-wise operations with row reductions, or a product of matrices with an epilogue.

    Example: `tilewright new my_kernel.py --kind matmul`

    Example: `tilewright new ops/attention.py --kernel attention_fwd`

    Example: `tilewright new --write "fused SiLU-mul" --language triton`

    Example: `tilewright new reference.py:rms_norm --language cutile --dtype float16`
    """
    from tilewright.cli import skeletons

    if operation is not None or (file is not None and ".py:" in file):
        return _from_reference(file, operation, language, dtype, as_json)
    if not file:
        raise RequestError('name a FILE.py to write, or an operation: tilewright new --write "fused SiLU-mul"')
    if (language, dtype) != (DEFAULT_LANGUAGE, DEFAULT_DTYPE):
        raise RequestError(
            "--language and --dtype are for a kernel that is written from a reference; "
            "give FILE.py:FUNCTION or --write OPERATION, or leave them out"
        )
    written, text = _to_start_from(Path(file), kind, kernel, arch)
    write(written, text, mode="x")
    if as_json:
        print_json({"file": str(written)})
    first = "" if written == Path(file) else f"complete its lines that say {skeletons.FILL_IN}, then: "
    terminal.note(f"wrote {written}; {first or 'next: '}tilewright check {written}")


def _to_start_from(file: Path, kind: str, kernel: str | None, arch: str | None) -> tuple[Path, str]:
    """Returns the path of the file to write, and its text: a skeleton, or a task for an existing kernel."""
    from tilewright.cli import skeletons
    from tilewright.hardware.architectures import architecture
    from tilewright.source.cutile import tasks
    from tilewright.source.source_file import SourceFile

    if file.suffix != ".py":
        raise RequestError(f"{file} is not a Python file; name one, e.g. {file.with_suffix('.py')}")
    if not file.exists():
        if kernel is not None:
            raise RequestError(f"--kernel names a kernel of an existing file, and there is no {file}")
        return file, skeletons.of_kind(kind, architecture(arch or default_architecture()).number, file.name)
    source = SourceFile.requested(file)
    if tasks(source):
        raise RequestError(f"{file} exists and holds a task; tune it: tilewright tune {file}")
    taken = file.with_name(f"{file.stem}_task.py")
    written = file.with_name(f"{file.stem}_{kernel}_task.py") if kernel and taken.exists() else taken
    text = skeletons.for_kernel(source, kernel, written)
    if written != taken:
        terminal.note(f"{taken} exists, so the task of {kernel} gets a file of its own")
    return written, text


def _from_reference(file: str | None, operation: str | None, language: str, dtype: str, as_json: bool) -> None:
    from tilewright.source.source_file import SourceFile
    from tilewright.specialists.writing.writing import ReferenceSource, source_of, write_task

    if operation is not None:
        if file is not None and ".py:" in file:
            raise RequestError("--write names an operation, and FILE.py:FUNCTION a reference; give one of the two")
        source, folder = source_of(operation), Path()
    else:
        path, _, function = str(file).rpartition(":")
        source = ReferenceSource(SourceFile.requested(Path(path)).text, function, path)
        folder = Path(path).parent
    target = Path(file) if operation is not None and file else folder / f"{source.function}_{language}.py"
    task = write_task(source, language, target.name, dtype=dtype)
    write(target, task.text, mode="x")
    if as_json:
        print_json({"file": str(target), "form": task.form.name, "notes": list(task.notes)})
    for note in task.notes:
        terminal.note(note)
    terminal.note(
        f"wrote {target}, a {language} kernel of the form '{task.form.name}'; next: tilewright check {target}"
    )
