"""Answers a delegation to write a kernel: the written task is checked, and is handed back as a patch."""

from __future__ import annotations

import ast
from difflib import unified_diff
from pathlib import Path
from tempfile import TemporaryDirectory

from tilewright.errors import RequestError
from tilewright.specialists.delegation import Delegation, SpecialistAnswer
from tilewright.specialists.writing.expression import OutsideForms
from tilewright.specialists.writing.writing import ReferenceSource, source_of, write_task


def reference_in(delegation: Delegation) -> ReferenceSource | None:
    """Returns the reference of a delegation: that of the operation its task names if it has no file, or the function
    that its file names as ``FILE.py:FUNCTION``. None for a file with a task, whose kernel is there already."""
    if not delegation.file:
        return source_of(delegation.task)
    path, _, function = delegation.file.rpartition(":")
    if not path.endswith(".py"):
        return None
    try:
        text = Path(path).read_text(encoding="utf-8")
        module = ast.parse(text)
    except (OSError, SyntaxError, ValueError) as error:
        raise RequestError(f"{path} cannot be read as Python: {error}") from None
    names = {node.name for node in module.body if isinstance(node, ast.FunctionDef)}
    return ReferenceSource(text, function, path) if function in names else None


def written_answer(delegation: Delegation, source: ReferenceSource, language: str) -> SpecialistAnswer:
    """Writes the kernel and checks it with the interpreter. A patch that adds the task file is the answer; nothing is
    measured, so it is no applied change. A kernel that is not correct is not handed back."""
    from tilewright.verify.check import check

    name = f"{source.function}_{language}.py"
    dtype = delegation.dtype or "bfloat16"
    task = write_task(source, language, name, dtype=dtype, dims=delegation.dims)
    with TemporaryDirectory() as folder:
        file = Path(folder, name)
        file.write_text(task.text, encoding="utf-8")
        (verdict, *_) = check(str(file), engine="interpreter", quick=True)
    if not verdict.verdict.startswith("correct"):
        return unwritten(delegation, f"the {language} kernel that was written is {verdict.verdict}: {verdict.reason}")
    patch = "\n".join(unified_diff([], task.text.splitlines(), "/dev/null", f"b/{name}", lineterm="")) + "\n"
    said = f"wrote {name}, a {language} kernel of the form '{task.form}'; by the interpreter it is {verdict.verdict}"
    notes = {f"{name}/{number}": note for number, note in enumerate(task.notes, 1)}
    return SpecialistAnswer("analysed", said, (), notes, patch)


def unwritten(delegation: Delegation, reason: str | OutsideForms) -> SpecialistAnswer:
    """Says that a model or a person must write the kernel, with the text that they get."""
    return SpecialistAnswer("not applied", f"needs a proposer: {reason}\n\n{delegation}", ())
