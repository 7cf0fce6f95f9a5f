"""Finds where the shipped configuration is written in a source, and writes other values there.

The configuration may be written in these ways:

- the ``shipped={...}`` of the file's ``tw.Space(...)``: new values are added to the space's lists, too;
- elsewhere, a call or dictionary of literals with the shipped values, such as ``SimpleNamespace(TILE_M=128)`` in a
  library's list of configurations. If loops yield the list, the new configuration is yielded before the loops;
- assignments of literals to the names of knobs, in upper or lower case: ``TILE_N = 128``;
- the decorator of the launched kernel, for hints: ``@ct.kernel(occupancy=2)``.

Several literals may have the shipped values, but only one is in effect. Each literal becomes a site. Loading the
changed file shows whether the literal was the one in effect. One change may edit two places. A hint that the literal
does not contain is written in the decorator. A hint that a ``replace_hints(...)`` call sets is written in that call.

If the kernel ships on other architectures, too (`elsewhere`), these keep their values: a hint of the decorator becomes
a ``ByTarget``, and a value of the space is written to its ``shipped_for``.

A library often lists its configurations by architecture, under a condition on ``get_device_capability()``. If the
condition depends on nothing else, it is evaluated, and the lists of other architectures do not change.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TypeAlias

import libcst as cst

from tilewright.languages import language_of
from tilewright.playbook.analyses import task_code
from tilewright.playbook.analyses.dataflow import pairs_of
from tilewright.playbook.analyses.per_architecture import by_target, decorator_of, elsewhere, on_one
from tilewright.playbook.base import KernelFacts, NotApplicable, Site
from tilewright.records import Configuration, Value
from tilewright.source.cutile import HINTS
from tilewright.source.syntax import Expression, Source, argument, dotted, keywords, literal, with_argument
from tilewright.source.values import Known, Unread, value_of_text
from tilewright.space import knobs

LIKELY = (1.0, 0.6, 0.4)
"""The promise of the first, second and third literal that may be the one in effect."""
OTHER_HINTS = 0.5
"""The promise of a literal whose hints differ from the launched hints: it is unused, or its hints are overridden."""
_Loop: TypeAlias = tuple[cst.For, tuple[Known, ...]]  # a loop, and its literal values
_CAPABILITY = re.compile(r"[\w.]*\bget_device_capability\([^()]*\)")


@dataclass(frozen=True)
class ConfigurationSite:
    """One place where the configuration can be changed.

    ``kernel``, ``line``, ``column`` and ``what`` become the fields of this place's `Site`. ``constants`` are the knobs
    passed to the kernel that can be changed here; hints can be changed at every place. ``fixed`` holds the knobs that
    loops set here: every change must write their values, too. ``same`` counts the knobs with the shipped value here.
    """

    kernel: str
    line: int
    column: int
    what: str
    constants: tuple[str, ...]
    promise: float = 1.0
    fixed: Configuration = Configuration(())  # noqa: RUF009  (frozen)
    same: int = 0
    only_on: str = ""

    def site(self, what: str, values: tuple[Value, ...], promise: float = 1.0, why: str = "") -> Site:
        """Makes the site of an entry at this place."""
        return Site(
            self.kernel, self.line, self.column, what, values, promise * self.promise, why, only_on=self.only_on
        )

    def value(self, changes: Mapping[str, Value]) -> str:
        """Formats changes as the value of a site: ``TILE_M=64,occupancy=2``."""
        return str(Configuration.of({**self.fixed, **changes}))


def places(source: Source, facts: KernelFacts) -> tuple[ConfigurationSite, ...]:
    """Returns the places in ``source`` that hold the incumbent's configuration, the likeliest first; may be empty."""
    per_architecture = bool(elsewhere(source, facts.task, facts.kernel)) or by_target(source, facts.kernel) != {}
    only_on = facts.board.arch if per_architecture or facts.task.space.shipped_for else ""
    return tuple(replace(place, only_on=only_on) for place in _places(source, facts))


def _places(source: Source, facts: KernelFacts) -> tuple[ConfigurationSite, ...]:
    kernel = facts.kernel
    if spaces := source.calls_named("Space"):
        shipped = _literals_in(argument(spaces[0], "shipped"))
        if len(spaces) != 1 or shipped is None:
            return ()
        constants = tuple(name for name in facts.task.space.constants if name in shipped)
        return (ConfigurationSite(kernel, *source.place(spaces[0]), "space", constants),)
    search = _Search(source, facts, kernel)
    found = sorted(search.literals(), key=lambda place: (-len(place.constants), -place.same))
    found = found or list(search.assignments())
    if not found and (decorator := decorator_of(source, kernel)) is not None:
        return (ConfigurationSite(kernel, *source.place(decorator), f"decorator of {kernel}", ()),)
    return tuple(replace(place, promise=likely * place.promise) for place, likely in zip(found, LIKELY, strict=False))


def current(facts: KernelFacts) -> Configuration:
    """Returns the incumbent's configuration with all compiler hints. Hints that the space lacks come from the kernel's
    decorator."""
    shipped = facts.task.space.shipped
    kernel = facts.launch(facts.workloads[0]).kernel
    language = language_of(kernel)
    decorated = language.decorated_hints(kernel, facts.board.arch)
    names = [hint.name for hint in language.hints if hint.name not in shipped and hint.name != "opt_level"]
    others = {name: decorated.get(name) for name in names}
    return Configuration.of({**shipped, **others})


def read_changes(text: str) -> dict[str, Value]:
    """Reads a string such as ``TILE_M=64,occupancy=auto``, and returns the values by knob. Raises `NotApplicable` for
    any other string."""
    changes: dict[str, Value] = {}
    for part in text.split(","):
        name, equals, value = part.partition("=")
        if not equals or not name.isidentifier():
            raise NotApplicable(f"'{text}' is not of the form knob=value,knob=value")
        changes[name] = _read(name, value)
    return changes


def _read(name: str, text: str) -> Value:
    if name in knobs.hints():
        return knobs.read_hint(name, text)
    if text in ("True", "False"):
        return text == "True"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return None if text == "auto" else text


# Writing another configuration --------------------------------------------------------------------


def written(source: Source, site: Site, changes: Mapping[str, Value]) -> str:
    """Returns the text with ``changes`` in the configuration that begins at ``site``. Raises `NotApplicable`."""
    kinds = (cst.For, cst.Assign, cst.Decorator, cst.Call, cst.Dict)
    nodes = (node for kind in kinds for node in source.every(kind))
    node = site.node(source, nodes, "no configuration begins here")
    if node in source.calls_named("Space"):
        return written_in_space(source, changes, site.only_on)
    replaced = {name for hints in _replaced_hints(source, site.kernel).values() for name in hints}
    left = {name: value for name, value in changes.items() if name not in replaced}
    done = set[str]()
    if isinstance(node, cst.For):
        source, done = _written_before_loops(source, node, left)
    elif isinstance(node, cst.Assign):
        source, done = _written_in_assignments(source, node, left)
    elif isinstance(node, (cst.Call, cst.Dict)):
        known = {name for name, value in (_literals_in(node) or {}).items() if not isinstance(value, Unread)}
        done = known & left.keys()
        source = source.changed({node: _with_values(node, {name: left[name] for name in left if name in done})})
    left = {name: value for name, value in left.items() if name not in done}
    for name in sorted(changes.keys() & replaced):
        calls = [call for call, hints in _replaced_hints(source, site.kernel).items() if name in hints]
        source = source.changed({call: with_argument(call, name, repr(changes[name])) for call in calls})
    if others := [name for name in left if name not in HINTS]:
        raise site.refused(source, f"the configuration here has no literal value of {', '.join(others)}")
    return _with_decorator(source, site.kernel, left, site.only_on) if left else source.text


def added(source: Source, place: ConfigurationSite, changes: Mapping[str, Value]) -> str:
    """Returns the text with one more configuration: the one at ``place`` with ``changes``, written beside it.
    Raises `NotApplicable` if the one at ``place`` is neither an element of a list nor yielded."""
    site, kinds = place.site("", ()), (cst.For, cst.Call, cst.Dict)
    node = site.node(source, (node for kind in kinds for node in source.every(kind)), "the configuration is in no list")
    if isinstance(node, cst.For):
        return _written_before_loops(source, node, {**place.fixed, **changes})[0].text
    assert isinstance(node, (cst.Call, cst.Dict)), "the other kinds"
    if missing := changes.keys() - (_literals_in(node) or {}).keys():
        raise site.refused(source, f"the configuration here has no {', '.join(sorted(missing))}")
    new, above = _with_values(node, changes), source.parent(node)
    line = next((each for each in source.parents(node) if isinstance(each, cst.SimpleStatementLine)), None)
    if isinstance(above, cst.Element):
        return source.replaced({above: cst.FlattenSentinel([above, above.with_changes(value=new)])})
    if isinstance(above, cst.Yield) and line is not None and len(line.body) == 1:
        return source.replaced({line: cst.FlattenSentinel([line, cst.parse_statement(f"yield {source.code(new)}")])})
    raise site.refused(source, "the configuration is in no list")


def written_in_space(source: Source, changes: Mapping[str, Value], only_on: str = "") -> str:
    """Returns the text with ``changes`` as the space's shipped values; new values and hints are added to its lists.

    only_on: the architecture that ships the values, if the others keep their own.
    Raises `NotApplicable` for a constant that the space does not have.
    """
    space = task_code.space_of(source)
    lists = {name: _literals_in(argument(space, name)) or {} for name in ("constants", "hints", "shipped")}
    for name, value in changes.items():
        kind = "hints" if name in knobs.hints() and name not in lists["constants"] else "constants"
        if name not in lists["shipped"] and kind == "constants":
            raise NotApplicable(f"{source.name}: the space has no knob '{name}'")
        listed = lists[kind].get(name, ())
        known = listed if isinstance(listed, (tuple, list)) else [Unread(name)]
        missing = value not in known and not any(isinstance(each, (Unread, list, dict)) for each in known)
        values = (None, value) if name not in lists["shipped"] else (value,) if missing else ()
        source = task_code.with_knob(source, name, values, value, hint=kind == "hints", only_on=only_on)
    return source.text


def _written_before_loops(source: Source, loop: cst.For, changes: Mapping[str, Value]) -> tuple[Source, set[str]]:
    """Adds a ``yield`` of a new configuration before ``loop``. Returns the source and the names of its knobs."""
    for call in source.every(cst.Call, loop):
        given = keywords(call)
        variables = {name for name, value in given.items() if isinstance(value, cst.Name)}
        if isinstance(source.parent(call), cst.Yield) and variables and variables <= set(changes):
            mine = {name: value for name, value in changes.items() if name in given}
            new = cst.SimpleStatementLine([cst.Expr(cst.Yield(_with_values(call, mine)))], loop.leading_lines)
            after = loop.with_changes(leading_lines=())
            return source.changed({loop: cst.FlattenSentinel([new, after])}), set(mine)
    raise NotApplicable(f"{source.name}: a new configuration must give a value to every knob that the loops set")


def _written_in_assignments(source: Source, node: cst.Assign, changes: Mapping[str, Value]) -> tuple[Source, set[str]]:
    """Changes ``TILE_M = 128`` and the assignments in its block. Returns the source and the changed knobs."""
    swaps: dict[str, tuple[cst.CSTNode, Expression]] = {}
    names = {name.lower(): name for name in changes}
    for assign in (node, *_beside(source, node)):
        for target, old in _assigned(assign):
            name = names.get(target.lower(), "")
            if name and name not in swaps and not isinstance(literal(old), Unread):
                swaps[name] = (old, cst.parse_expression(repr(changes[name])))
    return source.changed(dict(swaps.values())), set(swaps)


def _with_values(node: cst.Call | cst.Dict, values: Mapping[str, Value]) -> cst.Call | cst.Dict:
    for name, value in values.items():
        if isinstance(node, cst.Call):
            node = with_argument(node, name, repr(value))
        else:
            node = task_code.with_entry(node, name, value)
    return node


def _with_decorator(source: Source, kernel: str, hints: Mapping[str, Value], only_on: str = "") -> str:
    """Returns the text with other hints in the kernel's decorator; None removes a hint. ``only_on``: as for a site."""
    decorator = decorator_of(source, kernel)
    if decorator is None:
        raise NotApplicable(f"{source.name}: the kernel {kernel} is not in this file")
    called = decorator.decorator
    call = called if isinstance(called, cst.Call) else cst.Call(called)
    for name, value in hints.items():
        now = argument(call, name)
        text = on_one(source, now, only_on, value) if only_on else None if value is None else repr(value)
        call = with_argument(call, name, text)
    new = call if call.args else call.func
    return source.replaced({decorator: decorator.with_changes(decorator=new)})


# Finding the literals that hold a configuration ---------------------------------------------------


@dataclass(frozen=True)
class _Search:
    """Finds the literals in ``source`` with the shipped values, for a file without a space."""

    source: Source
    facts: KernelFacts
    kernel: str

    def literals(self) -> Iterator[ConfigurationSite]:
        """Finds calls and dictionaries with the shipped values, in the order of the text.

        Hints that a ``replace_hints`` call sets are ignored, because a literal's value for them has no effect.
        """
        source = self.source
        replaced = {name for hints in _replaced_hints(source).values() for name in hints}
        nodes: list[cst.Call | cst.Dict] = [*source.every(cst.Call), *source.every(cst.Dict)]
        for node in nodes:
            if isinstance(source.parent(node), cst.Decorator) or _replaces_hints(node):
                continue
            values = {name: value for name, value in (_literals_in(node) or {}).items() if name not in replaced}
            place = self._matched(node, values, _loops(source, node))
            if place is not None and self._on_board(node):
                yield place

    def assignments(self) -> Iterator[ConfigurationSite]:
        """Finds ``TILE_N = 128`` in the module, and in functions where one block assigns all constants of the space."""
        space = self.facts.task.space
        names = {name.lower(): name for name in space.constants}
        for node in self.source.every(cst.Assign):
            beside = [pair for assign in _beside(self.source, node) for pair in _assigned(assign)]
            given = {names[target.lower()]: value for target, value in beside if target.lower() in names}
            same = [name for name, value in given.items() if literal(value) == space.shipped[name]]
            own = [names.get(target.lower()) for target, _ in _assigned(node)]
            wanted = len(names) if self.source.function_of(node) else 1
            first = own[:1] == same[:1] != []  # a block of assignments is one site, at its first matching line
            if first and len(same) >= wanted and self._on_board(node):
                yield self._place(node, tuple(same), len(same))

    def _matched(
        self, node: cst.Call | cst.Dict, values: Mapping[str, Known], loops: Mapping[str, _Loop]
    ) -> ConfigurationSite | None:
        """Returns the place at a literal if its constants are the shipped ones; otherwise None.

        The variable of a loop matches if one of its values is the shipped one.
        """
        space = self.facts.task.space
        knobs = [name for name in values if name in space.knobs]
        if any(isinstance(values[name], Unread) and name not in loops for name in knobs):
            return None
        candidates = {name: loops[name][1] if name in loops else (values[name],) for name in knobs}
        same = [name for name in knobs if any(_same(name, value, space.shipped[name]) for value in candidates[name])]
        constants = tuple(name for name in knobs if name in space.constants)
        if not same or not set(constants) <= set(same):
            return None
        if len(knobs) < len(values) and set(constants) != set(space.constants):
            return None  # a call with other arguments and only some of the constants is hardly a configuration
        if not constants and len(same) < len(values):
            return None
        run = [name for name in knobs if name in loops]
        fixed = {name: space.shipped[name] if name in same else loops[name][1][0] for name in run}
        promise = 1.0 if len(same) == len(knobs) else OTHER_HINTS
        outermost = min((loop for loop, _ in loops.values()), key=self.source.place, default=None)
        at = outermost if outermost is not None and run else node
        place = self._place(at, constants, len(same))
        return replace(place, promise=promise, fixed=Configuration.of(fixed))  # type: ignore[arg-type]

    def _place(self, node: cst.CSTNode, constants: tuple[str, ...], same: int) -> ConfigurationSite:
        if isinstance(node, cst.For):
            what = f"the list of {self.source.function_of(node) or self.source.name}"
        else:
            what = _without_values(self.source, node)
        return ConfigurationSite(self.kernel, *self.source.place(node), what, constants, same=same)

    def _on_board(self, node: cst.CSTNode) -> bool:
        """Returns whether ``node`` may run on this GPU: False if a condition on the capability excludes it."""
        source, below = self.source, node
        capability: Known = [*divmod(self.facts.sm, 10)]
        names = {
            target: capability
            for assign in source.every(cst.Assign)
            for target, value in _assigned(assign)
            if _CAPABILITY.fullmatch(source.code(value))
        }
        for above in source.parents(node):
            if isinstance(above, cst.If) and below is not above.test:
                holds = value_of_text(_CAPABILITY.sub(str(capability), source.code(above.test)), names)
                if not isinstance(holds, Unread) and bool(holds) != (below is above.body):
                    return False
            below = above
        return True


def _without_values(source: Source, node: cst.CSTNode) -> str:
    """Returns a literal's text with only the names in it, so that the place keeps its name when its values change."""
    names = ", ".join(_literals_in(node) or (name for name, _ in _assigned(node)))  # type: ignore[arg-type]
    if isinstance(node, cst.Call):
        return f"{' '.join(source.code(node.func).split())}({names})"
    return f"{{{names}}}" if isinstance(node, cst.Dict) else names


def _loops(source: Source, node: cst.CSTNode) -> dict[str, _Loop]:
    """Returns the loops over literals that set the keyword arguments of a yielded call, by keyword."""
    if not isinstance(node, cst.Call) or not isinstance(source.parent(node), cst.Yield):
        return {}
    around = {}
    for loop in (above for above in source.parents(node) if isinstance(above, cst.For)):
        values = literal(loop.iter)
        if isinstance(loop.target, cst.Name) and isinstance(values, (list, tuple)) and values:
            around[loop.target.value] = (loop, tuple(values))
    given = {name: dotted(value) for name, value in keywords(node).items()}
    return {name: around[variable] for name, variable in given.items() if variable in around}


def _replaced_hints(source: Source, kernel: str = "") -> dict[cst.Call, set[str]]:
    """Returns the ``replace_hints`` calls, each with the hints that it sets to a literal. ``kernel``: only the calls
    for this kernel."""
    calls = [call for call in source.every(cst.Call) if _replaces_hints(call) and kernel in source.code(call)]
    return {
        call: {
            name for name, value in keywords(call).items() if name in HINTS and not isinstance(literal(value), Unread)
        }
        for call in calls
    }


def _replaces_hints(node: cst.CSTNode) -> bool:
    """Returns whether a node is a call such as ``kernel.replace_hints(…)`` or ``cached_replace_hints(kernel, …)``."""
    return isinstance(node, cst.Call) and dotted(node.func).split(".")[-1].endswith("replace_hints")


def _literals_in(node: cst.CSTNode | None) -> dict[str, Known] | None:
    """Returns the values (literal or `Unread`) in a call or dictionary, by keyword or key; None for any other node."""
    if isinstance(node, cst.Call):
        return {name: literal(value) for name, value in keywords(node).items()}
    if isinstance(node, cst.Dict):
        elements = [element for element in node.elements if isinstance(element, cst.DictElement)]
        known = [(literal(element.key), literal(element.value)) for element in elements]
        return {key: value for key, value in known if isinstance(key, str)}
    return None


def _assigned(node: cst.Assign) -> Iterator[tuple[str, Expression]]:
    """Yields name and value of each part of ``a = 1`` and of ``a, b = 1, 2``."""
    for target, value in pairs_of(node) if len(node.targets) == 1 else ():
        if isinstance(target, cst.Name) and value is not None:
            yield target.value, value


def _beside(source: Source, node: cst.Assign) -> list[cst.Assign]:
    """Returns the assignments in the same block of statements, ``node`` included."""
    _, block, *_ = source.parents(node)
    return [part for line in block.children for part in line.children if isinstance(part, cst.Assign)]


def _same(name: str, value: Known, shipped: Value) -> bool:
    """Returns whether a literal has the shipped value. For occupancy and num_ctas, None means 1."""
    if name in ("occupancy", "num_ctas") and value in (None, 1) and shipped in (None, 1):
        return True
    return type(value) is type(shipped) and value == shipped
