"""A quotient by a value a row is rounded as a division, by one inverse a row and fused multiply-adds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
from tests.playbook.kit import changed_lines, run_of
from tests.playbook.masked import CAUSAL
from tests.playbook.plain import HALF_PRODUCT, HEAD, NORM, SOFTMAX, applied, launch_facts

from tilewright.playbook.entries.mask_split import ENTRY as SPLIT
from tilewright.playbook.entries.mask_split import TWO_LOOPS
from tilewright.playbook.entries.row_division import ENTRY, INVERSE
from tilewright.source.syntax import Source
from tilewright.testing.entries import H200, EntryContract, codes_of, loaded
from tilewright.tileir.run.arithmetic import _fused
from tilewright.tileir.run.launching import Launcher

ROWS = (
    HEAD
    + """
@ct.kernel
def rows(x, by, y, T: ct.Constant[int]):
    m = ct.bid(0)
    tile = ct.load(x, (m, 0), (T, T)).astype(ct.float32)
    values = ct.load(by, (m,), (T,)).astype(ct.float32)
    out = tile / ct.expand_dims(values, axis=1)
    ct.store(y, (m, 0), ct.astype(out, ct.float16))


task = tw.Task(
    name="rows",
    tensors={
        "x": tw.Tensor(("M", 64), "float32"),
        "by": tw.Tensor(("M",), "float32"),
        "y": tw.Output(("M", 64), "float16"),
    },
    reference=lambda x, by: x / by[:, None],
    launch=lambda x, by, y, M: tw.Launch(rows, (M // 64,), (x, by, y, 64)),
    flops=lambda M: 64 * M,
    serves=lambda M: M % 64 == 0,
    space=tw.Space(constants={}, shipped={}),
    workloads={"rows": {"M": 1024}},
)
"""
)
DIVISOR, QUOTIENT = "ct.expand_dims(values, axis=1)", "    out = tile / ct.expand_dims(values, axis=1)\n"
SUM = "ct.sum(tile, axis=1, keepdims=True)"
STORED, CAST = "    ct.store(y, (m, 0), ct.astype(out, ct.float16))\n", "ct.astype(out, ct.float16)"
ONE_CAST = f"(tile / {DIVISOR}).astype(ct.float16)"
ONE_LINE = ROWS.replace(QUOTIENT, "").replace(CAST, ONE_CAST)
CHOSEN = "ct.where(ct.abs(corrected) < 2.0**64, corrected, product)"
HELPER = """
def shares(part):
    tile = part.astype(ct.float32)
    return (tile / ct.sum(tile, axis=1, keepdims=True)).astype(ct.float16)


@ct.kernel"""
FORMS = {
    "a new axis": ROWS.replace(DIVISOR, "values[:, None]"),
    "reshape": ROWS.replace(DIVISOR, "ct.reshape(values, (T, 1))"),
    "a sum": ROWS.replace(DIVISOR, SUM),
    "a name": ROWS.replace(QUOTIENT, f"    divisor = {DIVISOR}\n    out = tile / divisor\n"),
    "a column": ROWS.replace(DIVISOR, "values[None, :]"),
    "one value": ROWS.replace(DIVISOR, "ct.sum(tile)"),
    "a call": ROWS.replace(QUOTIENT, f"    out = ct.truediv(-tile, {DIVISOR})\n"),
    "one line": ONE_LINE,
    "the same name": ROWS.replace("out", "tile"),
    "a method": ROWS.replace(CAST, "out.astype(ct.float16)"),
    "the output's dtype": ROWS.replace(CAST, "out.astype(y.dtype)"),
    "a helper": ROWS.replace("\n@ct.kernel", HELPER).replace(QUOTIENT, "    out = shares(tile)\n"),
    "a loop": ROWS.replace(QUOTIENT, f"    for n in range(2):\n    {QUOTIENT}    {STORED}").replace(STORED, "", 1),
}
LOOP = "    for n in range(2):\n"
ADDED = "        out = tile * 1.0\n        for k in range(2):\n            out += tile\n"
SUMMED = f"{LOOP}{ADDED}        out = out / {DIVISOR}\n"
FORMS["a sum in a loop"] = ROWS.replace(QUOTIENT + STORED, f"{SUMMED}    {STORED}")
WHOLE = "    whole = ct.load(x, (m, 0), (T, T)).astype(ct.float32)\n"
POSITIVE = np.array([0, 1, 3, 0x7FFFFF, 0x800000, 0x800001, 0x7F7FFFFF, 0x7F800000, 0x7FC00000, 0x3F800000, 0x3F7FFFFF,
                     0x3F800001, 0x5F800000, 0x5F7FFFFF, 0x5F800001, 0x1F800000, 0x1F7FFFFF, 0x33000000, 0x33000001],
                    np.uint32)  # fmt: skip
SPECIAL = np.concatenate([POSITIVE, POSITIVE | 0x80000000]).view(np.float32)
LARGEST = float(np.finfo(np.float32).max)


class TestRowDivision(EntryContract):
    entry = ENTRY
    examples: ClassVar = {"rows": ROWS, "attention": CAUSAL, **FORMS}
    elsewhere: ClassVar = {
        "no quotient": HALF_PRODUCT, "float32": NORM, "another float32": SOFTMAX,
        "a scalar": ROWS.replace(DIVISOR, "3.0"),
        "each its own": ROWS.replace(QUOTIENT, WHOLE + "    out = tile / whole\n"),
        "another rounding": ROWS.replace(
            f"tile / {DIVISOR}", f"ct.truediv(tile, {DIVISOR}, rounding_mode=ct.RoundingMode.APPROX)"
        ),
        "flushed": ROWS.replace(f"tile / {DIVISOR}", f"ct.truediv(tile, {DIVISOR}, flush_to_zero=True)"),
        "bfloat16": FORMS["the output's dtype"].replace('64), "float16")', '64), "bfloat16")'),
        "float64": ROWS.replace('(("M",), "float32")', '(("M",), "float64")'),
    }  # fmt: skip


def hostile() -> dict[str, np.ndarray]:
    """Dividends of 64 × 64 tiles, with a divisor for each row."""
    rng = np.random.default_rng(5)
    anything = rng.integers(0, 2**32, (1024, 65), np.uint32).view(np.float32)
    x, by = anything[:, :64], anything[:, 64]
    by[: 16 * len(SPECIAL) : 16] = SPECIAL
    x[::4, : len(SPECIAL)] = SPECIAL
    by[512:768] = np.ldexp(rng.uniform(1, 2, 256), rng.integers(-149, 128, 256))
    near_zero = rng.integers(-4096, 4096, (256, 64)) * 2.0**-26  # in float16
    x[512:768] = np.clip(near_zero * by[512:768, None].astype(np.float64), -LARGEST, LARGEST)
    pairs = [(a, b) for bits in range(0, 2**10, 8) for a, b in nearly_halfway(bits)]
    a, b = rng.permutation(np.array(pairs, np.float64))[:256].T
    x[768:] = np.ldexp(a[:, None], rng.integers(-12, 12, 64))
    by[768:] = b
    x[768:896], by[768:896] = x[768:896] * 2.0**92, by[768:896] * 2.0**104
    return {"x": x, "by": by}


def nearly_halfway(bits: int) -> Iterator[tuple[int, int]]:
    """Pairs a, b of 24 bits, for which a / b is just beside the middle of two floats. One of these is the middle of two
    numbers of float16, the first of which has these ``bits`` below its first."""
    middle = (2**10 + bits) * 2**13 + 2**12
    for power, beside, rest in product((24, 25), (-1, 1), range(-7, 8, 2)):
        between = 2 * middle + beside
        b = -rest * pow(between, -1, 2**power) % 2**power  # a · 2^power = b · between + rest
        a = (b * between + rest) >> power
        if 2**23 <= a < 2**24 and 2**23 <= b < 2**24:
            yield a, b


def results(text: str, folder: Path) -> np.ndarray:
    """The bits of all quotients in float16; NaN is one number."""
    output = np.frombuffer(run_of(text, folder, "y", hostile())[0], np.float16)
    return np.where(np.isnan(output), np.float16(np.nan), output).view(np.uint16)


@pytest.mark.parametrize("form", ["rows", *FORMS])
def test_the_result_is_equal_to_the_bit(form: str, tmp_path: Path) -> None:
    text = FORMS.get(form, ROWS)
    new = applied(ENTRY, text, tmp_path, INVERSE)
    before = results(text, tmp_path)
    assert np.array_equal(results(new, tmp_path), before) and len(set(before)) > 100


@pytest.mark.parametrize("step", [101, pytest.param(1, marks=pytest.mark.long)])
def test_all_quotients_that_are_nearly_halfway_between_floats(step: int) -> None:
    """Any other pair of mantissas is right by the bound of the error: see the module's docstring."""
    right = [one_correction_is_right(*pairs) for pairs in all_nearly_halfway(step)]
    assert all(map(np.all, right)) and sum(map(len, right)) * step > 69e6


def one_correction_is_right(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    a, b = a.astype(np.float32), b.astype(np.float32)
    inverse = 1 / b
    first = a * inverse
    remainder = _fused((first, b, -a), "f32")
    return np.asarray(_fused((-remainder, inverse, first), "f32") == a / b)


def all_nearly_halfway(step: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yields pairs a, b of 24 bits, for which a · 2^power = b · (an odd number of 25 bits) + rest, with a rest from -7
    to 7: for a power of 24 if a is at least b, and of 25 if it is less. ``step``: takes only one b of so many."""
    for start, factor in product(range(2**23, 2**24, 2**21), (1, 2, 4)):
        odd = np.arange(start // factor + 1, (start + 2**21) // factor, 2 * step, np.uint64)
        inverse = odd  # modulo 2^64, by Newton's iteration
        for _ in range(5):
            inverse = inverse * (2 - odd * inverse)
        for power, rest, wraps in product((24, 25), range(-7, 8, 2), range(2 * factor)):
            modulus = np.uint64(2**power // factor)
            between = np.uint64(rest % 2**64) * (0 - inverse) % modulus + np.uint64(wraps) * modulus
            a = (odd * np.uint64(factor) * between + np.uint64(rest * factor % 2**64)) >> np.uint64(power)
            found = (between >= 2**24) & (between < 2**25) & (a >= 2**23) & (a < 2**24)
            yield a[found], odd[found] * np.uint64(factor)


PARTS = {
    "the scale of large ones": ("ct.where(ct.abs(divisor) > 2.0**64, 2.0**-64,", "ct.where(divisor != divisor, 1.0,"),
    "the scale of small ones": ("(ct.abs(divisor) < 2.0**-64, 2.0**64,", "(divisor != divisor, 1.0,"),
    "the sign": ("-power, power", "power, power"),
    "the correction": (CHOSEN, "product"),
    "the comparison": (CHOSEN, "corrected"),
    "the sign of the remainder": ("-(product * scaled - dividend)", "(dividend - product * scaled)"),
}


@pytest.mark.parametrize("part", PARTS)
def test_no_part_can_be_left_out(part: str, tmp_path: Path) -> None:
    new, (old, other) = applied(ENTRY, ROWS, tmp_path, INVERSE), PARTS[part]
    assert new.count(old) == 1
    assert not np.array_equal(results(new.replace(old, other), tmp_path), results(ROWS, tmp_path))


def test_it_is_readable(tmp_path: Path) -> None:
    new = applied(ENTRY, ROWS, tmp_path, INVERSE)
    assert changed_lines(ROWS, new) == (
        ["out = tile / ct.expand_dims(values, axis=1)"],
        [
            "divisor = ct.expand_dims(values, axis=1)",
            "power = ct.where(ct.abs(divisor) > 2.0**64, 2.0**-64, ct.where(ct.abs(divisor) < 2.0**-64, 2.0**64, 1.0))",
            "scale = ct.where(divisor < 0.0, -power, power)",
            "scaled = divisor * scale",
            "inverse = 1.0 / scaled",
            "dividend = tile * scale",
            "product = dividend * inverse",
            "corrected = -(product * scaled - dividend) * inverse + product",
            f"out = {CHOSEN}",
        ],
    )


def test_names_are_new_and_other_dtypes_keep_the_division(tmp_path: Path) -> None:
    text = ONE_LINE.replace("values", "scale").replace("ct.float16)", "y.dtype)")
    new = applied(ENTRY, text, tmp_path, INVERSE)
    assert "    scale_2 = ct.where(divisor < 0.0, -power, power)\n" in new
    assert f"    quotient = {CHOSEN} if y.dtype == ct.float16 else tile / divisor\n" in new
    assert not ENTRY.sites(Source("task.py", new), launch_facts(new, tmp_path))
    wide = (each.replace('64), "float16")', '64), "float32")') for each in (text, new))
    assert len({codes_of(loaded(each, tmp_path))["rows"].code_hash for each in wide}) == 1


def test_the_compiler_gets_one_division_a_row_and_fused_multiply_adds(tmp_path: Path) -> None:
    texts = [ROWS, applied(ENTRY, ROWS, tmp_path, INVERSE)]
    before, after = (operations(text, tmp_path) for text in texts)
    assert before["divf", 64 * 64] == 1 and not before["fma", 64 * 64]
    assert after["divf", 64] == 1 and after["fma", 64 * 64] == 2 and after["mulf", 64 * 64] == 2
    assert not {name for name, _ in after} & {"addf", "subf"}
    old, new = (codes_of(loaded(text, tmp_path))["rows"] for text in texts)
    assert new.instructions < old.instructions


def operations(text: str, folder: Path) -> Counter[tuple[str, int]]:
    """Counts the operations of the kernel by name and number of elements."""
    task = loaded(text, folder)
    [workload] = task.selected(None)
    runnable = Launcher(task, H200).runnable(task.space.shipped, workload.dims, task.arrays(workload.dims))
    floats = [op for op in runnable.module.entry().walk() if op.name in ("divf", "fma", "mulf", "addf", "subf")]
    return Counter((op.name, int(np.prod(op.tile(None).shape))) for op in floats)


LOADED = "ct.load(y, (m, 0), (T, T)).astype(ct.float32)"
IN_ORDER = "    out = tile\n    for n in range(2):\n        tile = out * 2.0\n    "
OWN_IN_LOOP = f"{LOOP}    {QUOTIENT}    {STORED}".replace("out", "tile")
TOO_LATE = f"    out = tile\n{SUMMED}    {STORED}".replace(LOOP, f"{LOOP}        tile = tile + out\n")
CHANGED_LATER = f"{STORED}    out *= 2.0\n    ct.scatter(y, m, out)\n"
CLOSURE = f"    def wide():\n        return out + 1.0\n{QUOTIENT}    tile = wide()\n"
INSIDE = f"    def part(tile):\n    {QUOTIENT}        return {CAST}\n    ct.store(y, (m, 0), part(values))\n"
MORE, NO_LINE = "used for more than a cast", "no part of a statement on a line of its own"
REFUSED = {
    "another dtype": (ROWS, CAST, "out.astype(ct.bfloat16)", "cast to ct.bfloat16, which is not known to be float16"),
    "no cast": (ROWS, CAST, "out", MORE),
    "used twice": (ROWS, STORED, STORED + STORED.replace("(m, 0)", "(m + 1, 0)"), MORE),
    "read by the next iteration": (ROWS, QUOTIENT, IN_ORDER + QUOTIENT, MORE),
    "read by its own next iteration": (ROWS, QUOTIENT + STORED, OWN_IN_LOOP, MORE),
    "read before its new value": (ROWS, QUOTIENT + STORED, TOO_LATE, MORE),
    "changed after the cast": (ROWS, STORED, CHANGED_LATER, MORE),
    "read by an inner function": (ROWS, QUOTIENT, CLOSURE, "has its own names"),
    "in an inner function": (ROWS, QUOTIENT + STORED, INSIDE, "has its own names"),
    "a lambda": (ROWS, QUOTIENT, f"    wide = lambda: out\n{QUOTIENT}", "has its own names"),
    "another float16": (ROWS, "    m = ", "    float16 = ct.bfloat16\n    m = ", "float16 may be another dtype"),
    "an unknown dtype": (ROWS, ".astype(ct.float32)\n    v", "\n    v", "tile is not known to be a tile of float32"),
    "float64": (ROWS, "(T, T)).", "(T, T)).astype(ct.float64).", "computes in float64"),
    "a condition": (ONE_LINE, ONE_CAST, f"{ONE_CAST} if T > 8 else tile.astype(ct.float16)", NO_LINE),
    "two statements": (ROWS, QUOTIENT, f"{QUOTIENT[:-1]}; m = m + 0\n", NO_LINE),
    "two lines": (ONE_LINE, "(tile / ct", "(tile\n        / ct", "written on several lines"),
    "a load of what is stored": (ONE_LINE, "(tile /", f"({LOADED} /", "may have effects, or read what is stored"),
}


@pytest.mark.parametrize("why", REFUSED)
def test_results_that_could_differ_are_refused(why: str, tmp_path: Path) -> None:
    text, old, new, reason = REFUSED[why]
    source, facts = Source("task.py", text.replace(old, new)), launch_facts(ROWS, tmp_path)
    assert old in text and not ENTRY.sites(source, facts) and reason in ENTRY.why_not(source, facts)


@pytest.mark.parametrize("wide", ["np.float64(1.1)", "np.log2(np.e)", "ct.float64", "ct.float32"])
def test_float64_that_the_function_does_not_show_is_refused(wide: str, tmp_path: Path) -> None:
    factor = "values.astype(WIDE)[:, None]" if wide.startswith("ct") else "WIDE"
    text = ROWS.replace("\n@ct.kernel", f"\nWIDE = {wide}\n\n\n@ct.kernel").replace("tile /", f"tile * {factor} /")
    sites = ENTRY.sites(Source("task.py", text), launch_facts(text, tmp_path))
    assert len(sites) == (wide == "ct.float32")


def test_the_order_of_changes_does_not_matter(tmp_path: Path) -> None:
    first = applied(SPLIT, applied(ENTRY, CAUSAL, tmp_path, INVERSE), tmp_path, TWO_LOOPS)
    last = applied(ENTRY, applied(SPLIT, CAUSAL, tmp_path, TWO_LOOPS), tmp_path, INVERSE)
    assert first == last
    old, new = (text.replace('"S": 500', '"S": 100') for text in (CAUSAL, first))
    assert run_of(old, tmp_path) == run_of(new, tmp_path)
