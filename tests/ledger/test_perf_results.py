"""``perf_results.md`` as P-18 and F-1 have it: five columns, only appended to, and it reads back."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.made_runs import baseline_iteration, crashed, predicted, raced

from tilewright.errors import StorageError
from tilewright.ledger.perf_results import PerfRow, plain, render, rows, update
from tilewright.ledger.records import Iteration

RUN = (
    baseline_iteration(20.0),
    raced(1, 15.0, 20.0, keep=True),
    raced(2, 16.0, 15.0, keep=False),
    crashed(3),
    raced(4, 12.0, 15.0, keep=True),
)


def parse(text: str) -> tuple[PerfRow, ...]:
    """The table read back by its own rule: cells between bars, a backslash before a bar or a backslash in a cell."""
    lines = [re.findall(r"(?: (?:\\.|[^\\|])* (?=\|))", line) for line in text.split("\n")[2:-1]]
    cells = [[re.sub(r"\\([\\|])", r"\1", cell.strip(" ")) for cell in line] for line in lines]
    return tuple(PerfRow(int(n), *rest) for n, *rest in cells)  # type: ignore[arg-type]


@pytest.mark.parametrize("row", ["|---|---|---|---|---|", "| :--- | :-: | ---: | - | -------- |", "|:-|-:|:-:|-|-|"])
def test_any_alignment_row_is_read_and_stays(tmp_path: Path, row: str) -> None:
    path = update(tmp_path, RUN[:2], measured=True)
    lines = path.read_text().split("\n")
    path.write_text("\n".join([lines[0], row, *lines[2:]]))
    update(tmp_path, RUN, measured=True)
    written = path.read_text().splitlines()
    assert written[1] == row and len(parse(path.read_text())) == len(RUN)
    path.write_text(path.read_text().replace(row, "| a | b | c | d | e |"))
    with pytest.raises(StorageError, match="was changed by somebody else"):
        update(tmp_path, RUN, measured=True)


def test_the_five_columns() -> None:
    """P-18, P-19, F-1."""
    lines = render(rows(RUN, measured=True), measured=True).splitlines()
    assert lines[0] == "| iteration | optimization | latency_ms | correctness | status |"
    assert re.fullmatch(r"\|( ?-+ ?\|){5}", lines[1])
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]
    assert [cell[0] for cell in cells] == ["0", "1", "2", "3", "4"]
    assert cells[0][1] == "baseline"
    assert all(re.fullmatch(r"\d+\.\d{6}", cell[2]) for cell in cells)
    assert [cell[3:] for cell in cells] == [
        ["PASS", "keep"], ["PASS", "keep"], ["PASS", "revert"], ["FAIL", "crash"], ["PASS", "keep"],
    ]  # fmt: skip


def test_a_row_without_a_latency_of_its_own_has_that_of_the_code_that_stands() -> None:
    """A crash is not 0.0 ms: after it the incumbent stands again."""
    wrong = crashed(4)
    table = rows((*RUN[:4], wrong), measured=True)
    assert table[3].latency_ms == table[4].latency_ms == table[1].latency_ms
    assert len({row.latency_ms for row in table[:3]}) == 3


def test_unverified_is_not_a_pass() -> None:
    unverified = Iteration(
        n=1, optimization="x", correctness="unverified", status="revert", reason="", latency_ms=0.001
    )
    row = rows((RUN[0], unverified), measured=True)[1]
    assert (row.correctness, row.latency_ms) == ("FAIL", rows(RUN[:1], measured=True)[0].latency_ms)


def test_no_latency_is_invented() -> None:
    for latency in (None, float("inf"), float("nan"), -1.0):
        nothing = Iteration(
            n=0, optimization="baseline", correctness="PASS", status="keep", reason="", latency_ms=latency
        )
        with pytest.raises(ValueError, match="iteration 0 has no latency"):
            rows([nothing], measured=True)


def test_predicted_times_never_enter_the_measured_file(tmp_path: Path) -> None:
    """K: a predicted gain is never recorded as a measured one."""
    run = [predicted(0, 20.0, keep=True), predicted(1, 10.0, keep=True)]
    path = update(tmp_path, run, measured=False)
    assert path.name == "perf_predicted.md"
    assert "predicted_ms" in path.read_text()
    assert "latency_ms" not in path.read_text()
    assert [row.latency_ms for row in parse(path.read_text())] == ["0.020000", "0.010000"]
    with pytest.raises(ValueError, match="has no latency"):
        update(tmp_path, run, measured=True)
    assert [file.name for file in tmp_path.iterdir()] == ["perf_predicted.md"]


# Append-only


def test_the_file_only_grows(tmp_path: Path) -> None:
    """P-18: never rewrite earlier lines."""
    before = b""
    for n in range(1, len(RUN) + 1):
        path = update(tmp_path / "run", RUN[:n], measured=True)
        after = path.read_bytes()
        assert after.startswith(before)
        assert after.count(b"\n") == n + 2
        assert parse(after.decode()) == rows(RUN[:n], measured=True)
        update(tmp_path / "run", RUN[:n], measured=True)
        assert path.read_bytes() == after
        before = after


def test_whatever_a_kill_left_is_completed(tmp_path: Path) -> None:
    whole = update(tmp_path, RUN, measured=True).read_bytes()
    for length in range(len(whole)):
        folder = tmp_path / "cut"
        folder.mkdir(exist_ok=True)
        (folder / "perf_results.md").write_bytes(whole[:length])
        assert update(folder, RUN, measured=True).read_bytes() == whole


def test_what_somebody_else_wrote_is_left_alone(tmp_path: Path) -> None:
    path = update(tmp_path, RUN[:2], measured=True)
    edited = path.read_text().replace("keep", "revert")
    path.write_text(edited)
    with pytest.raises(StorageError, match=r"perf_results\.md was changed by somebody else; fix: move it away"):
        update(tmp_path, RUN, measured=True)
    assert path.read_text() == edited


# Round trip

texts = st.text(max_size=60) | st.text(alphabet="|\\ ab\n\t`*\u2028\x85\udc80", max_size=12)
latencies = st.floats(min_value=0, max_value=1e9)


@st.composite
def tables(draw: st.DrawFn) -> tuple[PerfRow, ...]:
    found = [PerfRow(0, "baseline", f"{draw(latencies):.6f}", draw(st.sampled_from(["PASS", "FAIL"])), "keep")]
    for n in range(1, draw(st.integers(1, 6))):
        correctness = draw(st.sampled_from(["PASS", "FAIL"]))
        status = draw(st.sampled_from(["keep", "revert", "crash"]))
        found.append(PerfRow(n, plain(draw(texts)), f"{draw(latencies):.6f}", correctness, status))
    return tuple(found)


@given(table=tables(), measured=st.booleans())
def test_a_table_reads_back(table: tuple[PerfRow, ...], measured: bool) -> None:
    """P-18: parser round trip, whatever the optimization is called."""
    text = render(table, measured=measured)
    assert parse(text) == table
    assert len(text.encode().decode().splitlines()) == len(table) + 2


@given(text=texts, latency=latencies)
def test_any_name_of_an_optimization_makes_a_row(text: str, latency: float) -> None:
    named = Iteration(n=1, optimization=text, correctness="PASS", status="revert", reason="", latency_ms=latency)
    table = rows((RUN[0], named), measured=True)
    assert parse(render(table, measured=True)) == table
