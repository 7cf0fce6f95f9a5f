"""The command of a user's program: its words, the folder in which it starts, its script, and the tree of the script.

Tilewright understands ``python [options] SCRIPT``, ``python -m MODULE``, a bare ``SCRIPT.py``, ``torchrun``, and other
launchers whose words name the script. Each may follow ``env``, ``NAME=value``, ``uv run`` or ``poetry run``.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from tilewright.errors import RequestError, choices
from tilewright.program.tree import files_of, root_of

PYTHON = re.compile(r"(python|pypy)[\d.]*")
ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=.*", re.DOTALL)
IN_FRONT = (("uv", "run"), ("poetry", "run"), ("pdm", "run"), ("hatch", "run"))
"""Programs that start a command in an environment."""
LAUNCHERS = ("torchrun", "accelerate", "deepspeed", "mpirun", "mpiexec", "srun", "numactl", "taskset", "nice", "time")
"""Programs that start a script, which is one of their arguments."""
LAUNCHING_MODULES = ("torch.distributed.run", "torch.distributed.launch", "accelerate.commands.launch")
OF_A_SHELL = {"|", "||", "&&", "&", ";", ">", ">>", "<", "2>", "2>&1"}
WITH_VALUE = ("-X", "-W", "--check-hash-based-pycs")
ISOLATED = re.compile(r"-[a-zA-Z]*[IE][a-zA-Z]*")
"""Options of python that ignore PYTHONPATH, through which the program is observed."""


@dataclass(frozen=True)
class ProgramCommand:
    """A command that starts a Python program. `of` makes one and checks it."""

    words: tuple[str, ...]
    cwd: Path
    """The folder in which the command starts, absolute."""

    @classmethod
    def of(cls, given: str | Sequence[str], cwd: Path | None = None) -> ProgramCommand:
        """Makes the command from what a person writes: one line, a list of words, or the name of a script.

        cwd: the folder in which it starts; None: the current one.
        Raises RequestError, with the fix, if the script does not exist or the program is not a Python program.
        """
        here = Path(os.path.abspath(cwd or Path.cwd()))
        words = _split(given) if isinstance(given, str) else [str(word) for word in given]
        if not words or not words[0]:
            raise RequestError("the command is empty; name the program, e.g. python train.py")
        if shell := next((word for word in words if word in OF_A_SHELL), None):
            raise RequestError(f"'{shell}' is for a shell; give one program with its arguments, e.g. python train.py")
        command = cls(tuple(_started(words, here)), here)
        _ = command.script
        return command

    def __str__(self) -> str:
        return shlex.join(self.words)

    @cached_property
    def script(self) -> Path:
        """The Python file that runs first, absolute. Raises RequestError if there is none."""
        return self._found[0]

    @cached_property
    def root(self) -> Path:
        """The folder of the program: the top of its git checkout, else the folder that its imports start from."""
        script, package_root = self._found
        return root_of(script, package_root)

    @cached_property
    def _found(self) -> tuple[Path, Path | None]:
        return _script(self.words, self.cwd)

    @property
    def launches(self) -> bool:
        """Whether a launcher starts the script, maybe in several processes."""
        program, *rest = self.words[program_at(self.words) :]
        return Path(program).name in LAUNCHERS or any(word.removeprefix("-m") in LAUNCHING_MODULES for word in rest)

    def python_files(self) -> tuple[Path, ...]:
        """Returns the Python files of the root that git does not ignore, absolute, with the script."""
        files = {self.root / name for name in files_of(self.root) if name.suffix == ".py"}
        return tuple(sorted(files | {self.script}))

    def environment(self) -> dict[str, str]:
        """Returns the environment in which the command starts."""
        return {**os.environ, "PWD": str(self.cwd)}


def program_at(words: Sequence[str]) -> int:
    """Returns the index of the program in ``words``, after ``env``, assignments and ``uv run``."""
    at = 0
    while at < len(words) - 1:
        if Path(words[at]).name == "env" or ASSIGNMENT.fullmatch(words[at]):
            at += 1
        elif tuple(words[at : at + 2]) in IN_FRONT:
            at += 2
        else:
            break
    return at


def _split(line: str) -> list[str]:
    try:
        return shlex.split(line)
    except ValueError as error:
        raise RequestError(f"the command cannot be read ({error}): {line}") from None


def _started(words: list[str], cwd: Path) -> list[str]:
    """Returns the words with an interpreter before a bare script, and with ``env`` before assignments."""
    if ASSIGNMENT.fullmatch(words[0]):
        words = ["env", *words]
    at = program_at(words)
    program = words[at]
    if program in ("python", "python3") and shutil.which(program) is None:
        words[at] = sys.executable
    elif not PYTHON.fullmatch(Path(program).name) and _is_script(cwd / program):
        words.insert(at, "python" if tuple(words[at - 2 : at]) in IN_FRONT else interpreter())
    return words


def interpreter() -> str:
    """Returns the Python for a bare script: the active environment's, else the one that runs Tilewright."""
    active = "VIRTUAL_ENV" in os.environ or "CONDA_PREFIX" in os.environ
    return (active and shutil.which("python")) or sys.executable


def _is_script(path: Path) -> bool:
    """Returns whether a path names a Python script: its ending or its first line (``#!``) says so."""
    if path.suffix == ".py":
        return True
    try:
        with path.open("rb") as file:
            return re.match(rb"#!.*\bpython", file.readline(200)) is not None
    except OSError:
        return False


def _script(words: Sequence[str], cwd: Path) -> tuple[Path, Path | None]:
    """Returns the path of the Python script that a command runs, and the folder that its imports start from.

    The folder is None unless the command names a module with ``-m``.
    """
    at = program_at(words)
    program, rest = Path(words[at]).name, words[at + 1 :]
    if PYTHON.fullmatch(program):
        return _of_python(rest, cwd)
    if program in LAUNCHERS:
        return _of_launcher(program, rest, cwd)
    raise _no_program(words[at], cwd)


def _of_python(rest: Sequence[str], cwd: Path) -> tuple[Path, Path | None]:
    words = iter(rest)
    for word in words:
        if word == "-c":
            raise RequestError("python -c has no file to change; put the code into a script")
        if ISOLATED.fullmatch(word):
            raise RequestError(f"python {word} ignores PYTHONPATH, and cannot be observed; leave {word} out")
        if word.startswith("-m"):
            module = word[2:] or next(words, "")
            if module in LAUNCHING_MODULES:
                return _of_launcher(module, tuple(words), cwd)
            return _module(module, cwd)
        if word in WITH_VALUE:
            next(words, None)
        elif not word.startswith("-"):
            return _file(word, cwd), None
    raise RequestError("python has no script; name one, e.g. python train.py")


def _of_launcher(launcher: str, rest: Sequence[str], cwd: Path) -> tuple[Path, Path | None]:
    for at, word in enumerate(rest):
        if PYTHON.fullmatch(Path(word).name):
            return _of_python(rest[at + 1 :], cwd)
        if word in ("-m", "--module") and at + 1 < len(rest):
            return _module(rest[at + 1], cwd)
        if word.endswith(".py"):
            return _file(word, cwd), None
    raise RequestError(f"{launcher} names no Python script; name one, e.g. {launcher} train.py")


def _file(word: str, cwd: Path) -> Path:
    path = Path(os.path.abspath(cwd / word))
    if path.is_dir():
        if (path / "__main__.py").is_file():
            return path / "__main__.py"
        raise _a_folder(word, path)
    if not path.is_file():
        raise _missing(word, path)
    if path.suffix == ".ipynb":
        raise RequestError(f"{word} is a notebook; make a script of it: jupyter nbconvert --to script {word}")
    return path


def _module(module: str, cwd: Path) -> tuple[Path, Path]:
    """Finds the module in the folder in which the command starts, in ``src`` there, and in PYTHONPATH."""
    if not module:
        raise RequestError("python -m has no module; name one, e.g. python -m package.train")
    given = (Path(cwd, entry) for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry)
    for folder in (cwd, cwd / "src", *given):
        file = folder.joinpath(*module.split("."))
        for path in (file.with_name(f"{file.name}.py"), file / "__main__.py"):
            if path.is_file():
                top = cwd if folder == cwd / "src" else folder
                return Path(os.path.abspath(path)), Path(os.path.abspath(top))
    raise RequestError(f"python -m {module}: no such module in {cwd}; start the command in the folder of its package")


def _no_program(word: str, cwd: Path) -> RequestError:
    path = cwd / word
    if path.is_dir():
        return _a_folder(word, path)
    if path.is_file():
        return RequestError(f"{word} is not a Python program; give the python command that it runs")
    if shutil.which(word):
        return RequestError(f"{word} is not a Python program; give a python command, e.g. python train.py")
    return _missing(word, path)


def _a_folder(word: str, folder: Path) -> RequestError:
    scripts = sorted(path.name for path in folder.glob("*.py"))[:5]
    which = ", ".join(scripts) or "it has no Python files"
    return RequestError(f"{word} is a folder; name the script to run: {which}")


def _missing(word: str, path: Path) -> RequestError:
    beside = sorted(each.name for each in path.parent.glob("*.py")) if path.parent.is_dir() else []
    return RequestError(f"no file {word} in {path.parent}; {choices(path.name, beside)}")
