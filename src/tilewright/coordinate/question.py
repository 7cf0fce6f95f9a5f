"""Reads a question: its parts, and which specialists each part names in which role.

A part is a step of the work: "overlap the all-reduce, then apply CUDA graphs" has two. A name does not count in three
cases: it is excluded ("do not use Triton"), it is the source of a conversion ("rewrite my CuTe kernel in Triton"), or
it is only a comparison ("as fast as the Triton version").
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

from tilewright.coordinate import vocabulary as say
from tilewright.coordinate.terms import Words, has, places, words_of
from tilewright.errors import RequestError
from tilewright.specialists.base import Specialist

NEARBY = 3
"""The most words between a name and another word that affects it."""
JOINING = ("and", "or", "nor", "plus", ",", "a", "the")


def refuse_empty(question: str) -> None:
    """Raises RequestError if there is no question."""
    if not question.strip():
        raise RequestError('no question; ask one, for example "speed up train.py"')


@dataclass(frozen=True)
class Mention:
    """One place where a question names a specialist."""

    specialist: Specialist
    begin: int
    end: int


@dataclass(frozen=True)
class QuestionPart:
    """One step of a question."""

    words: Words
    known: tuple[Specialist, ...]
    around: Words
    """The words of the whole question."""

    def says(self, *vocabularies: Iterable[str]) -> bool:
        return any(has(self.words, terms) for terms in vocabularies)

    @cached_property
    def mentions(self) -> tuple[Mention, ...]:
        """The places that name a specialist. Names inside a longer name do not count: "CUDA Tile IR" does not name
        cuTile."""
        found = [
            Mention(specialist, begin, end)
            for specialist in self.known
            for begin, end in places(specialist.names, self.words)
        ]
        inside = {
            one for one in found for other in found
            if other.begin <= one.begin and one.end <= other.end and other.end - other.begin > one.end - one.begin
        }  # fmt: skip
        return tuple(sorted((one for one in found if one not in inside), key=lambda one: (one.begin, one.end)))

    @cached_property
    def converts(self) -> bool:
        return self.says(say.CONVERTING)

    @cached_property
    def excluded(self) -> frozenset[Mention]:
        return frozenset(one for one in self.mentions if self._is_excluded(one))

    @cached_property
    def converted(self) -> tuple[Mention, ...]:
        """The languages from which the part asks to convert."""
        languages = [one for one in self.mentions if one.specialist.writes_kernels and one not in self.excluded]
        if not self.converts:
            return ()
        targets = {one for one in languages if self._before(one, say.INTO) and not self._before(one, ("from",))}
        return tuple(one for one in languages if targets and one not in targets)

    @cached_property
    def compared(self) -> tuple[Mention, ...]:
        if self.says(say.COMPARING):
            return ()
        return tuple(one for one in self.mentions if one.specialist.writes_kernels and self._before(one, say.REFERENCE))

    @cached_property
    def named(self) -> tuple[Specialist, ...]:
        """The specialists that this part asks for, in the order of their names in the text."""
        apart = {*self.excluded, *self.converted, *self.compared}
        found = dict.fromkeys(one.specialist for one in self.mentions if one not in apart)
        return tuple(found) if self.mentions or self.says(say.MEASURING) else self._near

    @property
    def _near(self) -> tuple[Specialist, ...]:
        """The specialists that ambiguous words name.

        Such a word counts only together with words of the domain: kernels for languages, GPUs for other domains.
        """
        beside = {True: self.says(say.KERNEL, say.OPERATION), False: has(self.around, say.GPU)}
        return tuple(each for each in self.known if beside[each.writes_kernels] and has(self.words, each.near))

    def joins(self, names: Sequence[str]) -> bool:
        """Returns whether "and" or a comma joins all places that name these specialists."""
        places_ = [one for one in self.mentions if one.specialist.name in names]
        between = [self.words[one.end : other.begin] for one, other in pairwise(places_)]
        return all(words and all(word.text in JOINING for word in words) for words in between)

    def _before(self, mention: Mention, terms: Iterable[str]) -> bool:
        """Returns whether a term stands before a name: at most `NEARBY` words away, in the same clause, without a name
        between."""
        start = max(0, mention.begin - NEARBY - 1)
        breaks = [at for at in range(start, mention.begin) if self.words[at].ends_clause]
        others = [one.end for one in self.mentions if start < one.end <= mention.begin]
        window = self.words[max([start, *(at + 1 for at in breaks), *others]) : mention.begin]
        return has(window, terms)

    def _is_excluded(self, mention: Mention) -> bool:
        if has(self.words[mention.end : mention.end + 6], say.EXCLUDED_AFTER):
            return True
        clause = _clause(self.words, mention.begin)
        for at in range(clause, mention.begin):
            word, rest = self.words[at], self.words[at + 1 : mention.begin]
            stops = next((end for begin, end in places(say.STOP, self.words, at) if begin == at), None)
            if stops is not None and stops <= mention.begin and self._reaches(stops, mention):
                return True
            if word.text == say.NOT and has(rest, say.CONVERTING):
                return self._before(mention, say.INTO)  # "do not rewrite it in CuTe DSL" keeps the present language
            states = any(one.text in say.STATING for one in self.words[max(clause, at - 3) : at])
            states |= any(one.text in say.STATED for one in rest[:1])
            if word.text == say.NOT and (_only_articles(rest) if states else self._reaches(at + 1, mention)):
                return True
        return False

    def _reaches(self, begin: int, mention: Mention) -> bool:
        """Returns whether an exclusion ("do not use"), which ends at ``begin``, also excludes a later name.

        It does if no new verb begins between them, and names between them are joined by "or".
        """
        between = self.words[begin + 2 : mention.begin]
        if has(between, (*say.WRITING, *say.CONVERTING, *say.ACTING)):
            return False
        earlier = [one.end for one in self.mentions if begin <= one.begin and one.end <= mention.begin]
        return all(
            word.text in ("or", "and", "nor", "a", "the")
            for word in self.words[max(earlier, default=mention.begin) : mention.begin]
        )


def _only_articles(words: Words) -> bool:
    """Returns whether these words are all articles or prepositions.

    They are the words between "is not" and a name, as in "it is not in Triton".
    """
    return all(word.text in ("a", "an", "the", "in", "on", "about") for word in words)


def _clause(words: Words, at: int) -> int:
    """Returns the start of the clause that contains a place."""
    verbs = (*say.WRITING, *say.CONVERTING, *say.ACTING, *say.MEASURING, *say.SPEED)
    for place in range(at - 1, -1, -1):
        word = words[place]
        is_end = word.ends_clause or word.text == "but"
        if is_end or (word.text == "and" and has(words[place + 1 : place + 2], verbs)):
            return place + 1
    return 0


def parts_of(text: str, known: Sequence[Specialist]) -> tuple[QuestionPart, ...]:
    """Splits a question into its steps. Returns one part if there is only one step."""
    words = words_of(text)
    parts = [QuestionPart(words[begin:end], tuple(known), words) for begin, end in _steps(words)]
    return tuple(part for part in parts if part.words)


def _steps(words: Words) -> Iterator[tuple[int, int]]:
    verbs = (*say.WRITING, *say.CONVERTING, *say.ACTING, *say.MEASURING, *say.SPEED)
    begin = 0
    for at, word in enumerate(words):
        follows = words[at + 1 : at + 2]
        if word.text == "then" or word.written in ";.?!\n" or (word.text in ("and", ",") and has(follows, verbs)):
            yield begin, at
            begin = at + 1
    yield begin, len(words)
