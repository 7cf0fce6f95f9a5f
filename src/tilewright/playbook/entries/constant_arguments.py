"""Makes integers that the launch passes constants of the kernel.

A kernel is compiled once for all values of a plain integer. If the integer is a stride, a length or a size, its value
decides which masks are always true, and how wide an access may be. The compiler sees this only in a constant. The
result is right for all values, but each new value costs a compilation. So the change is offered for integers that are
equal in all shapes that the task serves: the width of a group, not the number of rows.

    n = ct.full((), n, n.dtype)

The kernel begins with such lines. A constant takes the type of the tile that it meets, and numbers made of constants
do not wrap. With these lines, all arithmetic has the types that it had.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import libcst as cst

from tilewright.playbook.analyses.expressions import imported
from tilewright.playbook.analyses.task_code import passed, served_launches
from tilewright.playbook.base import Effect, Entry, EntryDescription, KernelFacts, NotApplicable, Site
from tilewright.playbook.rewriting import starting_with
from tilewright.records import Value
from tilewright.source.syntax import Changes, Function, Source


class ConstantArguments(Entry):
    about = EntryDescription(
        id="constant_arguments",
        name="constant arguments",
        what="compiles the kernel for integers that all served shapes share",
        when="strides, lengths or sizes are passed as plain integers: masks and address arithmetic fall away",
        when_not="the integer changes from launch to launch: each new value costs a compilation",
        priority={"memory": 5, "balanced": 6, "compute": 7},
        eases=("access path", "issue slots", "bytes in flight"),
        order=225,
        effect=Effect.assumed(1.0, 1.60),
    )

    def sites(self, source: Source, facts: KernelFacts) -> list[Site]:
        if facts.kernel not in source.kernels:
            return []
        function = source.kernels[facts.kernel]
        served = self._served(source, facts)
        fixed = " ".join(name for name, values in served.items() if _is_one_integer(values))
        why = "equal in all served shapes"
        site = Site.at(source, function, f"integers of {facts.kernel}", (fixed,), why=why)
        return [site] if fixed and self.applies(source, site) else []

    def why_not(self, source: Source, facts: KernelFacts) -> str:
        served = self._served(source, facts) if facts.kernel in source.kernels else {}
        changing = [name for name, values in served.items() if values and all(type(value) is int for value in values)]
        return f"{', '.join(changing)} differ between served shapes" if changing else ""

    def _served(self, source: Source, facts: KernelFacts) -> dict[str, list[Any]]:
        """Returns what the launches of served shapes pass for each parameter without an annotation."""
        plain = _plain(source.kernels[facts.kernel])
        served = [passed(source, launch) for launch in served_launches(facts)] if plain else []
        return {name: [each.get(name) for each in served] for name in plain}

    def apply(self, source: Source, site: Site, value: Value) -> str:
        function, names = site.function_here(source), str(value).split()
        plain = _plain(function)
        if not names or not plain.keys() >= set(names):
            raise NotApplicable(f"'{value}' names parameters that are not plain; those are {', '.join(plain)}")
        constant = cst.Annotation(cst.parse_expression(f"{imported(source, 'Constant')}[int]"))
        changes: Changes = {plain[name]: plain[name].with_changes(annotation=constant) for name in names}
        typed = [
            cst.parse_statement(f"{name} = {imported(source, 'full')}((), {name}, {name}.dtype)") for name in names
        ]
        return source.replaced({**changes, function.body: starting_with(*typed)})


def _plain(function: Function) -> dict[str, cst.Param]:
    """Returns the parameters without an annotation, by name."""
    return {param.name.value: param for param in function.params.params if param.annotation is None}


def _is_one_integer(values: Sequence[Any]) -> bool:
    return bool(values) and all(type(value) is int and value == values[0] for value in values)


ENTRY = ConstantArguments()
