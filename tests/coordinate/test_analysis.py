"""The analysis format is read strictly (F-7, C-11): round trip, and one line for hostile input."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilewright.coordinate.analysis import LEVELS, Analysis, Recommendation, read_analysis, read_analysis_file
from tilewright.errors import RequestError

SEED = """\
Primary bottleneck: memory-bound
Evidence: Memory bandwidth at 89% of peak, compute at 35%
Recommendations:
1. [High] Enable FlashAttention for self-attention layers
2. [Medium] Apply memory pooling for attention buffers
3. [Low] Consider gradient checkpointing for memory reduction
"""
LINE = st.text(st.characters(codec="utf-8", categories=("L", "N", "P", "S", "Zs")), min_size=1).filter(
    lambda text: text == text.strip() and text.isprintable()
)
ANALYSES = st.builds(
    lambda bottleneck, evidence, items: Analysis(
        bottleneck, evidence, tuple(Recommendation(place, *item) for place, item in enumerate(items, 1))
    ),
    LINE, LINE, st.lists(st.tuples(st.sampled_from(LEVELS), LINE), min_size=1, max_size=12),
)  # fmt: skip


def test_the_example_of_autopilot_is_read() -> None:
    read = read_analysis(SEED)
    assert read.bottleneck == "memory-bound"
    assert read.evidence == "Memory bandwidth at 89% of peak, compute at 35%"
    assert [one.level for one in read.recommendations] == ["High", "Medium", "Low"]
    assert read.recommendations[1].text == "Apply memory pooling for attention buffers"
    assert str(read) == SEED
    assert read_analysis(SEED.replace("\n", "\r\n\r\n")) == read, "empty lines and Windows' line ends are fine"


@given(ANALYSES)
def test_what_is_written_is_read_again(analysis: Analysis) -> None:
    assert read_analysis(str(analysis)) == analysis


@pytest.mark.parametrize(("was", "now", "said"), [
    ("Primary bottleneck:", "Bottleneck:", "a.txt:1: 'Bottleneck: memory-bound', expected 'Primary bottleneck:'"),
    ("memory-bound", "", "a.txt:1: nothing behind 'Primary bottleneck:'"),
    ("Evidence:", "evidence:", "expected 'Evidence:'"),
    ("Recommendations:\n", "", "a.txt:3: '1. [High] Enable FlashAttention"),
    ("Recommendations:", "Recommendations: none", "text behind 'Recommendations:'"),
    ("[High]", "[Very high]", "is not of the form 'N. [High|Medium|Low] text'"),
    ("[High]", "[high]", "is not of the form"),
    ("2. [Medium]", "3. [Medium]", "a.txt:5: recommendation 3 is number 2 in the list; write number 2"),
    ("3. [Low] Consider", "and consider", "'and consider gradient checkpointing"),
    (SEED[SEED.index("1."):], "", "no recommendation; add a line such as"),
    ("89%", "89%\x1b[2J", "a character that cannot be printed"),
    ("89%", "89%\u2028", "a character that cannot be printed"),
    ("1. [High]", "1 [High]", "is not of the form"),
    (SEED, "", "a.txt ends before the line 'Primary bottleneck: …'; write that line"),
])  # fmt: skip
def test_another_form_is_one_line(was: str, now: str, said: str) -> None:
    assert was in SEED
    with pytest.raises(RequestError) as raised:
        read_analysis(SEED.replace(was, now), "a.txt")
    assert said in str(raised.value)
    assert str(raised.value).isprintable()
    assert len(str(raised.value)) < 250


@given(st.text())
def test_any_text_is_an_analysis_or_one_line(text: str) -> None:
    try:
        read_analysis(text)
    except RequestError as error:
        assert len(str(error).splitlines()) == 1


@given(st.lists(st.sampled_from([*SEED.splitlines(), "", "4. [High] x", "Evidence: y", "Recommendations:"])))
def test_lines_in_another_order_are_refused(lines: list[str]) -> None:
    text = "\n".join(lines)
    try:
        read = read_analysis(text)
    except RequestError as error:
        assert len(str(error).splitlines()) == 1
    else:
        assert str(read).splitlines() == [line for line in lines if line]


def test_files_that_are_no_analysis_are_one_line(tmp_path: Path) -> None:
    path = tmp_path / "report.txt"
    for data in (b"\xff\xfe\0", b"\0" * 10, b"x" * ((1 << 20) + 1), SEED.encode("utf-16")):
        path.write_bytes(data)
        with pytest.raises(RequestError) as raised:
            read_analysis_file(path)
        assert "\n" not in str(raised.value)
    for missing in (tmp_path, tmp_path / "none.txt"):
        with pytest.raises(RequestError, match="cannot read"):
            read_analysis_file(missing)
    path.write_text(SEED + "".join(f"{n}. [Low] change {n}\n" for n in range(4, 1002)))
    with pytest.raises(RequestError, match="the most are 1000"):
        read_analysis_file(path)
    path.write_text(SEED)
    assert str(read_analysis_file(path)) == SEED
