"""Finding the task in a Python file: ``examples/matmul.py`` or ``ops.py:attention``."""

from __future__ import annotations

import hashlib
import importlib.util
import inspect
import sys
import traceback
from dataclasses import replace
from pathlib import Path
from types import ModuleType

from tilewright.errors import RequestError, TaskError, TilewrightError, UnknownChoice
from tilewright.task import Task


def load_task(where: str) -> Task:
    """The task of ``FILE`` or ``FILE:TASK`` (the task's name, or the variable that holds it).

    Raises TaskError when the file does not import, or holds no task; when it holds several and none
    is named, the message lists them.
    """
    file, _, wanted = where.rpartition(":") if ":" in where and not Path(where).exists() else (where, "", "")
    path = Path(file).resolve()
    if not path.is_file():
        raise RequestError(f"no such task file: {file}")
    module = _imported(path)
    found = {name: task for name, task in vars(module).items() if isinstance(task, Task)}
    task = _chosen(found, wanted, file)
    return replace(task, file=path, edit=task.edit or (path.name,))


def where_is(task: Task) -> str:
    """What `load_task` needs to find this task again, in another process."""
    file = task.file or Path(inspect.getsourcefile(task.launch) or "")
    if not file.is_file():
        raise TaskError(f"task '{task.name}' is not in a file; kernels are compiled from their source file")
    return f"{file}:{task.name}"


def _chosen(found: dict[str, Task], wanted: str, file: str) -> Task:
    names = sorted({task.name for task in found.values()})
    if wanted:
        for variable, task in found.items():
            if wanted in (variable, task.name):
                return task
        raise UnknownChoice(f"task in {file}", wanted, names)
    if not found:
        raise TaskError(
            f"{file} holds no task: bind a tilewright.Task to a name, e.g. task = tilewright.Task(...)"
        )
    if len(names) > 1:
        raise TaskError(
            f"{file} holds {len(names)} tasks ({', '.join(names)}): say which, e.g. {file}:{names[0]}"
        )
    return next(iter(found.values()))


def _imported(path: Path) -> ModuleType:
    """The file as a module of its own name space; its folder is importable while it loads."""
    name = f"tilewright_task_{hashlib.sha256(str(path).encode()).hexdigest()[:12]}_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise TaskError(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    sys.path.insert(0, str(path.parent))
    try:
        spec.loader.exec_module(module)
    except TilewrightError as error:
        del sys.modules[name]
        raise TaskError(f"{path.name}:{_line_in(error, path)}: {error}") from error
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        here = isinstance(error, SyntaxError) and error.filename == str(path)
        line = error.lineno if here else _line_in(error, path)  # type: ignore[union-attr]
        said = next(iter(str(error).splitlines()), "")
        raise TaskError(f"{path.name}:{line}: does not import: {type(error).__name__}: {said}") from error
    finally:
        sys.path.remove(str(path.parent))
    return module


def _line_in(error: BaseException, path: Path) -> int | str:
    frames = [
        frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)
    ]
    return next((line for line in reversed(frames) if line), "?")
