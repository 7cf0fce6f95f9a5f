"""The lint rules, one file a subject."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache

from tilewright.errors import RequestError, UnknownChoice
from tilewright.lint.rule import Rule
from tilewright.plugins import plugins


@cache
def rules() -> tuple[Rule, ...]:
    """All rules by their ids: this folder, and the entry points ``tilewright.lint``.

    Raises RequestError for an installed rule that cannot be used.
    """
    found = plugins("tilewright.lint.rules", "RULES", group="tilewright.lint")
    every = [rule for several in found for rule in (several if isinstance(several, tuple) else (several,))]
    for rule in every:
        if not isinstance(rule, Rule) or sum(getattr(other, "name", None) == rule.name for other in every) > 1:
            said = f"a second rule {rule.name}" if isinstance(rule, Rule) else f"a {type(rule).__name__}, not a rule"
            raise RequestError(
                f"an entry point of tilewright.lint names {said}; repair or uninstall the package that brings it"
            )
    return tuple(sorted(every, key=lambda rule: rule.rule_id))


def named(words: Iterable[str]) -> set[Rule]:
    """The rules that words name: names or codes. Raises UnknownChoice, which lists the names."""
    chosen: set[Rule] = set()
    for word in words:
        called = {rule for rule in rules() if rule.is_called(word)}
        if not called:
            raise UnknownChoice("rule", word.strip(), [rule.name for rule in rules()])
        chosen |= called
    return chosen
