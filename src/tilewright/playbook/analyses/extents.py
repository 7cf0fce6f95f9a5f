"""Finds the extents that a task declares for the arrays of a kernel."""

from __future__ import annotations

import libcst as cst

from tilewright.playbook.analyses.dataflow import names_assigned, names_read, parameters
from tilewright.playbook.analyses.task_code import argument_of, entry_of, launch_of, only_call, text_in, visible_at_top
from tilewright.source.syntax import Source, argument, dotted, elements


def extent_of(source: Source, kernel: str, array: str, axis: int) -> str | None:
    """Returns the declared extent (``N`` or ``128``) of an axis of the tensor that the launch passes as ``array``.

    None if the extent is not a literal, or the tensor is not declared in this file. Also None if the launch or the file
    gives the tensor's or the dimension's name another meaning.
    """
    given = argument_of(source, kernel, array)
    listed = None if given is None else _declared(source, dotted(given))
    if given is None or listed is None or axis >= len(listed):
        return None
    extent = listed[axis]
    text = str(extent.evaluated_value) if isinstance(extent, cst.Integer) else text_in(extent)
    if text is None:
        return None
    launch = launch_of(source).function
    named, own = names_read(cst.parse_expression(text)), parameters(launch)
    changed = set(names_assigned(launch.body)) | (visible_at_top(source) - set(own))
    return None if changed & {*named, dotted(given)} else text


def _declared(source: Source, tensor: str) -> list[cst.BaseExpression] | None:
    """Returns the extents of a tensor that the task declares; None if they are not written in this file."""
    tensors = argument(only_call(source, "Task"), "tensors", 1)
    if isinstance(tensors, cst.Name):  # a captured task gives its tensors a name
        tensors = _at_top(source, tensors.value)
    declared = entry_of(tensors, tensor) if isinstance(tensors, cst.Dict) else None
    return elements(argument(declared, "shape", 0)) if isinstance(declared, cst.Call) else None


def _at_top(source: Source, name: str) -> cst.BaseExpression | None:
    """Returns the value of a name that the file assigns once, outside of functions; None for any other name."""
    assigns = [each for each in source.every(cst.Assign) if name in names_assigned(each)]
    if len(assigns) != 1 or source.function_of(assigns[0]) or dotted(assigns[0].targets[0].target) != name:
        return None
    return assigns[0].value
