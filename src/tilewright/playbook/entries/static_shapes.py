"""Makes extents and strides of arrays constants of the kernel.

`ct.ArrayAnnotation` lets a launch compile for the extents that it has. The result is right for all shapes, and each new
shape costs a compilation. It is offered for extents that all workloads share: the width of a model, not its batch. On
an H200 it was kept in 1 of 2 tries (bench/recorded/h200-naive-2026-11-21.json) and, on TileGym's kernels, in 0 of 4
(bench/recorded/h200-tilegym-2026-11-21.json).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import libcst as cst

from tilewright.playbook.analyses.configuration_sites import launched_kernel
from tilewright.playbook.analyses.dataflow import parameters
from tilewright.playbook.analyses.task_code import inserted
from tilewright.playbook.base import Effect, Entry, EntryDescription, KernelFacts, NotApplicable, Site
from tilewright.records import Value
from tilewright.source.syntax import Source, dotted
from tilewright.task.tensors import ArraySpec

_FACT = re.compile(r"(\w+)\.(shape|strides)\[(\d+)\]")
Axes = Mapping[str, tuple[int, ...]]
"""Parameter → axes."""


class StaticShapes(Entry):
    about = EntryDescription(
        id="static_shapes",
        name="static shapes",
        what="compiles the kernel for extents (and strides) that all workloads share",
        when="loops or bounds hang on an extent that a model fixes: bounds checks and remainders fall away",
        when_not="the extent changes from launch to launch: each new one is compiled anew",
        priority={"memory": 7, "balanced": 7, "compute": 8},
        order=230,
        effect=Effect.assumed(0.98, 1.15, kept=1, of=2),
    )

    def sites(self, source: Source, facts: KernelFacts) -> Sequence[Site]:
        kernel = launched_kernel(facts)
        if kernel not in source.kernels:
            return []
        function = source.kernels[kernel]
        free = {one.name.value for one in function.params.params if _is_free(source, one)}
        passed: dict[str, list[ArraySpec]] = {}
        for launch in facts.launches:
            for name, arg in zip(parameters(function), launch.args, strict=False):
                if isinstance(arg, ArraySpec) and name in free:
                    passed.setdefault(name, []).append(arg)
        shapes = {name: axes for name, arrays in passed.items() if (axes := _shared(facts, arrays))}
        if not shapes:
            return []
        strides = {name: axes for name in shapes if len(axes := _strides(passed[name])) > 1}
        values = tuple(dict.fromkeys((_text(shapes, {}), _text(shapes, strides))))
        why = "the same in all workloads" if len(facts.workloads) > 1 else "outputs are not independent along them"
        return [Site.at(source, function, f"static extents of {kernel}", values, why=why)]

    def apply(self, source: Source, site: Site, value: Value) -> str:
        function = site.function_here(source)
        said = _FACT.findall(str(value))
        if not said:
            raise NotApplicable(f"'{value}' names no extent: write x.shape[1]")
        changes: dict[cst.CSTNode, cst.CSTNode | cst.FlattenSentinel[cst.CSTNode]] = {}
        for param in function.params.params:
            axes = {
                kind: tuple(int(axis) for name, one, axis in said if (name, one) == (param.name.value, kind))
                for kind in ("shape", "strides")
            }
            if any(axes.values()):
                if not _is_free(source, param):
                    raise NotApplicable(f"{source.name}: '{param.name.value}' has an annotation of its own")
                changes[param] = _annotated(source, param, axes)
        return _with_import(source.changed(changes))


def _is_free(source: Source, param: cst.Param) -> bool:
    """Whether a parameter has no annotation, or only that of an array."""
    return param.annotation is None or dotted(param.annotation.annotation) in (f"{source.tile_module}.Array", "Array")


def _shared(facts: KernelFacts, arrays: Sequence[ArraySpec]) -> tuple[int, ...]:
    """The axes whose extent is the same in all workloads; in a single one, those that no independent dimension
    gives (what is independent is what varies)."""
    first, tensor = arrays[0], facts.task.tensors.get(arrays[0].name)
    extents = ({one.shape[axis] for one in arrays} for axis in range(first.ndim))
    same = [axis for axis, found in enumerate(extents) if len(found) == 1 and found != {1}]
    if len(arrays) == 1 and tensor is not None and len(tensor.shape) == first.ndim:
        same = [axis for axis in same if tensor.shape[axis] not in facts.task.independent]
    return tuple(same)


def _strides(arrays: Sequence[ArraySpec]) -> tuple[int, ...]:
    """All axes whose stride is the same in all workloads. Naming one stride turns off the detection of the others."""
    return tuple(axis for axis in range(arrays[0].ndim) if len({one.strides[axis] for one in arrays}) == 1)


def _text(shapes: Axes, strides: Axes) -> str:
    facts = (("shape", shapes), ("strides", strides))
    return " ".join(f"{name}.{one}[{axis}]" for one, each in facts for name, axes in each.items() for axis in axes)


def _annotated(source: Source, param: cst.Param, axes: Axes) -> cst.Param:
    said = {"static_shape_dims": axes["shape"], "static_stride_dims": axes["strides"]}
    facts = ", ".join(f"{name}={one!r}" for name, one in said.items() if one)
    module = source.tile_module
    new = cst.parse_expression(f"Annotated[{module}.Array, {module}.ArrayAnnotation({facts})]")
    return param.with_changes(annotation=cst.Annotation(new))


def _with_import(source: Source) -> str:
    """The text with ``from typing import Annotated`` before its first import, where it is missing."""
    for one in source.every(cst.ImportFrom):
        match one:
            case cst.ImportFrom(module=cst.Name(value="typing"), names=[*names]):
                if any(dotted(alias.name) == "Annotated" and alias.asname is None for alias in names):
                    return source.text
    for line in source.module.body:
        match line:
            case cst.SimpleStatementLine(body=[cst.ImportFrom(module=cst.Name(value="__future__")), *_]):
                continue
            case cst.SimpleStatementLine(body=[cst.Import() | cst.ImportFrom(), *_]):
                return source.replaced(inserted("from typing import Annotated", line))
    raise NotApplicable(f"{source.name} imports nothing")


ENTRY = StaticShapes()
