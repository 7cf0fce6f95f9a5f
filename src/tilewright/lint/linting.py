"""`lint_paths`: what the rules find in files and folders, and what the files hold."""

from __future__ import annotations

import ast
import re
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

from tilewright.errors import RequestError
from tilewright.lint.rule import Level, LintFinding, Rule
from tilewright.lint.rules import named, rules
from tilewright.lint.rules.program import CannotBeRead
from tilewright.source.cutile import OLD_SEARCH, WRAPPERS, kernels, launches, searches
from tilewright.source.source_file import SourceFile

IGNORE = re.compile(r"#\s*tilewright:\s*ignore(?:\[(?P<rules>[^\]]*)\])?")
"""On the line of the finding, or alone on the line above it."""

SKIPPED = {"__pycache__", "node_modules", "build", "dist"}


@dataclass(frozen=True)
class LintReport:
    """``inventories``: the files that hold kernels, launches or searches, with what they hold."""

    files: tuple[Path, ...]
    findings: tuple[LintFinding, ...]
    inventories: tuple[tuple[Path, tuple[InventoryItem, ...]], ...]
    ignored: int = 0
    """How many findings comments take back."""

    def count(self, level: Level) -> int:
        return sum(finding.level == level for finding in self.findings)

    @property
    def clean(self) -> bool:
        """Nothing at warning or above."""
        return not self.count("error") and not self.count("warning")


def lint_paths(
    paths: Sequence[Path],
    *,
    select: Sequence[str] = (),
    ignore: Sequence[str] = (),
    compile: bool = False,
    arch: str | None = None,
) -> LintReport:
    """What is found in ``paths``; folders stand for the Python files below them.

    select: names or codes of the only rules to use, those that are off by default included.
    ignore: the same, to leave out.
    compile: also load task files and compare the machine code that their hints give, for ``arch``.

    Raises RequestError for a path that does not exist or holds no Python file, UnknownChoice for a rule that does
    not exist.
    """
    wanted = (named(select) if select else {rule for rule in rules() if rule.by_default}) - named(ignore)
    files = tuple(_files(paths))
    findings: list[LintFinding] = []
    inventories: list[tuple[Path, tuple[InventoryItem, ...]]] = []
    ignored = 0
    for path in files:
        outcome = _linted(path, wanted)
        if isinstance(outcome, Exception):
            findings += [rule.because_of(path, outcome) for rule in wanted if isinstance(rule, CannotBeRead)]
            continue
        file, found, items = outcome
        if compile:
            found += [finding for rule in wanted for finding in rule.compiled_findings(file, arch or "sm_90")]
        kept = [finding for finding in found if not _taken_back(file, finding)]
        ignored += len(found) - len(kept)
        findings += kept
        if items:
            inventories.append((path, items))
    return LintReport(files, tuple(findings), tuple(inventories), ignored)


def _linted(
    path: Path, wanted: set[Rule]
) -> tuple[SourceFile, list[LintFinding], tuple[InventoryItem, ...]] | Exception:
    """The file with its findings in the order of the text and its inventory, or the error of reading it."""
    try:
        file = SourceFile.read(path)
    except (SyntaxError, RecursionError, ValueError, OSError) as error:
        return error
    try:
        found = [finding for rule in wanted for finding in rule.found(file)]
        return file, sorted(found, key=lambda finding: (finding.line, finding.column, finding.code)), inventory(file)
    except RecursionError as error:
        return error


def _files(paths: Sequence[Path]) -> Iterator[Path]:
    seen: set[Path] = set()
    for path in paths:
        if not path.exists():
            raise RequestError(f"no such file or folder: {path}")
        files = list(_below(path)) if path.is_dir() else [path]
        if not files:
            left_out = ", ".join(("hidden folders", *sorted(SKIPPED)))
            raise RequestError(f"no Python file below {path}; left out: {left_out}")
        for file in files:
            if file.resolve() not in seen:
                seen.add(file.resolve())
                yield file


def _below(folder: Path) -> Iterator[Path]:
    """The Python files of a folder. A folder, a pipe or a dead link with such a name is none."""
    for file in sorted(folder.rglob("*.py")):
        inside = file.relative_to(folder).parts[:-1]
        if any(part in SKIPPED or part.startswith(".") for part in inside):
            continue
        try:
            if stat.S_ISREG(file.stat().st_mode):
                yield file
        except FileNotFoundError:
            continue
        except OSError:
            yield file  # reading it says why it cannot be read


def _taken_back(file: SourceFile, finding: LintFinding) -> bool:
    """Whether a comment says that the finding is known and meant."""
    above = file.lines[finding.line - 2] if finding.line >= 2 else ""
    for line in (file.lines[finding.line - 1], above if above.lstrip().startswith("#") else ""):
        if match := IGNORE.search(line):
            words = [word for word in (match["rules"] or "").split(",") if word.strip()]
            if not words or any(map(finding.rule.is_called, words)):
                return True
    return False


# What a file holds -----------------------------------------------------------------------------------


What: TypeAlias = Literal["kernel", "launch", "registration", "space", "search"]
MOST = 60
"""Characters of source that name a thing without a name of its own."""


@dataclass(frozen=True)
class InventoryItem:
    """One thing in a file.

    ``name`` is that of the kernel with its hints, of the launched or searched kernel, of the registered operation, or
    of the function or variable that makes a search space.
    """

    what: What
    line: int
    name: str
    function: str
    """The function around it; "" at the top of the file."""


def inventory(file: SourceFile) -> tuple[InventoryItem, ...]:
    """Everything of these kinds, in the order of the text."""
    items = set()
    for what, node, name in _things(file):
        owner = file.owner(node)
        items.add(InventoryItem(what, getattr(node, "lineno", 1), name, owner.name if owner is not None else ""))
    return tuple(sorted(items, key=lambda item: (item.line, item.what, item.name)))


def _things(file: SourceFile) -> Iterator[tuple[What, ast.AST, str]]:
    for kernel in kernels(file):
        hints = ", ".join(f"{name}={ast.unparse(value)}" for name, value in kernel.hints.items())
        yield "kernel", kernel.node, f"{kernel.name}({hints})" if hints else kernel.name
    for launch in launches(file):
        yield "launch", launch.call, _short(launch.kernel)
    for call in file.every(ast.Call):
        if file.dotted(call.func) in OLD_SEARCH:
            yield "launch", call, "autotune_launch"
    for search in searches(file):
        yield "search", search.call, _short(search.kernel)
        for place, name in _makers(file, search.space, 4):
            yield "space", place, name
    for function in file.every(ast.FunctionDef):
        for decorator in function.decorator_list:
            if isinstance(decorator, ast.Call) and file.dotted(decorator.func).endswith("register_impl"):
                operation = decorator.args[0] if decorator.args else None
                name = str(operation.value) if isinstance(operation, ast.Constant) else _short(operation)
                yield "registration", function, f"{name} → {function.name}"


def _short(node: ast.AST | None) -> str:
    return ast.unparse(node)[:MOST] if node is not None else "?"


def _makers(file: SourceFile, node: ast.AST | None, depth: int) -> Iterator[tuple[ast.AST, str]]:
    """Where the configurations of a search are made: a function, a name, or the list itself."""
    if node is None or not depth:
        return
    if isinstance(node, ast.Call) and file.dotted(node.func) in WRAPPERS and node.args:
        yield from _makers(file, node.args[0], depth)
    elif isinstance(node, ast.Call):
        made_by = [value for value in file.values(node.func) if isinstance(value, ast.FunctionDef)]
        yield from ((function, function.name) for function in made_by)
        if not made_by:
            yield node, _short(node.func)
    elif isinstance(node, (ast.ListComp, ast.GeneratorExp)):
        yield from _makers(file, node.generators[0].iter, depth - 1)
    elif isinstance(node, ast.Name):
        bindings = file.bindings(node.id, node)
        for binding in bindings:
            if isinstance(binding.value, (ast.Call, ast.Name, ast.ListComp)) and binding.kind == "value":
                yield from _makers(file, binding.value, depth - 1)
            else:
                yield binding.place, node.id
        if not bindings:
            yield node, node.id
    else:
        yield node, _short(node)
