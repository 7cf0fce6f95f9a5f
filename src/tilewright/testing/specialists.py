"""Defines the contract of specialists. Inherit `SpecialistContract` in a test file of your specialist.

    class TestSparsity(SpecialistContract):
        specialist = SPECIALIST

The examples of the specialist must be routed to this specialist, not to another installed one. No test needs a GPU.
"""

from __future__ import annotations

from typing import ClassVar

import pytest

from tilewright.coordinate.routing import route
from tilewright.coordinate.terms import term
from tilewright.errors import MachineError, RequestError
from tilewright.specialists import specialists
from tilewright.specialists.base import Need, Specialist
from tilewright.specialists.delegation import Delegation, SpecialistAnswer
from tilewright.specialists.proposal import NoProposal, ProgramProposal

UNRELATED = ("train ticket booking app", "a cute cat", "Why is my Django page slow?", "Explain Rust lifetimes")
"""Questions that no specialist may claim."""


def delegation_to(specialist: Specialist) -> Delegation:
    """Returns a small delegation (a request to the specialist) about a file that does not exist."""
    return Delegation(specialist.name, specialist.examples[0], "one step of no_such_file.py", ("latency in µs",),
                      file="no_such_file.py")  # fmt: skip


class SpecialistContract:
    """Tests one specialist."""

    specialist: ClassVar[Specialist]

    def test_it_has_a_name_and_aliases_of_its_own(self) -> None:
        own = (self.specialist.name, *self.specialist.aliases)
        taken = {name for each in specialists() if each.name != own[0] for name in (each.name, *each.aliases)}
        assert own[0] == own[0].strip().lower() != ""
        assert len(set(own)) == len(own)
        assert not taken & set(own)

    def test_it_says_in_one_line_what_it_does(self) -> None:
        for text in (self.specialist.domain, self.specialist.returns, *self.specialist.examples):
            assert text.strip() == text != ""
            assert "\n" not in text

    def test_its_names_can_be_found_in_a_question(self) -> None:
        for name in (*self.specialist.names, *self.specialist.near):
            assert term(name).words

    def test_its_examples_are_routed_to_it_and_unrelated_questions_are_not(self) -> None:
        known = {each.name: each for each in (*specialists(), self.specialist)}
        assert self.specialist.examples
        for example in self.specialist.examples:
            assert self.specialist.name in route(example, known=tuple(known.values())).specialists, example
        for question in UNRELATED:
            assert self.specialist.name not in route(question, known=tuple(known.values())).specialists, question

    def test_it_says_what_it_needs_and_whether_that_is_here(self) -> None:
        for need in self.specialist.needs():
            assert isinstance(need, Need)
            assert need.what and need.detail
            assert "\n" not in need.what + need.detail

    def test_what_it_cannot_do_is_one_line(self) -> None:
        """Tests that an impossible delegation ends with a one-line reason. The delegation names a file that does not
        exist."""
        with pytest.raises((MachineError, RequestError)) as raised:
            assert isinstance(self.specialist.answer(delegation_to(self.specialist)), SpecialistAnswer)
        assert str(raised.value) and "\n" not in str(raised.value)

    def test_what_it_proposes_is_a_proposal_or_a_reason(self) -> None:
        """Tests that the answer is a proposal or a reason. The delegation names a file that does not exist."""
        try:
            proposed = self.specialist.propose(delegation_to(self.specialist))
        except (MachineError, RequestError) as error:
            assert str(error) and "\n" not in str(error)
            return
        if isinstance(proposed, NoProposal):
            assert proposed.reason and "\n" not in proposed.reason + proposed.evidence
        for each in () if isinstance(proposed, NoProposal) else proposed:
            assert isinstance(each, ProgramProposal)
