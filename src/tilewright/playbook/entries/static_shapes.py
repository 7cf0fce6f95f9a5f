"""Makes extents and strides of arrays constants of the kernel.

With `ct.ArrayAnnotation` a launch compiles the kernel for the extents of its arrays. The result is right for all
shapes, but each new shape costs a compilation. The change is offered for extents that all workloads share: the width of
a model, not the batch. On TileGym's kernels and an H200 the change was kept in 0 of 4 tries
(bench/recorded/h200-tilegym-2026-11-21.json).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import libcst as cst

from tilewright.playbook.analyses.dataflow import parameters
from tilewright.playbook.analyses.task_code import inserted
from tilewright.playbook.base import Effect, Entry, EntryDescription, KernelFacts, NotApplicable, Site
from tilewright.records import Value
from tilewright.source.syntax import Source, dotted
from tilewright.task.tensors import ArraySpec

_FACT = re.compile(r"(\w+)\.(shape|strides)\[(\d+)\]")
Axes = Mapping[str, tuple[int, ...]]  # the axes of each parameter


class StaticShapes(Entry):
    about = EntryDescription(
        id="static_shapes",
        name="static shapes",
        what="compiles the kernel for extents (and strides) that all workloads share",
        when="loops or bounds depend on an extent that a model fixes: bounds checks and remainders fall away",
        when_not="the extent changes from launch to launch: each new extent costs a compilation",
        priority={"memory": 7, "balanced": 7, "compute": 8},
        eases=("access path", "issue slots"),
        order=230,
        effect=Effect.assumed(0.98, 1.15, kept=1, of=2),
    )

    def sites(self, source: Source, facts: KernelFacts) -> list[Site]:
        kernel = facts.kernel
        if kernel not in source.kernels:
            return []
        function = source.kernels[kernel]
        free = {param.name.value for param in function.params.params if _is_free(source, param)}
        passed: dict[str, list[ArraySpec]] = {}
        for launch in facts.launches:
            for name, arg in zip(parameters(function), launch.args, strict=False):
                if isinstance(arg, ArraySpec) and name in free:
                    passed.setdefault(name, []).append(arg)
        shapes = {name: axes for name, arrays in passed.items() if (axes := _shared(facts, arrays))}
        if not shapes:
            return []
        # A static stride turns off the automatic detection of all other strides, so all equal strides are named.
        strides = {name: axes for name in shapes if len(axes := _equal([each.strides for each in passed[name]])) > 1}
        values = tuple(dict.fromkeys((_text(shapes, {}), _text(shapes, strides))))
        why = "the same in all workloads" if len(facts.workloads) > 1 else "outputs are not independent along them"
        return [Site.at(source, function, f"static extents of {kernel}", values, why=why)]

    def apply(self, source: Source, site: Site, value: Value) -> str:
        function = site.function_here(source)
        named = _FACT.findall(str(value))
        if not named:
            raise NotApplicable(f"'{value}' names no extent; an example is x.shape[1]")
        changes: dict[cst.CSTNode, cst.CSTNode | cst.FlattenSentinel[cst.CSTNode]] = {}
        module = source.tile_module
        for param in function.params.params:
            name = param.name.value
            axes = {
                keyword: tuple(int(axis) for array, part, axis in named if (array, part) == (name, wanted))
                for keyword, wanted in (("static_shape_dims", "shape"), ("static_stride_dims", "strides"))
            }
            if any(axes.values()):
                if not _is_free(source, param):
                    raise NotApplicable(f"{source.name}: '{name}' has another annotation already")
                static = ", ".join(f"{keyword}={dims!r}" for keyword, dims in axes.items() if dims)
                new = cst.parse_expression(f"Annotated[{module}.Array, {module}.ArrayAnnotation({static})]")
                changes[param] = param.with_changes(annotation=cst.Annotation(new))
        return _with_import(source.changed(changes))


def _is_free(source: Source, param: cst.Param) -> bool:
    """Returns whether a parameter has no annotation, or only ``ct.Array``."""
    return param.annotation is None or dotted(param.annotation.annotation) in (f"{source.tile_module}.Array", "Array")


def _shared(facts: KernelFacts, arrays: Sequence[ArraySpec]) -> tuple[int, ...]:
    """Returns the axes whose extent is the same in all ``arrays``: one parameter's arrays, one for each workload.

    With only one workload, omits the axes of independent dimensions, because these usually vary.
    """
    shape, tensor = arrays[0].shape, facts.task.tensors.get(arrays[0].name)
    same = [axis for axis in _equal([array.shape for array in arrays]) if shape[axis] != 1]
    if len(arrays) == 1 and tensor is not None and len(tensor.shape) == len(shape):
        same = [axis for axis in same if tensor.shape[axis] not in facts.task.independent]
    return tuple(same)


def _equal(rows: Sequence[Sequence[int]]) -> tuple[int, ...]:
    """Returns the axes along which all rows have the same number."""
    return tuple(axis for axis, numbers in enumerate(zip(*rows, strict=True)) if len(set(numbers)) == 1)


def _text(shapes: Axes, strides: Axes) -> str:
    """Formats the value of a site: ``x.shape[1] x.strides[0]``."""
    parts = (("shape", shapes), ("strides", strides))
    return " ".join(f"{name}.{part}[{axis}]" for part, each in parts for name, axes in each.items() for axis in axes)


def _with_import(source: Source) -> str:
    """Returns the text with ``from typing import Annotated``, which is added before the first import if missing."""
    for line in source.every(cst.ImportFrom):
        match line:
            case cst.ImportFrom(module=cst.Name(value="typing"), names=[*names]):
                if any(dotted(alias.name) == "Annotated" and alias.asname is None for alias in names):
                    return source.text
    for statement in source.module.body:
        match statement:
            case cst.SimpleStatementLine(body=[cst.ImportFrom(module=cst.Name(value="__future__")), *_]):
                continue
            case cst.SimpleStatementLine(body=[cst.Import() | cst.ImportFrom(), *_]):
                return source.replaced(inserted("from typing import Annotated", statement))
    raise NotApplicable(f"{source.name} has no import before which Annotated could be imported")


ENTRY = StaticShapes()
