"""Loads the task from a Python file, such as ``examples/matmul.py`` or ``ops.py:attention``.

An edited copy may be loaded instead of a file. Each copy is a separate module, so one process can hold several
versions. A copy runs as if it were the original: the original's folder is importable, ``__file__`` names the original,
and relative imports reach the installed package. Only two things come from the copy: the code, and the source that
Python's `inspect` returns.
"""

from __future__ import annotations

import hashlib
import importlib.util
import inspect
import linecache
import os
import sys
import traceback
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType

from tilewright.errors import (
    CompilerMissing,
    MachineError,
    RequestError,
    TaskError,
    TilewrightError,
    UnknownChoice,
    in_one_line,
)
from tilewright.task.missing_language import EXTRAS, missing_in, needs, stood_in
from tilewright.task.task import Task
from tilewright.tools.packages import package_of


@dataclass
class _Loading:
    """The task file that is being loaded, and the modules that `editable` loaded for it."""

    path: Path
    files: Mapping[str, str]
    modules: dict[Path, ModuleType] = field(default_factory=dict)
    named: dict[str, Path] = field(default_factory=dict)  # the file of each name in the task file


_LOADING: ContextVar[_Loading | None] = ContextVar("_LOADING", default=None)


def load_task(where: str, files: Mapping[str, str] | None = None) -> Task:
    """Loads a task.

    where: ``FILE`` or ``FILE:TASK``. TASK is the task's name, or the variable that holds the task.
    files: maps the absolute path of an editable file to the absolute path of the copy to load instead.
    Raises TaskError if the file cannot be imported, has no task, or has several tasks and ``where`` names none of them.
    Raises CompilerMissing if the file imports a kernel language that is not installed. If only some implementations of
    the task need the language, these are left out (`Task.left_out`).
    """
    file, wanted = file_named(where)
    if not file:
        raise RequestError("the name of the task file is empty; was a variable for it not set?")
    path = Path(file).resolve()
    if not path.is_file():
        folder = path.is_dir()
        raise RequestError(f"{file} is a folder; name a task file in it" if folder else f"no such task file: {file}")
    loading = _Loading(path, dict(files or {}))
    token = _LOADING.set(loading)
    try:
        module, missing = _with_stand_ins(loading)
    finally:
        _LOADING.reset(token)
    tasks = {name: task for name, task in vars(module).items() if isinstance(task, Task)}
    if missing is not None and not tasks:
        raise missing
    known = {str(path), *map(str, loading.modules)}
    if unused := [file for file in loading.files if file not in known]:  # the original would run, not the copy
        raise TaskError(
            f"{path.name} does not load {unused[0]} through editable when it is loaded again; "
            "fix: call tilewright.editable in the task file itself, outside any function"
        )
    task = _chosen(tasks, wanted, file)
    if missing is not None:
        task = _without_missing(task, missing)
    backward = task.backward and replace(task.backward, file=path)
    return replace(task, file=path, edit=_edit(task, loading), backward=backward)


def _with_stand_ins(loading: _Loading) -> tuple[ModuleType, CompilerMissing | None]:
    """Runs the task file, with stand-ins for languages that are not installed. Also returns the error without them."""
    languages: list[str] = []
    first: CompilerMissing | None = None
    while True:
        try:
            with stood_in(languages):
                return _executed(loading.path, loading.files.get(str(loading.path)), "task"), first
        except TilewrightError as error:
            first = first or (error if isinstance(error, CompilerMissing) else None)
            cause: BaseException | None = error
            while isinstance(cause, CompilerMissing):  # one for each file between the task and the import
                cause = cause.__cause__
            if not isinstance(cause, ModuleNotFoundError) or cause.name in (None, *languages):
                if first is None:
                    raise
                raise first from None
            languages.append(str(cause.name))
            loading.modules.clear()


def _without_missing(task: Task, missing: CompilerMissing) -> Task:
    """Returns the task without the implementations that need a language that is not installed.

    Raises ``missing`` if no implementation is left, or if the task has none.
    """
    used = {name: missing_in(each.launch) for name, each in task.implementations.items()}
    kept = {name: each for name, each in task.implementations.items() if used[name] is None}
    if not kept:
        raise missing
    left_out = (
        f"implementation '{name}' is left out: it {needs(used_by)}" for name, used_by in used.items() if used_by
    )
    return replace(task, implementations=kept, left_out=tuple(left_out))


def file_named(where: str) -> tuple[str, str | None]:
    """Returns the file and the task that ``FILE`` or ``FILE:TASK`` names. The task is None if none is named."""
    if ":" not in where or Path(where).exists():
        return where, None
    file, _, wanted = where.rpartition(":")
    return file, wanted


def task_of(task: Task | str | os.PathLike[str]) -> Task:
    """Returns the task: ``task`` itself if it is a `Task`, or the task that ``FILE`` or ``FILE:TASK`` names."""
    return task if isinstance(task, Task) else load_task(os.fspath(task))


def editable(where: str | os.PathLike[str]) -> ModuleType:
    """Loads a module that Tilewright may edit. Use this if the kernel is not in the task file.

    where: a module's name (``"tilegym.ops.cutile.attention"``), or a Python file's path relative to the task file.

    Call this in the task file, outside any function. The module is loaded again under a private name. While `optimize`
    tries a version of the file, the version is loaded instead. Code that imports the module by its own name gets the
    original. So a decorator that registers an implementation runs twice.
    """
    loading, caller = _LOADING.get(), sys._getframe(1).f_globals.get("__file__")
    folder = loading.path.parent if loading else Path(caller).resolve().parent if caller else Path.cwd()
    name = os.fspath(where)
    path, package = (folder / name).resolve(), None
    if not name.endswith(".py"):
        path, package = _origin(name)
    elif not path.is_file():
        raise TaskError(f"editable('{name}'): no such file: {path}")
    if loading is None:
        return _executed(path, None, "edit", package)
    if path == loading.path:
        what = f"editable('{name}') is the task file itself, which may be edited without this call"
        raise TaskError(f"{what}; fix: remove it")
    loading.named[name] = path
    if path not in loading.modules:
        loading.modules[path] = _executed(path, loading.files.get(str(path)), "edit", package)
    return loading.modules[path]


def editable_files(task: Task) -> tuple[Path, ...]:
    """Returns the absolute paths of the files in ``task.edit``, or else the path of the task's own file."""
    file = file_of(task)
    return tuple(Path(os.path.normpath(file.parent / name)) for name in task.edit or (file.name,))


def where_is(task: Task) -> str:
    """Returns ``FILE:TASK``, with which `load_task` loads this task in another process."""
    return f"{file_of(task)}:{task.name}"


def file_of(task: Task) -> Path:
    """Returns the file from which the task was loaded, or else the file of its launch function."""
    file = task.file or _file_of_code(task.launch)
    if not file.is_file():
        raise TaskError(f"task '{task.name}' is in no file, but a kernel is compiled from a file; fix: write a file")
    return file


def _file_of_code(launch: Callable[..., object]) -> Path:
    """Returns the file that defines a function, partial or callable object, or ``Path()`` if there is no such file."""
    code = inspect.unwrap(getattr(launch, "func", launch))
    try:
        return Path(inspect.getsourcefile(code if inspect.isroutine(code) else type(code)) or "").resolve()
    except (TypeError, OSError):  # a class without a file
        return Path()


def _chosen(tasks: dict[str, Task], wanted: str | None, file: str) -> Task:
    names = sorted({task.name for task in tasks.values()})
    if wanted is not None:
        for variable, task in tasks.items():
            if wanted in (variable, task.name):
                return task
        raise UnknownChoice(f"task in {file}", wanted, names)
    if not tasks:
        raise TaskError(
            f"{file} holds no task: bind a tilewright.Task to a name, e.g. task = tilewright.Task(...), "
            f"or let Tilewright write a task file for a kernel in it: tilewright new {file}"
        )
    if len(names) > 1:
        raise TaskError(f"{file} holds {len(names)} tasks ({', '.join(names)}): name one, e.g. {file}:{names[0]}")
    return next(iter(tasks.values()))


def _edit(task: Task, loading: _Loading) -> tuple[str, ...]:
    """Returns the files to edit: ``task.edit``, or else the modules that `editable` loaded, or else the task file."""
    if not task.edit:
        return tuple(str(path) for path in loading.modules) or (loading.path.name,)
    edit = []
    for name in task.edit:
        path = loading.named.get(name) or (loading.path.parent / name).resolve()
        if path != loading.path and path not in loading.modules and Path(name) not in loading.modules:
            raise TaskError(
                f"task '{task.name}': edit names '{name}', which is neither {loading.path.name} nor loaded "
                f'by editable; fix: in the task file, module = tilewright.editable("{name}")'
            )
        edit.append(loading.path.name if path == loading.path else str(loading.named.get(name, name)))
    return tuple(dict.fromkeys(edit))


def _origin(name: str) -> tuple[Path, str]:
    """Returns the file of the module ``name``, and the package to which its relative imports refer."""
    try:
        spec = importlib.util.find_spec(name)
    except TilewrightError:
        raise
    except Exception as error:  # the package's own code fails, or ``name`` cannot name a module
        raise TaskError(f"editable('{name}'): its package does not import: {in_one_line(error)}") from error
    if spec is None:
        raise TaskError(f"editable('{name}'): no such module; fix: write a file's name with .py")
    if not spec.origin or not spec.origin.endswith(".py"):
        raise TaskError(f"editable('{name}'): the module is not a Python file but {spec.origin or 'a folder'}")
    is_package = spec.submodule_search_locations is not None
    return Path(os.path.abspath(spec.origin)), name if is_package else name.rpartition(".")[0]


class _FreshLoader(SourceFileLoader):
    """Compiles the source at each import, and writes no cache file.

    Python reuses a cached compilation if the source has the same size and was written in the same second. Both can be
    equal for two versions of a file.
    """

    def get_code(self, fullname: str) -> CodeType:
        return self.source_to_code(self.get_data(self.path), self.path)


def _executed(path: Path, copy: str | None, kind: str, package: str | None = None) -> ModuleType:
    """Runs the file ``path``, or its ``copy``, as a separate module.

    kind: a word for the module's private name.
    package: the package to which relative imports refer. With None, it is found by the file's place, and the folder of
        the file, or of the package, is importable meanwhile.
    """
    source, importable = copy or str(path), path.parent if package is None else None
    if path.suffix != ".py":
        raise TaskError(f"{path} is not a Python file")
    if package is None and (inside := package_of(path, _text(source))) is not None:
        importable, package = inside
    name = f"tilewright_{kind}_{hashlib.sha256(source.encode()).hexdigest()[:12]}_{path.stem}"
    if package:
        name = f"{package}._{name}"
    loader = _FreshLoader(name, source)
    spec = importlib.util.spec_from_file_location(name, source, loader=loader, submodule_search_locations=None)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    module.__file__ = str(path)
    linecache.cache.pop(source, None)
    sys.modules[name] = module
    try:
        if importable is not None:
            sys.path.insert(0, str(importable))
        spec.loader.exec_module(module)
    except TilewrightError as error:
        del sys.modules[name]
        cls = type(error) if isinstance(error, MachineError) else TaskError
        raise cls(f"{path.name}:{_line_in(error, source)}: {error}") from error
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        here = isinstance(error, SyntaxError) and error.filename == source
        line = error.lineno if here else _line_in(error, source)  # type: ignore[union-attr]
        if isinstance(error, ModuleNotFoundError) and error.name in EXTRAS:
            raise CompilerMissing(f"{path.name}:{line}: {needs(error.name)}") from error
        raise TaskError(
            f"{path.name}:{line}: does not import: {in_one_line(error)}{_remedy(error, package)}"
        ) from error
    finally:
        if importable is not None:
            sys.path.remove(str(importable))
    return module


def _text(file: str) -> str:
    try:
        return Path(file).read_text(encoding="utf-8")
    except (OSError, ValueError):  # loading it reports that
        return ""


def _remedy(error: BaseException, package: str | None) -> str:
    """Returns the fix for a failed import, as the end of a message. The text is empty if no fix is known.

    package: the package to which relative imports refer; None if there is none.
    """
    if isinstance(error, ImportError) and "relative import" in str(error):
        fix = "import by full names, and put the package's parent on PYTHONPATH"
        return f"; the file is loaded by its path, not as part of a package; fix: {fix}"
    if isinstance(error, ModuleNotFoundError) and package and f"{error.name}.".startswith(f"{package.split('.')[0]}."):
        return f"; relative imports refer to the folder of the file as the package {package}"
    if isinstance(error, ModuleNotFoundError) and error.name:
        return f"; fix: install it for {sys.executable}, or add its folder to PYTHONPATH"
    words = "null bytes", "'utf-8'", "encoding"
    if isinstance(error, (SyntaxError, ValueError)) and any(word in str(error) for word in words):
        return "; fix: save the file as UTF-8 text"
    return ""


def _line_in(error: BaseException, source: str) -> int | str:
    frames = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == source]
    return next((line for line in reversed(frames) if line), "?")
