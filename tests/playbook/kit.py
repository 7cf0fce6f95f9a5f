"""The conformance kit of playbook entries: the tests of an entry inherit `EntryContract`.

    class TestOccupancy(EntryContract):
        entry = occupancy.ENTRY
        examples: ClassVar = {"scale": SCALE}        # task files in which the entry finds at least one site
        elsewhere: ClassVar = {"hinted": HINTED}     # task files in which it finds none

The laws hold for each site and value that the entry offers in its examples. What the new text says is for the
entry's own tests, as is one that the result is still right: `loaded`, `facts_of` and `verdict` help there.
"""

from __future__ import annotations

import ast
import hashlib
import io
import re
import tokenize
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

import pytest

from tilewright.compile.compile import Unit, compile_all
from tilewright.hardware.architectures import Board, board
from tilewright.inspect.work import CountedWork, bound_of, count
from tilewright.playbook.base import Entry, KernelFacts, NotApplicable, Site
from tilewright.records import Checked, MachineCode, Value
from tilewright.source.syntax import Source
from tilewright.task.loading import load_task
from tilewright.task.task import Task
from tilewright.verify.quick import QuickChecker

H200 = board("H200")
KINDS = {"memory", "balanced", "compute"}
TASK_STATEMENTS = re.compile(r"\b(Task|Space)\(")


# Helpers for the tests of an entry ----------------------------------------------------------------


def loaded(text: str, folder: Path) -> Task:
    """The task of a text, from a file of its own: a module is loaded once for each path."""
    name = hashlib.sha256(text.encode()).hexdigest()[:12]
    path = folder / f"task_{name}.py"
    path.write_text(text)
    return load_task(str(path))


def codes_of(task: Task, on: Board = H200) -> dict[str, MachineCode]:
    """The machine code of the shipped configuration, by workload; fails where it does not compile."""
    units = [Unit(workload, task.space.shipped, on) for workload in task.selected(None)]
    compiled = compile_all(task, units)
    codes = {one.unit.workload.name: one.code for one in compiled}
    for workload, code in codes.items():
        assert isinstance(code, MachineCode), f"{workload}: {code}"
    return codes  # type: ignore[return-value]


def facts_of(task: Task, on: Board = H200) -> KernelFacts:
    """What the loop would know of an incumbent with this task."""
    workloads = task.selected(None)

    @cache
    def counted(name: str) -> CountedWork:
        return count(task, task.workload(name), on)

    return KernelFacts(
        task=task,
        board=on,
        workloads=workloads,
        bounds={one.name: bound_of(task, one, on) for one in workloads},
        codes=codes_of(task, on),
        count=lambda workload: counted(workload.name),
    )


def verdict(task: Task, on: Board = H200) -> Checked:
    """What the interpreter says of the shipped configuration on the first workload that is not correct."""
    verdicts = QuickChecker(task, on, seed=7)
    try:
        said = [verdicts.of(workload, task.space.shipped) for workload in task.selected(None)]
    finally:
        verdicts.close()
    return next((one for one in said if one.verdict != "correct"), said[0])


def only(sites: Any, what: str = "") -> Site:
    """The one site whose words contain ``what``."""
    found = [site for site in sites if what in site.what]
    assert len(found) == 1, f"{what!r}: {[str(site) for site in sites]}"
    return found[0]


def values_of(site: Site) -> tuple[Value, ...]:
    """What may be put there, searched for where the entry leaves that until the site is tried."""
    return site.search() if site.search is not None else site.values


def changed_lines(old: str, new: str) -> tuple[list[str], list[str]]:
    """The lines that only the old text has, and those that only the new one has, without their indentation."""
    before, after = Counter(_lines(old)), Counter(_lines(new))
    return list((before - after).elements()), list((after - before).elements())


def _lines(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines() if line.strip()]


# The contract -------------------------------------------------------------------------------------


class EntryContract:
    """What every entry keeps to, whatever it changes."""

    entry: ClassVar[Entry]
    examples: ClassVar[Mapping[str, str]]
    elsewhere: ClassVar[Mapping[str, str]] = {}
    board: ClassVar[Board] = H200
    every_value_loads: ClassVar[bool] = True
    """False where an entry cannot know, without loading it, whether a value makes a task."""

    @pytest.fixture
    def example(self, request: pytest.FixtureRequest) -> str:
        """The text of one example; `pytest_generate_tests` puts their names here."""
        return self.examples[request.param]

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        if "example" in metafunc.fixturenames:
            metafunc.parametrize("example", list(self.examples), indirect=True)

    def facts(self, text: str, folder: Path) -> KernelFacts:
        """KernelFacts are asked for once for each text and board: they cost compilations."""
        key = (text, self.board.name)
        if key not in _FACTS:
            _FACTS[key] = facts_of(loaded(text, folder), self.board)
        return _FACTS[key]

    def changes(self, text: str, folder: Path) -> Iterator[tuple[Site, Value, str]]:
        source = Source("task.py", text)
        for site in self.entry.sites(source, self.facts(text, folder)):
            for value in values_of(site):
                yield site, value, self.entry.apply(source, site, value)

    def test_it_says_what_it_is(self) -> None:
        about = self.entry.about
        for words in (about.id, about.name, about.what, about.when, about.when_not, about.effect.source):
            assert words.strip() == words and words, about
        assert re.fullmatch(r"\d{4}-\d\d(-\d\d)?", about.effect.date), about.effect
        assert 0 < about.effect.low <= about.effect.high
        assert about.risk in ("lossless", "lossy")
        assert set(about.priority) <= KINDS and all(place >= 1 for place in about.priority.values())

    def test_it_finds_sites_that_have_values_and_words(self, example: str, tmp_path: Path) -> None:
        source = Source("task.py", example)
        sites = self.entry.sites(source, self.facts(example, tmp_path))
        assert sites
        assert len(set(sites)) == len(sites)
        lines = len(example.splitlines())
        for site in sites:
            values = values_of(site)
            assert values and len(set(map(repr, values))) == len(values), site
            assert site.what and "\n" not in site.what and 1 <= site.line <= lines and site.promise > 0, site

    def test_it_finds_none_elsewhere(self, tmp_path: Path) -> None:
        for name, text in self.elsewhere.items():
            sites = self.entry.sites(Source("task.py", text), self.facts(text, tmp_path))
            assert not sites, f"{name}: {[str(site) for site in sites]}"

    def test_the_same_source_has_the_same_sites(self, example: str, tmp_path: Path) -> None:
        facts = self.facts(example, tmp_path)
        first = self.entry.sites(Source("task.py", example), facts)
        assert self.entry.sites(Source("other.py", example), facts) == first

    def test_a_change_is_python_and_a_change(self, example: str, tmp_path: Path) -> None:
        for site, value, text in self.changes(example, tmp_path):
            ast.parse(text)
            assert text != example, f"{site} = {value!r} changes nothing"

    def test_what_is_not_changed_stays_as_it_was_written(self, example: str, tmp_path: Path) -> None:
        """A statement that means the same after the change has the same text, and no comment is lost."""
        before = _statements(example)
        for site, value, text in self.changes(example, tmp_path):
            after = _statements(text)
            for meaning in before.keys() & after.keys():
                assert set(before[meaning]) >= set(after[meaning]), f"{site} = {value!r}"
            lost = Counter(_comments(example)) - Counter(_comments(text))
            assert not lost, f"{site} = {value!r} loses {list(lost)}"

    def test_a_change_stays_in_its_function_and_the_task(self, example: str, tmp_path: Path) -> None:
        source = Source("task.py", example)
        kernels = set(source.tile_code)
        for site, value, text in self.changes(example, tmp_path):
            names = {name for name in _functions(example) if _functions(text).get(name) != _functions(example)[name]}
            assert not (names & kernels) - {site.kernel}, f"{site} = {value!r} changes {names}"
            for meaning in _top(example) - _top(text):
                assert TASK_STATEMENTS.search(meaning) or self._allows(site, meaning), meaning

    def _allows(self, site: Site, statement: str) -> bool:
        """Statements at the top of a file that may change besides functions and the task; entries that
        change constants of the module say so here."""
        return False

    def test_a_site_of_another_source_is_refused(self, example: str, tmp_path: Path) -> None:
        source = Source("task.py", example)
        for site in self.entry.sites(source, self.facts(example, tmp_path)):
            foreign = replace(site, line=site.line + 10_000, column=site.column + 77)
            with pytest.raises(NotApplicable, match="."):
                self.entry.apply(source, foreign, values_of(site)[0])

    def test_what_was_done_is_not_offered_again(self, example: str, tmp_path: Path) -> None:
        """In the changed source no site offers what stands there already."""
        facts = self.facts(example, tmp_path)
        for site, value, text in self.changes(example, tmp_path):
            if value not in (values_of(site)[0], values_of(site)[-1]):
                continue
            task = self._loaded(text, tmp_path)
            if task is None:
                continue
            changed = Source("task.py", text)
            for again in self.entry.sites(changed, replace(facts, task=task)):
                for other in values_of(again):
                    assert self.entry.apply(changed, again, other) != text, f"{site} = {value!r}, then {again}"

    def test_every_change_loads_as_a_task(self, example: str, tmp_path: Path) -> None:
        for _, _, text in self.changes(example, tmp_path):
            self._loaded(text, tmp_path)

    def _loaded(self, text: str, folder: Path) -> Task | None:
        try:
            return loaded(text, folder)
        except Exception:
            if self.every_value_loads:
                raise
            return None


_FACTS: dict[tuple[str, str], KernelFacts] = {}


def _statements(text: str) -> Mapping[str, list[str]]:
    """Meaning of each statement that holds no other → its texts. The lines after the first keep their indentation."""
    found: dict[str, list[str]] = defaultdict(list)
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.stmt) and not hasattr(node, "body"):
            found[ast.dump(node)].append(ast.get_source_segment(text, node) or "")
    return found


def _comments(text: str) -> list[str]:
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    return [token.string for token in tokens if token.type == tokenize.COMMENT]


def _functions(text: str) -> dict[str, str]:
    return {node.name: ast.dump(node) for node in ast.parse(text).body if isinstance(node, ast.FunctionDef)}


def _top(text: str) -> set[str]:
    """Statements at the top of the file that are neither functions nor imports."""
    body = ast.parse(text).body
    return {ast.unparse(one) for one in body if not isinstance(one, (ast.FunctionDef, ast.Import, ast.ImportFrom))}
