"""Executes a delegation to write a kernel: the task is generated, checked and tuned. It returns a file and a patch."""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterator
from difflib import unified_diff
from pathlib import Path
from typing import TYPE_CHECKING

from tilewright.errors import RequestError
from tilewright.specialists.delegation import Delegation, Measure, SpecialistAnswer, light_measure
from tilewright.specialists.writing.attempting import GaveUp, UncheckedTask, first_correct, tuned
from tilewright.specialists.writing.expression import OutsideForms
from tilewright.specialists.writing.writing import ReferenceSource, source_of

if TYPE_CHECKING:
    from tilewright.records import Configuration, TuningResult


def reference_in(delegation: Delegation) -> ReferenceSource | None:
    """Returns the reference of a delegation; None if its file is a task, which already has a kernel.

    Without a file, returns the reference of the operation that the task's text names. If the file is
    ``FILE.py:FUNCTION``, returns that function.
    """
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
    """Generates the kernel, checks it and tunes it. The result is the task file and a patch that adds it.

    The file is in Tilewright's own folder, so that a later specialist, such as tileir, can continue with it. No file of
    the user changes, so the answer does not count as an applied change. A kernel that is not correct is not returned. A
    kernel that only a GPU can check is returned as unverified on a machine without one.
    """
    file = written_file(delegation, source, language)
    dtype = delegation.dtype or "bfloat16"
    found = first_correct(source, language, file, dtype=dtype, dims=delegation.dims)
    if isinstance(found, GaveUp):
        return unwritten(delegation, f"the {language} kernel for '{source.function}': {found}")
    run, shipped = tuned(file)
    text, name, how = file.read_text(encoding="utf-8"), file.name, "measured" if run.measured else "predicted"
    patch = "\n".join(unified_diff([], text.splitlines(), "/dev/null", f"b/{name}", lineterm="")) + "\n"
    said = f"wrote {name}, a {language} kernel of the form '{found.task.form.name}', {found.attempt}; by the "
    why = f" ({' '.join(found.verdict.reason.split())})" if isinstance(found, UncheckedTask) else ""
    said += f"{found.verdict.engine} it is {found.verdict.verdict}{why}; it ships {shipped}"
    notes = {f"{name}/{number}": note for number, note in enumerate(found.task.notes, 1)}
    notes[run.run] = f"{how} best: {run.workloads[0]}"
    return SpecialistAnswer("analysed", said, tuple(_measures(run, shipped)), notes, patch, str(file))


def written_file(delegation: Delegation, source: ReferenceSource, language: str) -> Path:
    """Returns the path of a written task. Different references, dtypes and extents have different paths."""
    from tilewright.ledger.file import home, make_private

    wanted = repr((source, delegation.dtype, sorted(delegation.dims.items())))
    folder = home().absolute() / "written" / hashlib.sha256(wanted.encode()).hexdigest()[:12]
    make_private(home())
    folder.mkdir(parents=True, exist_ok=True)
    return folder / f"{source.function}_{language}.py"


def _measures(run: TuningResult, shipped: Configuration) -> Iterator[Measure]:
    """Yields time and share of the speed of light, each for the first and for the best configuration."""
    for each in run.workloads:
        times = {one.configuration: one.measured.us for one in each.candidates if one.measured is not None}
        if each.shipped in times and shipped in times:
            before, after = times[each.shipped], times[shipped]
            yield Measure(f"latency of {each.workload}", "µs", before, after, run.run)
            yield light_measure(str(each.workload), (each.bound, before), (each.bound, after), run.run)


def unwritten(delegation: Delegation, reason: str | OutsideForms) -> SpecialistAnswer:
    """Returns the result that asks a model or a person to write the kernel. It contains the delegation as text."""
    return SpecialistAnswer("not applied", f"needs a proposer: {reason}\n\n{delegation}", ())
