"""Defines the contract of program changes. Inherit `ChangeContract` in a test file of your change.

    class TestPersistentWorkers(ChangeContract):
        change = CHANGE
        changed = {"two workers": (BEFORE, AFTER)}     # whole files, before and after
        left = {"no workers": "DataLoader(data)\\n"}    # whole files that the change must not touch

Write your own test that runs both versions of a file and compares their results. No test needs a GPU.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar, get_args

from tilewright.program.changes import changes_for
from tilewright.program.changes.base import Inapplicable, ProgramChange
from tilewright.program.reading.module import ReadModule
from tilewright.testing.rules import ODD


def module_of(text: str) -> ReadModule:
    """Returns ``text`` as a parsed file of a program."""
    return ReadModule(Path("program.py"), text)


class ChangeContract:
    """Tests one change, on files that the change must edit and on files that the change must not touch."""

    change: ClassVar[ProgramChange]
    changed: ClassVar[Mapping[str, tuple[str, str]]]
    left: ClassVar[Mapping[str, str]]

    def test_it_says_what_it_is(self) -> None:
        change = self.change
        assert re.fullmatch(r"[a-z][a-z0-9_]*", change.name)
        for text in (change.about, change.absent):
            assert text.strip() == text != ""
            assert "\n" not in text
        assert change.risk in ("lossless", "lossy")
        assert change.never is None or change.never[0] in get_args(Inapplicable)
        for pattern in (*change.ran, *change.gone):
            re.compile(pattern)

    def test_a_recommendation_can_name_it(self) -> None:
        assert self.change.words or self.change.findings
        for words in self.change.words:
            named = [change.name for change in changes_for(f"Please: {words.replace('*', '')}.")]
            assert self.change.name in named, words

    def test_it_changes_a_text_as_shown_and_nothing_else(self) -> None:
        for name, (before, after) in self.changed.items():
            module = module_of(before)
            assert not module.unreadable, name
            new = self.change.rewrite(module, *self.change.sites(module))
            assert new == after != before, name
            ast.parse(new)

    def test_line_ends_stay(self) -> None:
        for name, (before, after) in self.changed.items():
            module = module_of(before.replace("\n", "\r\n"))
            assert self.change.rewrite(module, *self.change.sites(module)) == after.replace("\n", "\r\n"), name

    def test_sites_are_in_the_text(self) -> None:
        for before, _ in self.changed.values():
            for site in self.change.sites(module_of(before)):
                assert 1 <= site.line <= len(before.splitlines())
                assert site.edits
                assert site.what.strip() == site.what != ""

    def test_what_was_changed_is_not_changed_again(self) -> None:
        for name, (_, after) in self.changed.items():
            assert not self.change.sites(module_of(after)), name

    def test_it_leaves_what_only_looks_like_its_own(self) -> None:
        for name, text in self.left.items():
            assert not module_of(text).unreadable, name
            assert not self.change.sites(module_of(text)), name
            for miss in self.change.near_misses(module_of(text)):
                assert miss.reason.strip() == miss.reason != ""
                assert "\n" not in miss.reason

    def test_it_survives_every_text(self) -> None:
        for text in (*ODD, "\x00", "a = 1\rb = 2", "def f(:"):
            module = module_of(text)
            self.change.sites(module)
            assert isinstance(self.change.present(module), str)
