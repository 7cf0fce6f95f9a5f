"""A long scan becomes a scan of short rows and a scan of their sums."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

import pytest
from tests.playbook.kit import changed_lines, verdict
from tests.playbook.plain import HEAD, SCALE_ROWS, applied, launch_facts

from tilewright.ledger.ledger import Ledger
from tilewright.optimize.loop import optimize
from tilewright.playbook.entries.scan import ENTRY
from tilewright.source.syntax import Source
from tilewright.testing.entries import EntryContract, facts_of, loaded

RUNNING = (
    HEAD
    + """
@ct.kernel
def running(x, y, T: ct.Constant[int]):
    row = ct.bid(0)
    values = ct.load(x, (row, 0), (1, T), padding_mode=ct.PaddingMode.ZERO)
    # the sum of all values up to each
    total = ct.cumsum(values, 1)
    ct.store(y, (row, 0), total)


task = tw.Task(
    name="running",
    tensors={"x": tw.Tensor(("M", "N"), "DTYPE"), "y": tw.Output(("M", "N"), "DTYPE")},
    reference=lambda x: np.cumsum(x, 1, dtype=x.dtype),
    launch=lambda x, y, M, N: tw.Launch(running, (M,), (x, y, 1 << (N - 1).bit_length())),
    flops=lambda M, N: M * N,
    independent=("M",),
    space=tw.Space(constants={}, shipped={}),
    workloads={"rows": {"M": 4096, "N": 1000}},
)
"""
)
FLOATS = RUNNING.replace("DTYPE", "float32")
ONE_AXIS = FLOATS.replace(
    "ct.cumsum(values, 1)\n    ct.store(y, (row, 0), total)",
    "ct.cumsum(ct.reshape(values, (T,)))\n    ct.store(y, (row, 0), ct.reshape(total, (1, T)))",
)
NESTED = FLOATS.replace(
    "    total = ct.cumsum(values, 1)\n    ct.store(y, (row, 0), total)",
    "    ct.store(y, (row, 0), 2 * ct.cumsum(values, axis=-1) - values)",
).replace("np.cumsum(x, 1, dtype=x.dtype)", "2 * np.cumsum(x, 1) - x")
GATHERED = (
    FLOATS.replace("    values = ", "    columns = ct.arange(T, dtype=ct.int32)\n    values = ")
    .replace("ct.load(x, (row, 0), (1, T), padding_mode=ct.PaddingMode.ZERO)", "ct.gather(x, (row, columns))")
    .replace(
        "ct.cumsum(values, 1)\n    ct.store(y, (row, 0), total)",
        "ct.cumsum(values)\n    ct.scatter(y, (row, columns), total)",
    )
)
SHORT = FLOATS.replace("1000", "512").replace("independent=", "serves=lambda N: N in (16, 512), independent=")
COLUMNS = FLOATS.replace("(1, T), padding", "(T, 1), padding").replace("values, 1)", "values, 0)")


LARGE = """
def at_the_end(x, large):
    total = np.cumsum(x, 1)
    if x.shape[1] & (x.shape[1] - 1) == 0:
        total[:, -1] = large
    return total


"""


class TestScan(EntryContract):
    entry = ENTRY
    examples: ClassVar = {"rows": FLOATS, "one axis": ONE_AXIS, "nested": NESTED}
    elsewhere: ClassVar = {
        "no scan": SCALE_ROWS,
        "in reverse": FLOATS.replace("values, 1)", "values, 1, reverse=True)"),
        "a custom scan": FLOATS.replace("ct.cumsum(values, 1)", "ct.scan(values, 1, lambda a, b: a + b, 0)"),
    }


def test_a_large_element_does_not_change_the_sums_before_it(tmp_path: Path) -> None:
    """``cumsum(sums) - sums`` would lose the digits of the elements before it, and make NaN of an infinity."""
    for large in ("1e30", "math.inf"):
        text = ONE_AXIS.replace(
            "    # the sum",
            f"    values = ct.where(ct.arange(T, dtype=ct.int32)[None, :] == T - 1, {large}, values)\n    # the sum",
        )
        text = text.replace("lambda x: np.cumsum(x, 1, dtype=x.dtype)", f"lambda x: at_the_end(x, {large})")
        text = text.replace("task =", LARGE + "task =").replace("import numpy", "import math\n\nimport numpy")
        said = verdict(loaded(applied(ENTRY, text, tmp_path, 32), tmp_path))
        assert said.verdict.startswith("correct"), said.reason


def test_rows_are_scanned_and_the_sums_before_them_added(tmp_path: Path) -> None:
    new = applied(ENTRY, FLOATS, tmp_path, 32)
    assert changed_lines(FLOATS, new)[1] == [
        "# rows of 32: each is scanned, and the sum of all rows before it is added",
        "total_rows = ct.reshape(values, (1, max(T // 32, 1), min(T, 32)))",
        "total_sums = ct.sum(total_rows, 2, keepdims=True)",
        "total_pairs = (ct.zeros(total_sums.shape, total_sums.dtype), total_sums)",
        "total_before = ct.scan(total_pairs, 1, lambda a, b, c, d: (b + c, b + d), (0, 0))[0]",
        "total = ct.reshape(ct.cumsum(total_rows, 2) + total_before, (1, T))",
    ]


@pytest.mark.parametrize(
    "text",
    [ONE_AXIS, NESTED, RUNNING.replace("DTYPE", "int32"), RUNNING.replace("DTYPE", "bfloat16"), SHORT],
    ids=["one axis", "nested", "integers", "bfloat16", "rows shorter than those of the scan"],
)
def test_the_interpreter_finds_the_same_results(text: str, tmp_path: Path) -> None:
    said = verdict(loaded(applied(ENTRY, text, tmp_path, 64), tmp_path))
    assert said.verdict.startswith("correct"), said.reason


@pytest.mark.long
def test_the_diagnosis_sees_a_long_scan(tmp_path: Path) -> None:
    """Its shuffles and additions take more time than the bytes of bfloat16; those of the two levels do not."""
    text = GATHERED.replace('"N": 1000', '"N": 4096').replace("@ct.kernel", "@ct.kernel(occupancy=4)")
    text = text.replace('"float32"', '"bfloat16"').replace("(row, columns))", "(row, columns)).astype(ct.float32)")
    text = text.replace("columns), total)", "columns), total.astype(y.dtype))").replace(
        "dtype=x.dtype", "dtype=np.float64"
    )
    before, after = (facts_of(loaded(each, tmp_path)) for each in (text, applied(ENTRY, text, tmp_path, 32)))
    assert before.limits == ("issue slots",) and "issue slots" in ENTRY.about.eases
    assert "issue slots" not in after.limits


@pytest.mark.long
def test_optimize_finds_the_gain_without_a_gpu(tmp_path: Path) -> None:
    """The scan is predicted to be faster, with the best length of a row, and becomes a candidate to confirm."""
    path = tmp_path / "running.py"
    path.write_text(GATHERED.replace('"N": 1000', '"N": 4096'))
    with Ledger(tmp_path / "ledger.db") as ledger:
        done = optimize(str(path), arch="sm_90", only=("scan",), iterations=1, ledger=ledger, seed=1)
    [iteration] = [each for each in done.iterations if each.entry == "scan"]
    assert iteration.correctness == "PASS"
    assert {attempt.value.split(", ")[0] for attempt in iteration.attempts} >= {"32", "64", "128"}
    [(_, name, change)] = done.to_confirm
    assert name == iteration.optimization and change.speedup > 1.1
    assert "+    total_before = ct.scan(" in Path(change.patch).read_text()


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        (COLUMNS, "the scan is not along the last axis of its tile"),
        (FLOATS.replace("values, 1)", "values, 1, flush_to_zero=True)"), "the scan has a flush_to_zero"),
        (FLOATS.replace("values, 1)", "values, 1, reverse=row > 3)"), "the scan is, or may be, in reverse"),
        (FLOATS.replace("total = ct.cumsum(values, 1)", "total = ct.cumsum(values, 1) if T else values"), "own line"),
        (RUNNING.replace("DTYPE", "float16"), "the scan is in float16"),
        (FLOATS.replace('"N": 1000', '"N": 500').replace("<< (", "<< (0 * "), "the scan has 2 elements; from 512 on"),
    ],
    ids=["columns", "flush", "a condition", "in an expression", "float16", "short"],
)
def test_other_scans_say_why_they_stay(changed: str, reason: str, tmp_path: Path) -> None:
    source, facts = Source("task.py", changed), launch_facts(changed, tmp_path)
    assert not ENTRY.sites(source, facts)
    assert reason in ENTRY.why_not(source, facts)
