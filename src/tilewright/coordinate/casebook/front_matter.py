"""Reads the front matter of a Markdown file, with PyYAML.

Only the YAML words true, false and null have a special meaning, as in JSON. All other words are text: a field may be
called ``on``, and a date is text.
"""

from __future__ import annotations

import re
from typing import Any

import yaml

from tilewright.records import Json

_FENCE = re.compile(r"^(?:---|\.\.\.)[ \t]*$", re.MULTILINE)
_LONGEST = 1 << 20
"""The most characters of a front matter."""
_DEEPEST = 20
_TOO_DEEP = f"more than {_DEEPEST} levels"


class FrontMatterError(ValueError):
    """A front matter that cannot be read. The message is one line with the place."""


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]  # the C parser is ten times as fast
    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012  (PyYAML's own attribute)


for _tag, _words, _first in (
    ("bool", r"(?:true|false)$", "tf"),
    ("null", r"(?:null|~|)$", ["n", "~", ""]),
    ("int", r"-?(?:0|[1-9][0-9]{0,99})$", "-0123456789"),
    ("float", r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]{1,3})?$", "-0123456789"),
):
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(_words), list(_first))


def split(text: str) -> tuple[dict[str, Json], str]:
    """Splits a Markdown text into fields and body. Raises FrontMatterError if the front matter cannot be read."""
    text = text.removeprefix("\ufeff")
    begin = _FENCE.match(text)
    if begin is None or not begin[0].startswith("---"):
        raise FrontMatterError("line 1: no front matter; the file must begin with ---")
    end = _FENCE.search(text, begin.end())
    if end is None:
        raise FrontMatterError(f"line {text.count(chr(10)) + 1}: the front matter has no end (---)")
    written = text[begin.end() : end.start()]  # begins with a line break, so that lines are counted as in the file
    if len(written) > _LONGEST:
        raise FrontMatterError(f"line 1: a front matter of {len(written)} characters")
    try:
        fields = _fields(written)
    except yaml.MarkedYAMLError as error:
        too_deep = "nesting depth" in (error.problem or "")  # a limit of libyaml itself, since PyYAML 6.0.4
        raise _broken(error.problem_mark, _TOO_DEEP if too_deep else error.problem) from error
    except yaml.YAMLError as error:
        raise FrontMatterError(f"line 1: {' '.join(str(error).split())}") from error
    return fields, text[end.end() :].removeprefix("\n")


def _broken(mark: Any, problem: str | None) -> FrontMatterError:
    """Returns the error. ``mark``: the place as PyYAML gives it; None if PyYAML does not know it."""
    return FrontMatterError(f"line {mark.line + 1 if mark else 1}: {problem}")


def _fields(text: str) -> dict[str, Json]:
    depth = 0
    # events first, no tree: libyaml builds a tree by recursion, which may crash
    for event in yaml.parse(text, Loader=_Loader):
        if isinstance(event, yaml.AliasEvent):  # aliases can expand a short text to gigabytes
            raise _broken(event.start_mark, "an alias (*), which a case must not have")
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > _DEEPEST:
            raise _broken(event.start_mark, _TOO_DEEP)
    loader = _Loader(text)
    try:
        node = loader.get_single_node()
        if node is None:
            return {}
        if not isinstance(node, yaml.MappingNode):
            raise _broken(node.start_mark, "the front matter has no fields, 'key: value'")
        _check_keys(node)
        fields: dict[str, Json] = loader.construct_document(node)
        return fields
    finally:
        loader.dispose()


def _check_keys(node: yaml.Node) -> None:
    """Raises FrontMatterError for a key that is not text or occurs twice. Converts all other keys to text."""
    if isinstance(node, yaml.SequenceNode):
        for each in node.value:
            _check_keys(each)
    if isinstance(node, yaml.MappingNode):
        keys: set[str] = set()
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode) or key.value in keys:
                twice = isinstance(key, yaml.ScalarNode)
                problem = f"the field '{key.value}' is there twice" if twice else "a key that is no text"
                raise _broken(key.start_mark, problem)
            keys.add(key.value)
            key.tag = "tag:yaml.org,2002:str"
            _check_keys(value)


def body_of(text: str) -> str:
    """Returns the body of a Markdown text, even if its front matter is malformed."""
    parts = re.split(r"^---\s*$", text, maxsplit=2, flags=re.MULTILINE)
    return parts[2] if len(parts) == 3 and not parts[0].strip() else text
