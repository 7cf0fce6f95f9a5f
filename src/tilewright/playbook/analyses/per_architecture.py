"""Values per architecture: finds the architectures that a kernel ships on, and writes a hint for one of them."""

from __future__ import annotations

import libcst as cst

from tilewright.playbook.base import NotApplicable
from tilewright.records import Value
from tilewright.source.syntax import Source, argument, dotted, keywords, with_argument
from tilewright.task.task import Task


def elsewhere(source: Source, task: Task, kernel: str) -> frozenset[str]:
    """Returns the architectures that the kernel is known to ship on: those that the task and its space name, and those
    of a ``ByTarget`` in the kernel's decorator."""
    named = (name for call in by_target(source, kernel).values() for name in keywords(call) if name != "default")
    return frozenset((*task.architectures, *task.space.shipped_for, *named))


def by_target(source: Source, kernel: str) -> dict[str, cst.Call]:
    """Returns the hints of a kernel's decorator that have a value per architecture."""
    decorator = decorator_of(source, kernel)
    given = {} if decorator is None or not isinstance(decorator.decorator, cst.Call) else keywords(decorator.decorator)
    return {name: value for name, value in given.items() if isinstance(value, cst.Call) and _is_by_target(value)}


def on_one(source: Source, now: cst.BaseExpression | None, arch: str, value: Value) -> str | None:
    """Returns a hint that is ``value`` on one architecture, and as ``now`` on all others; None if there is no hint."""
    if isinstance(now, cst.Call) and _is_by_target(now):
        default = argument(now, "default")
        if value is None and default is not None:
            raise NotApplicable(f"{source.name}: ByTarget has a default, so {arch} cannot leave it to the compiler")
        changed = with_argument(now, arch, None if value is None else repr(value))
        return source.code(changed) if changed.args else None
    if value is None and now is not None:
        raise NotApplicable(f"{source.name}: a hint that others keep cannot be removed for {arch} alone")
    others = "" if now is None else f", default={source.code(now)}"
    return None if value is None else f"{source.tile_module}.ByTarget({arch}={value!r}{others})"


def decorator_of(source: Source, kernel: str) -> cst.Decorator | None:
    function = source.functions.get(kernel)
    return None if function is None else source.kernel_decorator(function)


def _is_by_target(call: cst.Call) -> bool:
    return dotted(call.func).split(".")[-1] == "ByTarget"
