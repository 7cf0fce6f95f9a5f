"""Finds functions on tensors in a program's syntax tree. Each function may become one kernel."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tilewright.program.command import ProgramCommand
from tilewright.source.source_file import SourceFile
from tilewright.specialists.writing.functions import FUNCTIONS, SAME

FEWEST = 2
"""The least number of operations. A single operation is already one kernel, so a new kernel would save nothing."""
WITHOUT_GRADIENTS = ("torch.no_grad", "torch.inference_mode")


@dataclass(frozen=True)
class HotFunction:
    """A function or method that one kernel may compute.

    name: as in the file, ``rms_norm`` or ``RMSNorm.forward``.
    attributes: the attributes of ``self`` that the method reads.
    """

    file: Path
    name: str
    line: int
    node: ast.FunctionDef = field(repr=False, compare=False)
    attributes: tuple[str, ...] = ()

    @property
    def is_method(self) -> bool:
        return "." in self.name

    @property
    def parameters(self) -> tuple[str, ...]:
        """The parameters in the order of the definition, without ``self``."""
        arguments = self.node.args
        names = [each.arg for each in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]
        return tuple(names[1:] if self.is_method else names)

    def named_in(self, text: str) -> bool:
        """Returns whether a string contains the function's name: ``rms_norm``, or ``RMSNorm`` for the method
        ``RMSNorm.forward``.
        """
        parts = [part for part in self.name.split(".") if part not in ("forward", "__call__")]
        return any(re.search(rf"\b{re.escape(each)}\b", text) for each in {self.name, *parts})


def files_of_program(command: ProgramCommand) -> tuple[Path, ...]:
    """Returns the program's script, and the files below its root that the script imports, directly or indirectly."""
    files = command.python_files()
    folders = (command.script.parent, command.root, command.cwd, command.root / "src")
    found, open_ = [command.script], [command.script]
    while open_:
        here = open_.pop()
        for name in _imported(here):
            for folder in (here.parent, *folders):
                place = folder.joinpath(*name.split("."))
                for path in (place.with_suffix(".py"), place / "__init__.py"):
                    if path in files and path not in found:
                        found.append(path)
                        open_.append(path)
    return tuple(found)


def _imported(path: Path) -> set[str]:
    names: set[str] = set()
    for node in SourceFile.requested(path).nodes:
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names |= {node.module} if node.module else set()
            names |= {f"{node.module}.{alias.name}" if node.module else alias.name for alias in node.names}
    return names | {name[: dot.start()] for name in names for dot in re.finditer(r"\.", name)}


def functions_of(path: Path) -> tuple[HotFunction, ...]:
    """Returns the functions of a file whose body only computes values, with at least `FEWEST` known operations."""
    file = SourceFile.requested(path)
    found = []
    for name, node in _defined(file.tree):
        if _is_plain(file, node) and _operations(node) >= FEWEST:
            attributes = tuple(_attributes(node)) if "." in name else ()
            found.append(HotFunction(path, name, node.lineno, node, attributes))
    return tuple(found)


def _defined(module: ast.Module) -> Iterator[tuple[str, ast.FunctionDef]]:
    for node in module.body:
        if isinstance(node, ast.FunctionDef):
            yield node.name, node
        elif isinstance(node, ast.ClassDef):
            yield from ((f"{node.name}.{each.name}", each) for each in node.body if isinstance(each, ast.FunctionDef))


def _is_plain(file: SourceFile, node: ast.FunctionDef) -> bool:
    """Returns whether the body only assigns names and returns. Then a call has no effect besides its result.

    An assignment such as ``x += 1`` does not count, because it may change an argument in place.
    """
    decorators = (each.func if isinstance(each, ast.Call) else each for each in node.decorator_list)
    if any(file.dotted(each) not in WITHOUT_GRADIENTS for each in decorators):
        return False
    if node.args.vararg or node.args.kwarg or not isinstance(node.body[-1], ast.Return):
        return False
    if any(isinstance(each, ast.keyword) and each.arg in ("inplace", "out") for each in ast.walk(node)):
        return False
    text = (ast.Expr,) if ast.get_docstring(node) else ()
    first, *others = node.body
    return isinstance(first, (ast.Assign, ast.AnnAssign, ast.Return, *text)) and all(
        isinstance(each, (ast.Assign, ast.AnnAssign, ast.Return)) for each in others
    )


def _operations(node: ast.FunctionDef) -> int:
    signs = sum(isinstance(each, (ast.BinOp, ast.Compare)) for each in ast.walk(node))
    called = (each.func for each in ast.walk(node) if isinstance(each, ast.Call))
    names = (each.attr if isinstance(each, ast.Attribute) else getattr(each, "id", "") for each in called)
    return signs + sum(name in FUNCTIONS and name not in SAME for name in names)


def _attributes(node: ast.FunctionDef) -> dict[str, None]:
    """Returns the names of attributes that the body reads from the first parameter, in order."""
    arguments = (*node.args.posonlyargs, *node.args.args)
    own = arguments[0].arg if arguments else ""
    found = (
        each.attr
        for each in ast.walk(node)
        if isinstance(each, ast.Attribute) and isinstance(each.value, ast.Name) and each.value.id == own
    )
    return dict.fromkeys(found)
