"""Sets ``num_workers``, so that other processes read a `DataLoader`'s data during the steps, not between them.

Only a data set class of the program is changed, and only if it gives the same item for an index each time. With
workers, random numbers would differ.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from tilewright.program.changes.base import ChangeSite, NearMiss, ProgramChange
from tilewright.program.changes.pinned_copies import LOADER
from tilewright.program.reading.module import Edit, NotSure, ReadModule
from tilewright.source.source_file import argument, keywords

PLACE = 5
"""The index of num_workers among the positional arguments of a loader."""
WORKERS = 4
RANDOM = re.compile(r"\brand|random|shuffle|augment|[Jj]itter|cuda|device", re.IGNORECASE)


class LoaderWorkers(ProgramChange):
    name = "loader_workers"
    about = "reads batches in other processes while the GPU computes, instead of between the steps"
    words = ("num_workers", "loader worker*", "worker process*", "prefetch*")
    findings = ("host-late", "idle")
    order = 37
    absent = "the program has no loader without workers over a data set of its own"

    def look(self, module: ReadModule) -> Iterator[ChangeSite | NearMiss]:
        for loader in module.calls(LOADER):
            try:
                edit = _worked(module, loader)
                if edit is not None:
                    yield ChangeSite(loader.lineno, "loader", (edit,))
            except NotSure as reason:
                yield NearMiss(reason.line, reason.reason)


def _worked(module: ReadModule, loader: ast.Call) -> Edit | None:
    """Makes the edit of a loader; None if it has workers, or if its data set is not a class of the program. Raises
    NotSure.
    """
    given = keywords(loader).get("num_workers")
    if given is not None and not (isinstance(given, ast.Constant) and given.value == 0):
        return None
    source = argument(loader, 0, "dataset")
    values = module.file.values(source)
    made = values[0] if len(values) == 1 else None
    found = module.defined(made.func) if isinstance(made, ast.Call) else None
    if found is None or not isinstance(found[1], ast.ClassDef):
        return None
    if any(keyword.arg is None for keyword in loader.keywords) or len(loader.args) > PLACE:
        raise NotSure("the loader's arguments are not all visible", loader)
    other, data = found[0], found[1]
    assert isinstance(data, ast.ClassDef)
    if any(other.full(base).endswith("IterableDataset") for base in data.bases):
        raise NotSure("each worker would yield all elements of an iterable data set", loader)
    reading = [each for each in data.body if isinstance(each, ast.FunctionDef) and each.name != "__init__"]
    for function in reading:
        if match := RANDOM.search(other.code(function)):
            raise NotSure(f"{data.name}.{function.name} has '{match[0]}': it may give other values in a worker", loader)
        if any(
            isinstance(n, (ast.Attribute, ast.Subscript)) and isinstance(n.ctx, ast.Store) for n in ast.walk(function)
        ):
            raise NotSure(f"{data.name}.{function.name} stores a value, which would stay in the worker process", loader)
        if any(isinstance(n, ast.Attribute) and n.attr.startswith("transform") for n in ast.walk(function)):
            raise NotSure(f"{data.name}.{function.name} calls a transform, which may be random", loader)
    new = f"num_workers={WORKERS}"
    return module.replace(given, f"{WORKERS}") if given is not None else module.add_argument(loader, new)


CHANGE = LoaderWorkers()
