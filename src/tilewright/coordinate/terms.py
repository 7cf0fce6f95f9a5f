"""Splits a string into words, and finds terms of a vocabulary among them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

_WORD = re.compile(r"[A-Za-z0-9µ]+|[,;:!?()]|\.(?=\s|$)|\n")
_VERBS = "do|does|did|is|are|was|were|has|have|had|would|should|could|must"
_NEGATED = re.compile(rf"\b(?:(can)(?:not|['’]t)|({_VERBS})n['’]?t)\b", re.IGNORECASE)
_BREAK = frozenset(",;:!?().\n")
_EXACT = "="
NUMBER = "#"
NUMBERS = frozenset({
    "two", "three", "four", "five", "six", "seven", "eight", "sixteen", "several", "multiple", "many", "all", "both",
    "other", "every",
})  # fmt: skip


@dataclass(frozen=True)
class Word:
    """One word, or a punctuation mark that ends a clause."""

    text: str
    """The word in lower case."""
    written: str

    @property
    def ends_clause(self) -> bool:
        return self.written in _BREAK


Words = tuple[Word, ...]
_FOLDERS = re.compile(r"(?<![^\s\"'`(])(?:~|\.{1,2})?/\S*/(?=\S)")
"""The folders of a path that begins with ``/``, ``./``, ``../`` or ``~/``."""


def words_of(text: str) -> Words:
    """Splits a string into words. Hyphens, underscores, slashes and dots also separate words. "don't" becomes "do not".

    The folders above a file say nothing about a question, so they are left out: a file in ``/home/me/ci`` is not about
    CI. The folders of a path such as ``ops/cutile/softmax.py`` are words.
    """
    text = _NEGATED.sub(r"\1\2 not", _FOLDERS.sub("", text))
    return tuple(Word(found.lower(), found) for found in _WORD.findall(text))


@dataclass(frozen=True)
class Term:
    """A sequence of words to search for. `specialists.base.Specialist.names` describes the notation."""

    words: tuple[str, ...]
    is_exact: bool
    is_prefix: bool

    def ends_at(self, words: Sequence[Word], start: int) -> int | None:
        """Returns the index after the term if the term begins at ``start``; else None."""
        end = start + len(self.words)
        if end > len(words):
            return None
        if self.is_exact:
            return end if words[start].written == self.words[0] else None
        *first, last = self.words
        if not all(_is(words[start + place].text, word) for place, word in enumerate(first)):
            return None
        found = words[end - 1].text
        whole = found in (last, last + "s", last + "es")
        return end if whole or (self.is_prefix and found.startswith(last)) else None


def _is(text: str, word: str) -> bool:
    return text == word or (word == NUMBER and (text in NUMBERS or (text.isdigit() and int(text) > 1)))


@lru_cache(maxsize=4096)
def term(text: str) -> Term:
    """Parses the notation of one term."""
    if text.startswith(_EXACT):
        return Term((text.removeprefix(_EXACT),), True, False)
    words = tuple(word.text for word in words_of(text.removesuffix("*").removeprefix(NUMBER)))
    words = (NUMBER, *words) if text.startswith(NUMBER) else words
    return Term(words, False, text.endswith("*"))


@lru_cache(maxsize=256)
def _indexed(terms: tuple[str, ...]) -> tuple[Mapping[str, Sequence[Term]], Sequence[Term]]:
    """Returns the terms in two groups: by their first word, and those whose first word can match many words."""
    by_word: dict[str, list[Term]] = {}
    prefixes = []
    for one in map(term, terms):
        first, alone = one.words[0].lower(), len(one.words) == 1
        if one.words[0] == NUMBER or (alone and one.is_prefix):
            prefixes.append(one)
        for form in (first, first + "s", first + "es") if alone else (first,):
            by_word.setdefault(form, []).append(one)
    return by_word, prefixes


def places(terms: Iterable[str], words: Sequence[Word], start: int = 0) -> Iterator[tuple[int, int]]:
    """Yields begin and end of each occurrence of a term. Of the terms that begin at one place, the longest is taken."""
    by_word, prefixes = _indexed(tuple(terms))
    for begin in range(start, len(words)):
        candidates = (*by_word.get(words[begin].text, ()), *prefixes)
        ends = [end for one in candidates if (end := one.ends_at(words, begin)) is not None]
        if ends:
            yield begin, max(ends)


def has(words: Sequence[Word], terms: Iterable[str]) -> bool:
    """Returns whether any of the terms occurs."""
    return next(places(terms, words), None) is not None
