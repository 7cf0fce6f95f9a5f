"""The gate of proposals: turns what a proposer answered into the new texts of the files, or says why not.

    answer → form → names of files → texts → statements that changed → texts of a candidate

`RefusedProposal` is the reason in one line, which the proposer gets with its next request. Where it says
``tampering``, the proposal reached for something that decides about it. What passes is judged like any other change.
"""

from __future__ import annotations

import ast
import difflib
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path, PurePosixPath

from tilewright.optimize.proposed import RefusedProposal, patched
from tilewright.optimize.proposing.protocol import ProposerAnswer, names_of, shown
from tilewright.optimize.proposing.regions import (
    OPEN_ARGUMENTS,
    Module,
    Regions,
    arguments,
    bound_names,
    is_docstring,
    is_task,
)
from tilewright.optimize.proposing.signs import SAFE_ROOTS, new_signs
from tilewright.optimize.versions.patches import patched_names, require_complete
from tilewright.optimize.versions.user_tree import ChangeRefused
from tilewright.playbook.base import NotApplicable

_HEADER = re.compile(r"(?:--- |\+\+\+ |rename (?:from|to) |copy (?:from|to) |diff --git )(?P<names>[^\t]*)")
_LINK = re.compile(r"(?:new file mode|new mode|old mode|deleted file mode) (?P<mode>\d+)")
_ENCODING = re.compile(r"[ \t\f]*#.*?coding[:=][ \t]*([-\w.]+)")
"""The declaration of an encoding, as in PEP 263. In another encoding, a comment may be code."""
_DIRECTIONS = re.compile("[\u202a-\u202e\u2066-\u2069]")

_DEFINITIONS = (
    ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Assign, ast.AnnAssign, ast.Import, ast.ImportFrom
)  # fmt: skip
"""The statements at the top of a file that a proposal may add or change."""


def texts_of(answer: ProposerAnswer, texts: Mapping[Path, str], regions: Regions) -> Mapping[Path, str]:
    """Returns the new texts of the changed files. Raises `RefusedProposal` if the answer may not be tried.

    texts: the incumbent's editable files. regions: what of them is protected.
    """
    named = names_of([*texts])
    try:
        after = _given(answer.files, named) if answer.files else _patched(answer.patch, named, texts)
    except RefusedProposal as refused:
        raise refused.of(answer.patch) from None
    changed = {path: text for path, text in after.items() if text != texts[path]}
    try:
        for path, text in changed.items():
            _refuse_statements(path, texts[path], text, regions)
    except RefusedProposal as refused:
        raise refused.of(_diff(named, texts, changed)) from None
    return changed


# Names of files -----------------------------------------------------------------------------------


def _given(files: Mapping[str, str], named: Mapping[str, Path]) -> dict[Path, str]:
    for name in files:
        _refuse_name(name, named)
    return {named[name]: text for name, text in files.items()}


def _patched(patch: str, named: Mapping[str, Path], texts: Mapping[Path, str]) -> Mapping[Path, str]:
    for line in patch.splitlines():
        if header := _HEADER.match(line):
            for name in header["names"].split():
                if name != "/dev/null" and ({"..", ".git"} & {*name.split("/")} or name.startswith(("/", "~", '"'))):
                    raise RefusedProposal(
                        f"names the path {shown(name, 80)}, outside what may be edited: {_listed(named)}", True
                    )
        if (mode := _LINK.match(line)) and mode["mode"] in ("120000", "160000"):
            raise RefusedProposal(
                "makes a file a symbolic link or a submodule; only the text of files may change", True
            )
        if line.startswith(("GIT binary patch", "Binary files ")):
            raise RefusedProposal("the patch is binary; only text can be proposed")
    try:
        require_complete(patch)
        for pair in patched_names(patch):
            for name in pair:
                _refuse_name(name, named)
        return patched(Path("proposal"), patch, {path: texts[path] for path in named.values()})
    except (ChangeRefused, NotApplicable) as error:
        raise error if isinstance(error, RefusedProposal) else RefusedProposal(shown(str(error), 300)) from None


def _refuse_name(name: str, named: Mapping[str, Path]) -> None:
    if name not in named:
        inside = not PurePosixPath(name).is_absolute()
        what = "changes" if inside else "names the path"
        raise RefusedProposal(f"{what} {shown(name, 80)}, which may not be edited; editable: {_listed(named)}", True)


def _listed(names: Iterable[str]) -> str:
    return ", ".join(names)


# Statements ---------------------------------------------------------------------------------------


def _refuse_statements(path: Path, old: str, new: str, regions: Regions) -> None:
    """Raises `RefusedProposal` if the new text changes what is protected, or brings a sign of tampering."""
    before = Module(path, old)
    if hidden := _hidden(old, new):
        raise RefusedProposal(f"the changed {path.name} {hidden}", True)
    try:
        after = Module(path, new)
    except (SyntaxError, ValueError, RecursionError) as error:
        line = f", line {error.lineno}" if isinstance(error, SyntaxError) and error.lineno else ""
        raise RefusedProposal(
            f"the changed {path.name} is not Python{line}: {shown(getattr(error, 'msg', str(error)), 80)}"
        ) from None
    protected, opened = regions.protected.get(path, {}), regions.open.get(path, frozenset())
    reasons = [*_protected(before, after, protected), *_new_signs(before, after, protected, opened)]
    if reasons:
        raise RefusedProposal("; ".join(dict.fromkeys(reasons)), True)
    for statement in _changed(before, after):
        names = bound_names(statement)
        outside = [
            name for name in names if name in before.bound and name not in {*opened, *protected, *before.imported}
        ]
        if outside or not isinstance(statement, _DEFINITIONS):
            what = outside[0] if outside else f"`{shown(ast.unparse(statement), 60)}`"
            raise RefusedProposal(
                f"changes {what}, which is no part of the kernel or its launch; open: {_listed(sorted(opened))}"
            )


def _hidden(old: str, new: str) -> str:
    """Returns how a text reads otherwise than Python runs it; "" if it does not."""
    if signs := sorted({*_DIRECTIONS.findall(new)} - {*_DIRECTIONS.findall(old)}):
        return f"has U+{ord(signs[0]):04X}, which changes the order in which text is shown"
    for line in new.split("\n")[:2]:  # where Python looks for it
        if (found := _ENCODING.match(line)) and found[1].lower().replace("_", "-") not in ("utf-8", "utf8"):
            return f"declares the encoding {shown(found[1], 40)}; the text has to be UTF-8"
    return ""


def _protected(before: Module, after: Module, protected: Mapping[str, str]) -> Iterator[str]:
    for name, why in protected.items():
        ours, theirs = ([_form(each) for each in module.bound.get(name, ())] for module in (before, after))
        if ours != theirs and why != "task":
            yield f"changes {name}, which {why}= of the task uses"
        elif ours != theirs:
            yield from _changed_arguments(before, after) or [f"changes {name}, which is the task"]
    if len(before.tasks) != len(after.tasks):
        yield f"has {len(after.tasks)} tasks in place of {len(before.tasks)}"


def _changed_arguments(before: Module, after: Module) -> list[str]:
    """Returns what a changed task says otherwise than before."""
    found = []
    for ours, theirs in zip(before.tasks, after.tasks, strict=False):
        old, new = ({name: ast.dump(value) for name, value in arguments(call)} for call in (ours, theirs))
        names = [name for name in (*old, *new) if old.get(name) != new.get(name) and name not in OPEN_ARGUMENTS]
        found += [f"changes {name}= of the task" for name in dict.fromkeys(names)]
    return found


def _new_signs(
    before: Module, after: Module, protected: Mapping[str, str], opened: Iterable[str]
) -> Iterator[str]:  # fmt: skip
    unsafe = {name for name in before.imported if not _is_safe(before, name)}
    shared = {node.id for name in opened for each in before.bound.get(name, ()) for node in _names(each)}
    fixed = {*protected} - before.imported - shared
    origins: dict[str, set[str]] = {}
    for name, origin in _origins(before.statements):
        origins.setdefault(name, set()).add(origin)
    for statement in _changed(before, after):
        old = next((each for name in bound_names(statement) for each in before.bound.get(name, ())), None)
        yield from new_signs(statement, old, before.imported)
        yield from (
            f"replaces the imported {name}" for name, origin in _origins([statement])
            if name in before.imported and origin not in origins[name]
        )  # fmt: skip
        if any(is_task(node) for node in ast.walk(statement)):
            continue
        used, was = ({node.id for node in _names(each)} if each is not None else set() for each in (statement, old))
        yield from (
            f"uses {name}, which is protected ({protected[name]}= of the task)" for name in sorted(fixed & used)
        )
        yield from (f"uses the module {name}" for name in sorted((used - was) & unsafe))


def _is_safe(module: Module, name: str) -> bool:
    """Returns whether an imported name comes from a package that computes, and does nothing else."""
    for statement in module.bound[name]:
        for node in ast.walk(statement):
            if isinstance(node, ast.Import):
                roots = {alias.name.partition(".")[0] for alias in node.names if name in (alias.asname, alias.name)}
            elif isinstance(node, ast.ImportFrom):
                roots = {(node.module or "").partition(".")[0]}
            else:
                continue
            if not roots <= SAFE_ROOTS:
                return False
    return True


def _origins(statements: Iterable[ast.stmt]) -> Iterator[tuple[str, str]]:
    """Yields each name that an import binds, and what it is bound to."""
    for node in (each for statement in statements for each in ast.walk(statement)):
        if isinstance(node, ast.Import):  # `import a.b` binds a
            yield from (
                (alias.asname, alias.name) if alias.asname else (alias.name.partition(".")[0],) * 2
                for alias in node.names
            )  # fmt: skip
        elif isinstance(node, ast.ImportFrom):
            whence = "." * node.level + (node.module or "")
            yield from ((alias.asname or alias.name, f"{whence}.{alias.name}") for alias in node.names)


def _changed(before: Module, after: Module) -> Iterator[ast.stmt]:
    """Yields the new or changed statements, and the statements that are gone."""
    old, new = ([ast.dump(_without_docstrings(each)) for each in module.statements] for module in (before, after))
    yield from (each for each, text in zip(after.statements, new, strict=True) if text not in old)
    gone = [each for each, text in zip(before.statements, old, strict=True) if text not in new]
    yield from (each for each in gone if not any(name in after.bound for name in bound_names(each)))


def _names(node: ast.AST) -> Iterator[ast.Name]:
    return (each for each in ast.walk(node) if isinstance(each, ast.Name))


def _form(statement: ast.stmt) -> str:
    """Returns the statement without docstrings, and its tasks without the arguments that may change."""
    copy = _without_docstrings(statement)
    for node in ast.walk(copy):
        if isinstance(node, ast.Call) and is_task(node):
            node.keywords = [each for each in node.keywords if each.arg not in OPEN_ARGUMENTS]
    return ast.dump(copy)


def _without_docstrings(statement: ast.stmt) -> ast.stmt:
    copy = ast.parse(ast.unparse(statement)).body[0]
    for node in ast.walk(copy):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and len(node.body) > 1:
            node.body = [each for each in node.body if not is_docstring(each)] or node.body
    return copy


def _diff(named: Mapping[str, Path], texts: Mapping[Path, str], after: Mapping[Path, str]) -> str:
    lines: list[str] = []
    for name, path in named.items():
        if path in after:
            old, new = (text.splitlines(keepends=True) for text in (texts[path], after[path]))
            lines += difflib.unified_diff(old, new, f"a/{name}", f"b/{name}")
    return "".join(lines)
