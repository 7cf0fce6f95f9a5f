"""The front matter of casebooks, and one line for what is broken in it."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilewright.coordinate.casebook.front_matter import FrontMatterError, body_of, split

CASE = """---
id: case-a   # a comment
measured:
  - metric: speed-up
    value: 1.5
    run_ref: "x#/rows/0"
  - metric: 'it''s'
    value: 3
signals: [a b, "c, d", 'e']
knobs:
- one
- two: 2
nested:
  depends-on: [x]
  empty:
long: >
  first
  second
flow: {a: 1, b: "x"}
none: ~
yes: true
since: 2026-11-22
---
# Body

--- not the end
"""


def test_a_case() -> None:
    fields, body = split(CASE)
    assert fields == {
        "id": "case-a",
        "measured": [{"metric": "speed-up", "value": 1.5, "run_ref": "x#/rows/0"}, {"metric": "it's", "value": 3}],
        "signals": ["a b", "c, d", "e"],
        "knobs": ["one", {"two": 2}],
        "nested": {"depends-on": ["x"], "empty": None},
        "long": "first second\n",
        "flow": {"a": 1, "b": "x"},
        "none": None,
        "yes": True,
        "since": "2026-11-22",
    }
    assert body.startswith("# Body") and "--- not the end" in body


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "line 1: no front matter"),
        ("# A title", "line 1: no front matter"),
        ("---\na: 1\n", "has no end"),
        ("---\na: 1\na: 2\n---\n", "line 3: the field 'a' is there twice"),
        ("---\nwords\n---\n", "line 2: the front matter has no fields"),
        ("---\n- a\n---\n", "line 2: the front matter has no fields"),
        ("---\na: [1, 2\n---\n", r"line 3: did not find expected ',' or ']'"),
        ('---\na: "open\n---\n', "line 3: found unexpected end"),
        ("---\na: 1\n   b: 2\n---\n", "line 3: mapping values are not allowed"),
        ("---\na:\n\t- b\n---\n", "line 3: found character that cannot start"),
        ("---\na: &x [1]\nb: *x\n---\n", r"an alias \(\*\)"),
        ("---\na: !!python/object:os.system x\n---\n", "could not determine a constructor"),
        ("---\n[a, b]: 1\n---\n", "a key that is no text"),
        ("---\na: 1\n--- b\n---\n", "another document"),
        ("---\na: \x07\n---\n", "control characters"),
        ("---\na: " + 30_000 * "[" + 30_000 * "]" + "\n---\n", "more than 20 levels"),
        ("---\na: " + (1 << 20) * "x" + "\n---\n", "a front matter of"),
    ],
)
def test_what_is_broken_is_one_line(text: str, why: str) -> None:
    with pytest.raises(FrontMatterError, match=why) as error:
        split(text)
    assert "\n" not in str(error.value)


def test_the_body_of_a_broken_one() -> None:
    assert body_of("---\nwords\n---\n# Body\n").strip() == "# Body"
    assert body_of("# Only a body") == "# Only a body"


SCALARS = st.one_of(
    st.integers(-(10**9), 10**9), st.booleans(), st.none(),
    st.text("abc def,:#[]'", min_size=1, max_size=12).filter(lambda text: '"' not in text),
)  # fmt: skip


@given(st.dictionaries(st.from_regex(r"[a-z][a-z_]{0,8}", fullmatch=True), SCALARS | st.lists(SCALARS, max_size=4)))
def test_what_is_written_is_read(fields: dict[str, object]) -> None:
    def written(value: object) -> str:  # as JSON, which YAML contains
        if isinstance(value, list):
            return f"[{', '.join(map(written, value))}]"
        if isinstance(value, str):
            return f'"{value}"'
        return json.dumps(value)

    text = "".join(f"{name}: {written(value)}\n" for name, value in fields.items())
    assert split(f"---\n{text}---\nbody")[0] == fields


@given(st.text("ab:-[]{}'\"\n\t #", max_size=60))
def test_any_text_is_read_or_one_line(text: str) -> None:
    try:
        split(f"---\n{text}\n---\n")
    except FrontMatterError as error:
        assert "\n" not in str(error)
