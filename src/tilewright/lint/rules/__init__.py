"""The lint rules, one file for each subject."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache

from tilewright.errors import RequestError, UnknownChoice
from tilewright.lint.rule import Rule
from tilewright.plugins import plugins


@cache
def rules() -> tuple[Rule, ...]:
    """Returns the rules in this folder and the rules of the entry points ``tilewright.lint``, sorted by `rule_id`.

    Raises RequestError if an installed rule cannot be used.
    """
    entries = plugins("tilewright.lint.rules", "RULES", group="tilewright.lint")
    every = [rule for entry in entries for rule in (entry if isinstance(entry, tuple) else (entry,))]
    for rule in every:
        if not isinstance(rule, Rule) or sum(getattr(other, "name", None) == rule.name for other in every) > 1:
            what = f"a second rule {rule.name}" if isinstance(rule, Rule) else f"a {type(rule).__name__}, not a rule"
            fix = "repair or uninstall the package that brings it"
            raise RequestError(f"an entry point of tilewright.lint names {what}; {fix}")
    return tuple(sorted(every, key=lambda rule: rule.rule_id))


def named(words: Iterable[str]) -> set[Rule]:
    """Returns the rules with these names or codes. Raises UnknownChoice for any other word."""
    chosen: set[Rule] = set()
    for word in words:
        matching = {rule for rule in rules() if rule.is_called(word)}
        if not matching:
            raise UnknownChoice("rule", word.strip(), [rule.name for rule in rules()])
        chosen |= matching
    return chosen
