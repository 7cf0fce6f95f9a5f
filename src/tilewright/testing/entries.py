"""Defines the contract of playbook entries. Inherit `EntryContract` in a test file of your entry.

    class TestOccupancy(EntryContract):
        entry = ENTRY
        examples = {"scale": SCALE}        # task files in which the entry finds at least one site to change
        elsewhere = {"hinted": HINTED}     # task files in which the entry finds no site

A site is a position in the source where the entry can make its change. The tests cover each site and value that the
entry offers in its examples. Write your own tests of the changed source and of the new kernel's results, with the help
of `loaded` and `facts_of`. No test needs a GPU.
"""

from __future__ import annotations

import ast
import hashlib
import io
import re
import tokenize
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import ClassVar, TypeVar

from tilewright.compile.compile import Unit, compile_all
from tilewright.hardware import prediction_error
from tilewright.hardware.architectures import Board, board
from tilewright.inspect.work import CountedWork, bound_of, count
from tilewright.playbook.analyses.short_lines import LIMIT, with_short_lines
from tilewright.playbook.base import Entry, KernelFacts, NotApplicable, Site
from tilewright.records import MachineCode, Value
from tilewright.source.syntax import Source
from tilewright.task.loading import load_task
from tilewright.task.task import Task

KINDS = {"memory", "balanced", "compute"}
TASK_STATEMENTS = re.compile(r"\b(Task|Space)\(")
H200 = board("H200")
T = TypeVar("T")


def loaded(text: str, folder: Path) -> Task:
    """Writes ``text`` to a new file in ``folder`` and loads its task. Each text gets its own path and module."""
    name = hashlib.sha256(text.encode()).hexdigest()[:12]
    path = folder / f"task_{name}.py"
    path.write_text(text)
    return load_task(str(path))


def codes_of(task: Task, on: Board = H200) -> dict[str, MachineCode]:
    """Returns the machine code of the shipped configuration, by name of workload. Fails if it does not compile."""
    codes: dict[str, MachineCode] = {}
    for compiled in compile_all(task, [Unit(workload, task.space.shipped, on) for workload in task.selected(None)]):
        assert isinstance(compiled.code, MachineCode), f"{compiled.unit.workload}: {compiled.code}"
        codes[compiled.unit.workload.name] = compiled.code
    return codes


def facts_of(task: Task, on: Board = H200) -> KernelFacts:
    """Returns the facts that `optimize` would have if this task were its best version so far."""
    workloads = task.selected(None)
    names = tuple(workload.name for workload in workloads)

    @cache
    def counted(name: str) -> CountedWork:
        return count(task, task.workload(name), on)

    @cache
    def codes() -> dict[str, MachineCode]:
        return codes_of(task, on)

    bounds = _Later(names, lambda name: bound_of(task, task.workload(name), on, counted(name)))
    return KernelFacts(
        task, on, workloads, bounds, _Later(names, lambda name: codes()[name]), lambda workload: counted(workload.name)
    )


class _Later(Mapping[str, T]):
    """Values that are made when they are first needed. Most entries need no bound and no machine code."""

    def __init__(self, names: tuple[str, ...], make: Callable[[str], T]) -> None:
        self.names, self.make = names, cache(make)

    def __getitem__(self, name: str) -> T:
        return self.make(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)


class EntryContract:
    """Tests one entry on task files."""

    entry: ClassVar[Entry]
    examples: ClassVar[Mapping[str, str]]
    elsewhere: ClassVar[Mapping[str, str]] = {}
    board: ClassVar[Board] = H200
    every_value_loads: ClassVar[bool] = True  # False if the entry may offer values with which the task does not load

    def allows(self, site: Site, statement: str) -> bool:
        """Returns whether the entry may change ``statement`` at the top of a file, for example a constant.

        Functions, imports and the task may always change.
        """
        return False

    def test_it_says_what_it_is(self) -> None:
        about = self.entry.about
        for words in (about.id, about.name, about.what, about.when, about.when_not, about.effect.source):
            assert words.strip() == words and words, about
        assert re.fullmatch(r"\d{4}-\d\d(-\d\d)?", about.effect.date), about.effect
        assert 0 < about.effect.low <= about.effect.high
        assert about.risk in ("lossless", "lossy")
        assert set(about.priority) <= KINDS and all(place >= 1 for place in about.priority.values())

    def test_it_finds_sites_that_have_values_and_words(self) -> None:
        for name, text in self.examples.items():
            sites = self._sites(text)
            assert sites, name
            assert len(set(sites)) == len(sites)
            lines = len(text.splitlines())
            for site in sites:
                values = site.values_to_try()
                assert values and len(set(map(repr, values))) == len(values), site
                assert site.what and "\n" not in site.what and 1 <= site.line <= lines and site.promise > 0, site

    def test_it_finds_none_elsewhere(self) -> None:
        for name, text in self.elsewhere.items():
            sites = self.entry.sites(Source("task.py", text), self._facts(text))
            assert not sites, f"{name}: {[str(site) for site in sites]}"

    def test_the_same_source_has_the_same_sites(self) -> None:
        for text in self.examples.values():
            assert tuple(self.entry.sites(Source("other.py", text), self._facts(text))) == self._sites(text)

    def test_a_change_is_python_and_a_change(self) -> None:
        for before, site, value, text in self._changes():
            ast.parse(text)
            assert text != before, f"{site} = {value!r} changes nothing"
            assert self.entry.kind(value) in prediction_error.KINDS

    def test_what_is_not_changed_stays_as_it_was_written(self) -> None:
        """Tests that unchanged statements keep their text, and that no comment is lost."""
        for before, site, value, text in self._changes():
            old, new = _statements(before), _statements(text)
            for meaning in old.keys() & new.keys():
                assert set(old[meaning]) >= set(new[meaning]), f"{site} = {value!r}"
            lost = Counter(_comments(before)) - Counter(_comments(text))
            assert not lost, f"{site} = {value!r} loses {list(lost)}"

    def test_a_change_stays_in_its_function_and_the_task(self) -> None:
        """Tests that no other kernel changes, and no helper of one. Helpers of the site's kernel alone may change."""
        for before, site, value, text in self._changes():
            source = Source("task.py", before)
            shared = source.called_by(source.kernels.keys() - {site.kernel})
            kernels = set(source.tile_code) - (source.called_by([site.kernel]) - shared)
            old, new = _functions(before), _functions(text)
            names = {name for name in old if new.get(name) != old[name]}
            assert not (names & kernels) - {site.kernel}, f"{site} = {value!r} changes {names}"
            for statement in _top(before) - _top(text):
                assert TASK_STATEMENTS.search(statement) or self.allows(site, statement), statement

    def test_what_it_writes_fits_into_120_columns(self) -> None:
        for before, site, value, text in self._changes():
            short = with_short_lines(before, text)
            assert ast.dump(ast.parse(short)) == ast.dump(ast.parse(text)), f"{site} = {value!r}"
            written = set(short.splitlines()) - set(before.splitlines())
            assert not [line for line in written if len(line) > LIMIT], f"{site} = {value!r}"

    def test_a_site_of_another_source_is_refused(self) -> None:
        for text in self.examples.values():
            source = Source("task.py", text)
            for site in self._sites(text):
                foreign = replace(site, line=site.line + 10_000, column=site.column + 77)
                try:
                    self.entry.apply(source, foreign, site.values_to_try()[0])
                except NotApplicable as reason:
                    assert str(reason)
                else:
                    raise AssertionError(f"{foreign} is not refused")

    def test_what_was_done_is_not_offered_again(self) -> None:
        """Tests that the entry does not offer a value that the source already has."""
        for before, site, value, text in self._changes():
            if value not in (site.values_to_try()[0], site.values_to_try()[-1]):
                continue
            task = self._loaded(text)
            if task is None:
                continue
            changed = Source("task.py", text)
            for again in self.entry.sites(changed, replace(self._facts(before), task=task)):
                for other in again.values_to_try():
                    assert self.entry.apply(changed, again, other) != text, f"{site} = {value!r}, then {again}"

    def test_every_change_loads_as_a_task(self) -> None:
        for _, _, _, text in self._changes():
            self._loaded(text)

    @classmethod
    @cache
    def _changes(cls) -> list[tuple[str, Site, Value, str]]:
        """Returns, for each possible change, the text before, the site, the value, and the text after."""
        changes = []
        for before in cls.examples.values():
            source = Source("task.py", before)
            for site in cls._sites(before):
                values = site.values_to_try()
                changes += [(before, site, value, cls.entry.apply(source, site, value)) for value in values]
        return changes

    @classmethod
    @cache
    def _sites(cls, text: str) -> tuple[Site, ...]:
        return tuple(cls.entry.sites(Source("task.py", text), cls._facts(text)))

    @classmethod
    def _facts(cls, text: str) -> KernelFacts:
        return _known_facts(text, cls.board)

    def _loaded(self, text: str) -> Task | None:
        try:
            return _known_task(text)
        except Exception:
            if self.every_value_loads:
                raise
            return None


@cache
def _folder() -> TemporaryDirectory[str]:
    return TemporaryDirectory(prefix="tilewright-entries-")  # kept until the process ends: kernels are read from it


@cache
def _known_facts(text: str, on: Board) -> KernelFacts:
    return facts_of(_known_task(text), on)


@cache
def _known_task(text: str) -> Task:
    return loaded(text, Path(_folder().name))


def _statements(text: str) -> Mapping[str, list[str]]:
    """Maps the syntax tree of each simple statement to its source texts. Later lines keep their indentation."""
    texts: dict[str, list[str]] = defaultdict(list)
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.stmt) and not hasattr(node, "body"):
            texts[ast.dump(node)].append(ast.get_source_segment(text, node) or "")
    return texts


def _comments(text: str) -> list[str]:
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    return [token.string for token in tokens if token.type == tokenize.COMMENT]


def _functions(text: str) -> dict[str, str]:
    return {node.name: ast.dump(node) for node in ast.parse(text).body if isinstance(node, ast.FunctionDef)}


def _top(text: str) -> set[str]:
    body = ast.parse(text).body
    return {ast.unparse(node) for node in body if not isinstance(node, (ast.FunctionDef, ast.Import, ast.ImportFrom))}
