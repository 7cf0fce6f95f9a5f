"""Finds the cases for a question by searching the whole text of each case. Fields only change the rank of a match.

The rank is BM25 (Robertson and Zaragoza, 2009, with their usual constants). A case matches if it contains enough of the
question's words. Words that occur in few cases have more weight.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from tilewright.coordinate.casebook.case import Precedent

Confidence: TypeAlias = Literal["high", "medium", "low"]

SATURATION, LENGTH = 1.2, 0.75
RANKED_BY = ("signals", "bottleneck", "knobs", "log_markers", "patterns", "architectures")
FIELD_BONUS = 0.15
"""Each word of the question that occurs in a field raises the rank by this share."""
MATCHES, MEDIUM, HIGH = 0.34, 0.5, 0.75
"""The least shares of the question's words, by weight: for a match, for medium confidence, and for high confidence."""
SHOWN = 5

FILE = re.compile(r"[\w./~-]+\.(?:py|ipynb|cu|json|gz|sh|yaml|toml|txt|md)\b", re.IGNORECASE)
_WORD = re.compile(r"[a-z0-9][a-z0-9_.+#]*[a-z0-9+#]|[a-z0-9]")
_STOP = """
    a an and are as at be been but by can could do does for from get gets had has have how i if in into is it its me my
    no not of on or our please should so some than that the their them then there these they this to too try use using
    was we what when where which while who why will with would you your make makes made very much more most help want
    need problem thing things something one two good better best speed up slow slower fast faster quick optimize
    optimise improve performance
"""
STOP = frozenset(_STOP.split())
"""Words that are ignored in a search."""


@dataclass(frozen=True)
class Match:
    """A case that matches a question. ``coverage``: the share of the question's words in the case, by weight."""

    case: Precedent
    confidence: Confidence
    coverage: float
    score: float


def words(text: str) -> list[str]:
    """Returns the stems of the words in a string, without `STOP` words."""
    parts = (part for word in _WORD.findall(text.lower()) for part in {word, *re.split(r"[._]", word)})
    return [stem(word) for word in parts if word and word not in STOP]


def stem(word: str) -> str:
    """Removes the ending of a plural or a verb."""
    for ending, least in (("ations", 4), ("ation", 4), ("ings", 4), ("ing", 4), ("ies", 3), ("ed", 4), ("es", 4)):
        if word.endswith(ending) and len(word) - len(ending) >= least:
            return word[: -len(ending)] + ("y" if ending == "ies" else "")
    plain = word[:-1] if word.endswith("s") and not word.endswith(("ss", "us")) and len(word) > 3 else word
    return plain[:-1] if plain.endswith("e") and len(plain) > 4 else plain


def recall(question: str, cases: Sequence[Precedent], most: int = SHOWN) -> list[Match]:
    """Returns the cases that match a question, the best first.

    A file name in the question says little about what is slow. So a case must also match the question without its file
    names. Only a case that comes from a run may match by a file name.
    """
    asked = list(dict.fromkeys(words(question)))
    plain = [word for word in asked if word in words(FILE.sub(" ", question))]
    texts = [Counter(words(case.text())) for case in cases]
    if not asked or not texts:
        return []
    length = sum(map(sum, (text.values() for text in texts))) / len(texts)
    weight = {word: _weight(sum(word in text for text in texts), len(texts)) for word in asked}
    found = []
    for case, text in zip(cases, texts, strict=True):
        coverage = _covered(asked, text, weight)
        if not case.where.startswith("run "):
            coverage = min(coverage, _covered(plain, text, weight))
        if coverage >= MATCHES:
            score = sum(weight[word] * _often(text[word], sum(text.values()) / length) for word in asked)
            found.append(
                Match(case, _confidence(coverage), coverage, score * (1 + FIELD_BONUS * _in_fields(case, asked)))
            )
    return sorted(found, key=lambda match: (-match.score, match.case.name))[:most]


def _covered(asked: Sequence[str], text: Counter[str], weight: Mapping[str, float]) -> float:
    return sum(weight[word] for word in asked if word in text) / sum(weight[word] for word in asked) if asked else 0.0


def _weight(cases: int, of: int) -> float:
    """Returns the weight of a word that occurs in this number of cases."""
    return math.log(1 + (of - cases + 0.5) / (cases + 0.5))


def _often(count: int, length: float) -> float:
    return count * (SATURATION + 1) / (count + SATURATION * (1 - LENGTH + LENGTH * length))


def _in_fields(case: Precedent, asked: Sequence[str]) -> int:
    """Returns how many words of the question occur in the name or in the fields."""
    fields = (value for name in RANKED_BY for value in getattr(case, name))
    known = set(words(" ".join((case.slug.replace("-", " "), *fields))))
    return sum(word in known for word in asked)


def _confidence(coverage: float) -> Confidence:
    return "high" if coverage >= HIGH else "medium" if coverage >= MEDIUM else "low"
