"""Writes the changed launch of a captured task into a program that searches for the configuration of its launch.

    result = exhaustive_search(configs, stream, lambda cfg: GRID, kernel, lambda cfg: ARGS, lambda cfg: HINTS)
    best = result.best.config
    ct.launch(stream, GRID, kernel.replace_hints(HINTS), ARGS)

Grid and arguments are written twice: for each configuration that the search tries, and for the best one. Both change in
the same way. A knob of the task is a field of the program's configuration. The kept configuration becomes one more that
is searched, so that no other shape loses the configuration that is best for it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property

import libcst as cst

from tilewright.playbook.analyses.added_configuration import IN_NO_LIST, added
from tilewright.playbook.analyses.configuration_sites import places, replaced_hints
from tilewright.playbook.analyses.dataflow import reaching
from tilewright.playbook.analyses.host_launch import HostLaunch, Shape, TaskLaunch, launch_calls, refuse_other_launches
from tilewright.playbook.analyses.short_lines import with_short_lines
from tilewright.playbook.analyses.unchanged import is_read
from tilewright.playbook.base import KernelFacts, NotApplicable
from tilewright.records import Value
from tilewright.source.cutile import SEARCHES
from tilewright.source.syntax import (
    Expression,
    Replacement,
    Source,
    argument,
    dotted,
    elements,
    keywords,
    number,
    with_argument,
)

GRID, KERNEL, ARGS, HINTS = ("grid_fn", 2), ("kernel", 3), ("args_fn", 4), ("hints_fn", 5)
"""The arguments of `exhaustive_search`, with their places."""


def search_of(source: Source, place: int, kernel: str) -> cst.Call | None:
    """Returns the search whose best configuration a ``ct.launch`` launches: the only one for ``kernel`` in the same
    function. None if the launch is not searched.

    place: the number of the launch among the ``ct.launch`` calls of the file.
    """
    function = source.function_of(launch_calls(source)[place])
    calls = [call for call in source.every(cst.Call) if source.origin(dotted(call.func)) in SEARCHES]
    found = [call for call in calls if source.function_of(call) == function]
    kernels = [dotted(given).rpartition(".")[2] if (given := argument(call, *KERNEL)) else "" for call in found]
    return found[0] if kernels == [kernel] else None


def with_searched_launch(
    source: Source, search: cst.Call, place: int, before: TaskLaunch, after: TaskLaunch,
    tensors: Mapping[str, Shape], facts: KernelFacts,
) -> tuple[str, set[str]]:  # fmt: skip
    """Returns the program's text with the launch ``after`` in place of ``before``, and the knobs that are searched.

    search: the search of the launch (`search_of`). facts: of the untouched task, which ships what the program launched.
    The other arguments are those of `host_launch.with_launch`.
    Raises `NotApplicable` with the reason if the launch cannot be written there.
    """
    calls = (search, launch_calls(source)[place])
    of_search, of_launch = (SearchedLaunch(source, call, before, tensors, calls) for call in calls)
    refuse_other_launches(source, calls, before, after)
    changes = {name: value for name, value in after.shipped.items() if before.shipped.get(name, value) != value}
    new_hints = [name for name in changes if name in after.hints and name not in of_search.fields]
    searched_too = of_search.with_hints(new_hints, before.hints)
    fields = {*of_search.fields, *(new_hints if searched_too else ())}
    changed = source.changed({**of_search.changes(after), **of_launch.changes(after), **searched_too})
    own: dict[str, Value] = {name: value for name, value in changes.items() if name in fields}
    if own:
        listed = places(changed, facts)
        if not listed:
            raise NotApplicable(f"{source.name}: {IN_NO_LIST}")
        changed = Source(source.name, added(changed, listed[0], own, new_hints))
    return with_short_lines(source.text, changed.text), fields


class SearchedLaunch(HostLaunch):
    """A call that launches the best configuration of a search; or the search, for the configurations that it tries."""

    def __init__(
        self, source: Source, call: cst.Call, before: TaskLaunch, tensors: Mapping[str, Shape],
        both: tuple[cst.Call, cst.Call],
    ) -> None:  # fmt: skip
        self.search, self.launch = both
        super().__init__(source, call, before, tensors)

    def parts(self) -> Sequence[Expression]:
        """Returns grid, kernel and arguments. Those of a search are what its functions return.

        For a variable, returns the tuple that it holds: if the tuple is changed, both the search and the launch are.
        If anything else reads the variable, returns the variable.
        """
        if self.call is self.search:
            functions = [self._function(*which) for which in (GRID, ARGS)]
            if len(set(map(_parameter, functions))) > 1:
                raise NotApplicable(f"{self.where}: the functions of the search name its configuration in two ways")
            kernel, (grid, args) = argument(self.call, *KERNEL), (function.body for function in functions)
            assert kernel is not None, "it named the search"
        else:
            grid, kernel, args = super().parts()
        return self._held(grid), kernel, self._held(args)

    def _held(self, node: Expression) -> Expression:
        found = reaching(self.source, node.value, self.call) if isinstance(node, cst.Name) else None
        value = None if found is None else found.value
        if value is None or elements(value) is None or not isinstance(node, cst.Name):
            return node
        function = self.source.function_around(self.call)
        uses = [each for each in self.source.every(cst.Name, function) if each.value == node.value]
        around = [set(self.source.parents(use)) for use in uses if is_read(self.source, use)]
        return value if all({self.search, self.launch} & parents for parents in around) else node

    def _function(self, name: str, place: int) -> cst.Lambda:
        given = argument(self.search, name, place)
        if not isinstance(given, cst.Lambda) or not _parameter(given):
            raise NotApplicable(f"{self.where}: {name} of the search is no lambda with one parameter")
        return given

    @cached_property
    def owner(self) -> str:
        """The variable that holds the configuration here; "" if no argument or hint is one of its fields."""
        if self.call is self.search:
            return _parameter(self._function(*GRID))
        hints = [value for call in self._replaced() for value in keywords(call).values()]
        owners = (dotted(given).rpartition(".")[0] for given in (*(mine for _, mine in self._passed()), *hints))
        known = (owner for owner in owners if reaching(self.source, owner, self.call) is not None)
        return next(known, "")

    @cached_property
    def fields(self) -> dict[str, str]:
        """The knobs of the task that are searched, and the fields that hold them."""
        found = {knob: dotted(mine).rpartition(".")[2] for knob, mine in self._passed()}
        if (written := self._hints()) is None:
            return found
        parameter, listed = written
        for each in listed.elements:
            if isinstance(each, cst.DictElement) and isinstance(each.key, cst.SimpleString):
                owner, _, name = dotted(each.value).rpartition(".")
                if owner == parameter:
                    found[str(each.key.evaluated_value)] = name
        return found

    def _hints(self) -> tuple[str, cst.Dict] | None:
        """Returns the parameter and the result of the function of hints; None if it does not return a dictionary."""
        hints = argument(self.search, *HINTS)
        if isinstance(hints, cst.Lambda) and isinstance(hints.body, cst.Dict):
            return _parameter(hints), hints.body
        return None

    def with_hints(self, names: Sequence[str], before: Mapping[str, Value]) -> dict[cst.CSTNode, Replacement]:
        """Returns the changes with which further hints are searched, too. Configurations without them keep the hints
        ``before``. Empty if the program does not write its hints in the search and in one ``replace_hints``."""
        written, calls = self._hints(), self._replaced()
        if not names or written is None or len(calls) != 1:
            return {}
        (parameter, old), [call] = written, calls
        owners = {dotted(value).rpartition(".")[0] for value in keywords(call).values()}
        if len(owners) != 1 or "" in owners:
            return {}
        body, called = old, call
        for name in names:
            text = f'getattr({{}}, "{name}", {before.get(name)!r})'
            entry = cst.DictElement(cst.SimpleString(f'"{name}"'), cst.parse_expression(text.format(parameter)))
            body = body.with_changes(elements=[*body.elements, entry])
            called = with_argument(called, name, text.format(*owners))
        return {old: body, call: called}

    def _replaced(self) -> list[cst.Call]:
        """Returns the ``replace_hints`` of the searched kernel in the function of the search."""
        searched = argument(self.search, *KERNEL)
        kernel = dotted(searched).rpartition(".")[2] if searched else ""
        calls = replaced_hints(self.source, kernel)
        return [call for call in calls if self.source.function_of(call) == self.source.function_of(self.search)]

    def _passed(self) -> list[tuple[str, Expression]]:
        """Returns the knobs that are passed to the kernel, with what is passed here."""
        mine = elements(self.args) or ()
        pairs = [(dotted(was), now) for was, now in zip(self.before.args, mine, strict=False)]
        return [
            (was.removeprefix("config."), now)
            for was, now in pairs
            if was.startswith("config.") and isinstance(now, cst.Attribute) and isinstance(now.value, cst.Name)
        ]

    def text_of(self, launch: TaskLaunch, node: Expression) -> str:
        """Returns the text without the values of searched knobs, because the search launches all of them."""
        return launch.text(node, without=self.fields)

    def _text(self, after: TaskLaunch, node: Expression) -> str | None:
        given = dict(self.assigned_in(after))
        match node:
            case cst.BooleanOperation(
                left=cst.Attribute(value=cst.Name("config"), attr=cst.Name(name)), operator=cst.Or(), right=right
            ) if name in self.fields and number(right) is not None:
                return f"({self._field(name)} or {number(right)})"
            case cst.Attribute(value=cst.Name("config"), attr=cst.Name(name)) if name in self.fields:
                return self._field(name)
            case cst.Subscript(
                value=cst.Name(name), slice=[cst.SubscriptElement(slice=cst.Index(value=cst.Integer() as at))]
            ) if name in given and (listed := elements(given[name])) is not None:
                return self.translated(after, listed[at.evaluated_value])
            case cst.Name(name) if name in given:
                return self.translated(after, given[name])
        return super()._text(after, node)

    def _field(self, knob: str) -> str:
        if not self.owner:
            raise NotApplicable(f"{self.where}: no variable there is known to hold the configuration")
        return f"{self.owner}.{self.fields[knob]}"


def _parameter(function: cst.Lambda) -> str:
    names = [each.name.value for each in function.params.params]
    return names[0] if len(names) == 1 else ""
