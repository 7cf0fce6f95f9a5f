"""Reads Triton source: the functions with ``@triton.jit``, calls of `triton.language`, and assignments that nothing
reads."""

from __future__ import annotations

from collections.abc import Collection, Iterable

import libcst as cst

from tilewright.playbook.analyses.dataflow import names_assigned, names_read
from tilewright.playbook.analyses.removing import without_lines
from tilewright.playbook.base import KernelFacts
from tilewright.source.syntax import Function, Line, Source, dotted

LANGUAGE = "triton"
_MODULE = "triton.language."
_PURE = (
    "advance", "arange", "cast", "cdiv", "expand_dims", "full", "make_block_ptr", "max_contiguous", "maximum",
    "minimum", "multiple_of", "num_programs", "program_id", "where", "zeros",
)  # fmt: skip
_PURE_METHODS = ("to", "expand_dims")
_PURE_BUILTINS = ("min", "max", "range", "triton.cdiv")


def jit_functions(source: Source) -> dict[str, Function]:
    """Returns the functions at the top of the file that ``triton.jit`` decorates."""
    return {name: function for name, function in source.functions.items() if _is_jit(source, function)}


def _is_jit(source: Source, function: Function) -> bool:
    marks = (mark.decorator for mark in function.decorators)
    called = (mark.func if isinstance(mark, cst.Call) else mark for mark in marks)
    return any(source.origin(dotted(mark)) == "triton.jit" for mark in called)


def launched_code(source: Source, facts: KernelFacts) -> dict[str, Function]:
    """Returns the launched kernel and the functions under ``triton.jit`` that it calls, if they are in this file."""
    found = jit_functions(source)
    reached = source.called_by([facts.kernel]) if facts.kernel in found else set()
    return {name: function for name, function in found.items() if name in reached}


def tl_call(source: Source, call: cst.CSTNode) -> str:
    """Returns the name of the called function of `triton.language`: ``load`` for ``tl.load(…)``; "" for others."""
    origin = source.origin(dotted(call.func)) if isinstance(call, cst.Call) else ""
    return origin.removeprefix(_MODULE) if origin.startswith(_MODULE) else ""


def tl_calls(source: Source, function: cst.CSTNode, *names: str) -> list[cst.Call]:
    """Returns the calls of the functions ``names`` of `triton.language` inside ``function``."""
    return [call for call in source.every(cst.Call, function) if tl_call(source, call) in names]


def spelled(source: Source, call: cst.Call, name: str) -> str:
    """Returns ``name`` of `triton.language`, written with the prefix of ``call``: ``tl.name`` if ``call`` is
    ``tl.load(…)``."""
    module = dotted(call.func).rpartition(".")[0]
    return f"{module}.{name}" if module else f"{_MODULE}{name}"


def is_pure(source: Source, node: cst.CSTNode, also: Collection[str] = ()) -> bool:
    """Returns whether ``node`` only computes indices, masks or pointers, and reads and writes no memory. ``also``: more
    functions of `triton.language` that it may call."""
    for call in source.every(cst.Call, node):
        method = isinstance(call.func, cst.Attribute) and call.func.attr.value in _PURE_METHODS
        if (
            not method
            and tl_call(source, call) not in (*_PURE, *also)
            and source.origin(dotted(call.func)) not in _PURE_BUILTINS
        ):
            return False
    return True


def without_dead_names(source: Source, function: str, names: Iterable[str]) -> Source:
    """Returns the source without assignments to ``names`` that nothing reads.

    Also removes assignments whose values only the removed assignments read. ``p += n`` does not count as a read of
    ``p``.
    """
    pending = sorted(names)
    while pending:
        name = pending.pop(0)
        tree = source.functions[function]
        lines = [line for line in source.every(Line, tree.body) if _assigns(line, name)]
        if not lines or len(lines) != names_assigned(tree.body)[name]:
            continue
        removed = without_lines(tree.body, lines)
        if name in names_read(removed) or names_assigned(removed)[name]:
            continue
        if not all(is_pure(source, line) for line in lines):
            continue
        pending += sorted({read for line in lines for read in names_read(line)} - {name})
        source = source.changed({tree.body: removed})
    return source


def _assigns(line: Line, name: str) -> bool:
    """Returns whether a line has only one statement, ``name = …`` or ``name += …``."""
    match line.body:
        case [cst.Assign(targets=[cst.AssignTarget(target=cst.Name(value=target))])]:
            return target == name
        case [cst.AugAssign(target=cst.Name(value=target)) | cst.AnnAssign(target=cst.Name(value=target))]:
            return target == name
    return False
