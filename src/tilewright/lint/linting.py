"""Runs the lint rules on files and folders, lists what the files contain, and writes a report as SARIF."""

from __future__ import annotations

import ast
import gc
import os
import re
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, TypeAlias
from urllib.parse import quote

from tilewright.errors import RequestError
from tilewright.lint.relevant import is_relevant, mentions_a_language
from tilewright.lint.rule import Level, LintFinding, Rule
from tilewright.lint.rules import named, rules
from tilewright.lint.rules.program import CannotBeRead
from tilewright.records import Json
from tilewright.source.cutile import OLD_SEARCH, WRAPPERS, kernels, launches, searches
from tilewright.source.source_file import SourceFile

ROOT = "ROOT"
"""The name of the working directory in SARIF."""
IGNORE = re.compile(r"#\s*tilewright:\s*ignore(?:\[(?P<rules>[^\]]*)\])?")
"""The comment that suppresses a finding: on the finding's line, or alone on the line above."""
TEST_FILE = re.compile(r"test_.*\.py|.*_test\.py|conftest\.py")
IN_TESTS: dict[Level, Level] = {"error": "warning", "warning": "note", "note": "note"}
"""The levels inside tests, which often do on purpose what a program must not, and which no user waits for."""
SKIPPED = {"__pycache__", "node_modules", "build", "dist"}


@dataclass(frozen=True)
class LintReport:
    """The findings in all files. ``inventories`` has the files that contain kernels, launches or searches."""

    files: tuple[Path, ...]
    findings: tuple[LintFinding, ...]
    inventories: tuple[tuple[Path, tuple[InventoryItem, ...]], ...]
    ignored: int = 0
    """The number of findings that comments suppress."""

    def count(self, level: Level) -> int:
        return sum(finding.level == level for finding in self.findings)

    @property
    def clean(self) -> bool:
        """Whether there are neither errors nor warnings."""
        return not self.count("error") and not self.count("warning")


@contextmanager
def _collector_paused() -> Iterator[None]:
    """Pauses Python's search for cycles of garbage, which takes a tenth of the time: syntax trees have no cycles."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


@_collector_paused()
def lint_paths(
    paths: Sequence[Path], *, select: Sequence[str] = (), ignore: Sequence[str] = (), compile: bool = False,
    arch: str | None = None,
) -> LintReport:  # fmt: skip
    """Lints files, and all Python files below folders.

    select: names or codes of the only rules to use; may include rules that are off by default.
    ignore: names or codes of rules to skip.
    compile: whether to load task files, too, and compare the machine code of their hints for ``arch`` (default: sm_90).

    Raises RequestError if a path does not exist or has no Python file, and UnknownChoice if a rule does not exist.
    """
    wanted = (named(select) if select else {rule for rule in rules() if rule.by_default}) - named(ignore)
    files = tuple(_files(paths))
    findings: list[LintFinding] = []
    inventories: list[tuple[Path, tuple[InventoryItem, ...]]] = []
    cannot_be_read, ignored = [rule for rule in wanted if isinstance(rule, CannotBeRead)], 0
    is_worth_parsing = is_relevant if all(map(_is_shipped, wanted)) else mentions_a_language
    for path in files:
        try:
            if path not in paths and not is_worth_parsing(path.read_bytes()):
                continue
            file = SourceFile.read(path)
        except (SyntaxError, RecursionError, ValueError, OSError) as error:
            findings += [rule.because_of(path, error) for rule in cannot_be_read]
            continue
        try:
            found = [finding for rule in wanted for finding in rule.distinct_findings(file)]
            items = inventory(file)
        except RecursionError as error:
            findings += [rule.because_of(path, error) for rule in cannot_be_read]
            continue
        found.sort(key=lambda finding: (finding.line, finding.column, finding.code))
        if compile:
            found += [finding for rule in wanted for finding in rule.compiled_findings(file, arch or "sm_90")]
        if _is_test(path):
            found = [replace(finding, level=IN_TESTS[finding.level]) for finding in found]
        kept = [finding for finding in found if not _is_suppressed(file, finding)]
        ignored += len(found) - len(kept)
        findings += kept
        if items:
            inventories.append((path, items))
    return LintReport(files, tuple(findings), tuple(inventories), ignored)


def _is_shipped(rule: Rule) -> bool:
    return type(rule).__module__.startswith("tilewright.lint.")


def _is_test(path: Path) -> bool:
    """Returns whether pytest or unittest would collect the file, or its folder has only tests."""
    folders = {part.lower() for part in path.resolve().parts[-4:-1]}
    return bool(TEST_FILE.fullmatch(path.name)) or bool(folders & {"test", "tests", "testing"})


def _files(paths: Sequence[Path]) -> Iterator[Path]:
    seen: set[str] = set()
    for path in paths:
        if not path.exists():
            raise RequestError(f"no such file or folder: {path}")
        if not path.is_dir() and not path.is_file():
            raise RequestError(f"{path} is neither a file nor a folder, so it is not read")
        files = list(_below(path)) if path.is_dir() else [(path, os.path.realpath(path))]
        if not files:
            left_out = ", ".join(("hidden folders", *sorted(SKIPPED)))
            raise RequestError(f"no Python file below {path}; left out: {left_out}")
        for file, real in files:
            if real not in seen:
                seen.add(real)
                yield file


def _below(folder: Path) -> Iterator[tuple[Path, str]]:
    """Yields the Python files below a folder, in the order of their paths, each with its path without links.

    Skips folders, pipes and dead links whose name ends in ``.py``.
    """
    found: list[tuple[str, str]] = []
    for inside, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if name not in SKIPPED and not name.startswith(".")]
        real = os.path.realpath(inside)
        for name in (name for name in names if name.endswith(".py")):
            if (target := _target(os.path.join(real, name))) is not None:
                found.append((os.path.join(inside, name), target))
    found.sort(key=lambda pair: pair[0].split(os.sep))
    return ((Path(path), target) for path, target in found)


def _target(path: str) -> str | None:
    """Returns the path of the file that ``path`` is or links to; None for anything but a regular file."""
    try:
        is_link = stat.S_ISLNK(os.lstat(path).st_mode)
        return (os.path.realpath(path) if is_link else path) if stat.S_ISREG(os.stat(path).st_mode) else None
    except FileNotFoundError:
        return None
    except OSError:
        return path  # reading the file will report the error


def _is_suppressed(file: SourceFile, finding: LintFinding) -> bool:
    above = file.lines[finding.line - 2] if finding.line >= 2 else ""
    for line in (file.lines[finding.line - 1], above if above.lstrip().startswith("#") else ""):
        if match := IGNORE.search(line):
            words = [word for word in (match["rules"] or "").split(",") if word.strip()]
            if not words or any(map(finding.rule.is_called, words)):
                return True
    return False


What: TypeAlias = Literal["kernel", "launch", "registration", "space", "search"]
MOST = 60
"""The most characters of source text in the name of an `InventoryItem`."""


@dataclass(frozen=True)
class InventoryItem:
    """One kernel, launch, search, search space or registered operation in a file.

    name: the name of the kernel or the operation. For the definition of a kernel, with its hints. For a search space,
        the name of the function or variable that makes the space.
    """

    what: What
    line: int
    name: str
    function: str
    """The name of the function around the item; "" at the top of the file."""


def inventory(file: SourceFile) -> tuple[InventoryItem, ...]:
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
    old = [call for name in OLD_SEARCH if "tile_experimental" in file.text for call in file.calls.get(name, ())]
    for call in old:
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
    """Yields the node that makes a search's configurations, with its name: a function, a variable, or the list."""
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


def sarif(report: LintReport, root: Path, version: str) -> dict[str, Json]:
    """Returns a report as SARIF 2.1.0, with paths relative to ``root``. ``version`` is Tilewright's version."""
    used = sorted({finding.rule for finding in report.findings}, key=lambda rule: rule.rule_id)
    driver: Json = {"name": "tilewright lint", "semanticVersion": version, "rules": [_sarif_rule(r) for r in used]}
    run: Json = {
        "tool": {"driver": driver}, "columnKind": "unicodeCodePoints",
        "originalUriBaseIds": {ROOT: {"uri": f"{root.resolve().as_uri().rstrip('/')}/"}},
        "results": [_sarif_result(finding, used.index(finding.rule), root) for finding in report.findings],
    }  # fmt: skip
    return {"$schema": "https://json.schemastore.org/sarif-2.1.0.json", "version": "2.1.0", "runs": [run]}


def _sarif_rule(rule: Rule) -> Json:
    return {
        "id": rule.rule_id,
        "name": "".join(word.capitalize() for word in rule.name.split("_")),
        "shortDescription": {"text": rule.title},
        "fullDescription": {"text": rule.why},
        "help": {"text": f"{rule.why}\n\nFix: {rule.fix}", "markdown": f"{rule.why}\n\n**Fix:** {rule.fix}"},
        "defaultConfiguration": {"level": rule.level},
        "properties": {"tags": list(rule.sources)},
    }


def _sarif_result(finding: LintFinding, index: int, root: Path) -> Json:
    absolute = finding.file.resolve()
    location: Json = {"uri": absolute.as_uri()}
    if absolute.is_relative_to(root.resolve()):
        location = {"uri": quote(bytes(absolute.relative_to(root.resolve()))), "uriBaseId": ROOT}
    region: Json = {"startLine": finding.line, "startColumn": finding.column}
    return {
        "ruleId": finding.code, "ruleIndex": index, "level": finding.level, "message": {"text": finding.message},
        "locations": [{"physicalLocation": {"artifactLocation": location, "region": region}}],
    }  # fmt: skip
