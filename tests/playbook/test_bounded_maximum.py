"""Attention with capped scores keeps no maximum, and its results are as exact as before, also for hostile values."""

from __future__ import annotations

import re
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
from tests.playbook.kit import changed_lines, run_of
from tests.playbook.masked import CAUSAL, MASK
from tests.playbook.masked_helpers import HELPED
from tests.playbook.plain import NORM, applied, launch_facts

from tilewright.playbook.entries.bounded_maximum import ENTRY, NO_MAXIMUM
from tilewright.playbook.entries.mask_split import ENTRY as SPLIT
from tilewright.playbook.entries.mask_split import THREE_LOOPS
from tilewright.source.syntax import Source
from tilewright.testing.entries import EntryContract, codes_of, loaded
from tilewright.verify.images import storage

LOW = 'LOW = -float("inf")'
CAPPED = (
    CAUSAL.replace("SEEN: ct.Constant[int]", "CAP: ct.Constant[float]")
    .replace("(q, k, v, out, 64,", "(q, k, v, out, CAP,")
    .replace("        # which keys", "        score = ct.tanh(score / CAP) * CAP\n        # which keys")
    .replace("score = q @ k.T", "score = np.tanh(q @ k.T / CAP) * CAP")
    .replace(LOW, "LOW = -1e6\nCAP = 50.0")
    .replace('"S": 500', '"S": 100')
    .replace("float16", "float32")
)
INFINITE = CAPPED.replace("LOW = -1e6", LOW)
INFINITE, CAPPED = (
    text.replace("full((TILE, 1), LOW,", 'full((TILE, 1), -float("inf"),') for text in (INFINITE, CAPPED)
)
NARROW = CAPPED.replace('"float32"', '"float16"')
WIDE = CAPPED.replace("CAP = 50.0", "CAP = 60.0")
BRAIN = CAPPED.replace('"float32"', '"bfloat16"')
POWERS = (
    CAPPED.replace("LOW = -1e6", "LOW = -1e6\nLOG2_E = 1.4426950408889634")
    .replace("ct.exp(score - higher)", "ct.exp2(score * LOG2_E - higher)")
    .replace("keepdims=True))\n        part", "keepdims=True) * LOG2_E)\n        part")
    .replace("ct.exp(highest", "ct.exp2(highest")
)
INNER = HELPED.replace("-1e9", '-float("inf")').replace('"float16"', '"float32"').replace("64, 0, 1, D", "64, 50, 1, D")
INNER = INNER.replace("score = q @ k.T", "score = np.tanh(q @ k.T / 50) * 50")


class TestBoundedMaximum(EntryContract):
    entry = ENTRY
    examples: ClassVar = {
        "a finite mask": CAPPED, "an infinite mask": INFINITE, "powers of two": POWERS, "a helper": INNER
    }  # fmt: skip
    elsewhere: ClassVar = {"no cap": CAUSAL, "no maximum": NORM}


def scores(kind: str, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    q, k = rng.normal(0, 1, (2, 100, 16))
    if kind == "random":
        return q, k
    if kind == "mixed":
        return 40 * q, k
    sign = {"highest": 1, "lowest": -1, "one high": -1}[kind]
    q, k = np.abs(q) * 100, sign * np.abs(k)
    if kind == "one high":
        k[7] *= -1
    return q, k


MASKS = {
    "causal": MASK, "rows without keys": "columns <= rows - 5", "one key": "columns == rows",
    "late keys": "(columns >= 40) & (columns < 100) & (rows >= 0)",
}  # fmt: skip


def both(text: str, folder: Path, given: dict[str, np.ndarray], dtype: str = "float32") -> list[np.ndarray]:
    """The results of the old and of the new form."""
    texts = (text, applied(ENTRY, text, folder, NO_MAXIMUM))
    runs = (run_of(each, folder, given=given)[0] for each in texts)
    return [np.frombuffer(each, storage(dtype)).reshape(100, 16).astype(float) for each in runs]


@pytest.mark.parametrize("text", [CAPPED, INFINITE, POWERS], ids=["finite", "infinite", "powers"])
@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
@pytest.mark.parametrize("kind", ["random", "mixed", "highest", "lowest", "one high"])
def test_the_result_is_as_exact(text: str, mask: str, kind: str, tmp_path: Path) -> None:
    """As the old form where that is a number. Rows without keys are the mean of some values, or no number."""
    rng = np.random.default_rng(3)
    q, k, v = (each.astype(np.float32) for each in (*scores(kind, rng), rng.normal(0, 1, (100, 16))))
    old, new = both(text.replace(MASK, mask, 1), tmp_path, {"q": q, "k": k, "v": v})
    right, seen = exact(q, k, v, mask)
    assert np.isfinite(new[seen]).all()
    known = seen & np.isfinite(old).all(1)
    before = np.abs(old - right)[known].max(initial=0)
    assert np.abs(new - right)[known].max(initial=0) < 2 * before + 1e-6
    np.testing.assert_allclose(new[seen], right[seen], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(new[~seen], old[~seen], rtol=1e-5, atol=1e-6)


def exact(q: np.ndarray, k: np.ndarray, v: np.ndarray, mask: str) -> tuple[np.ndarray, np.ndarray]:
    """The result in float64, and which rows see a key."""
    seen = eval(mask, {"rows": np.arange(100)[:, None], "columns": np.arange(100)})
    score = np.where(seen, np.tanh(q.astype(float) @ k.T.astype(float) / 50) * 50, -1e6)
    part = np.exp(score - score.max(1, keepdims=True))
    return part @ v / part.sum(1, keepdims=True), seen.any(1)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_no_number(value: float, tmp_path: Path) -> None:
    q, k, v = np.random.default_rng(3).normal(0, 1, (3, 100, 16))
    q[5, 3], q[9] = value, value
    old, new = both(CAPPED, tmp_path, {"q": q, "k": k, "v": v})
    np.testing.assert_allclose(new, old, rtol=1e-5, atol=1e-6)
    assert np.isnan(new[9]).any()


@pytest.mark.parametrize("kind", ["random", "mixed", "highest", "lowest", "one high"])
def test_terms_are_rounded_to_bfloat16(kind: str, tmp_path: Path) -> None:
    """By at most 2^-8 each, as the result. The old form rounds all terms but the largest, which is 1."""
    rng = np.random.default_rng(3)
    q, k, v = (
        each.astype(storage("bfloat16")).astype(float) for each in (*scores(kind, rng), rng.normal(0, 1, (100, 16)))
    )
    old, new = both(BRAIN, tmp_path, {"q": q, "k": k, "v": v}, "bfloat16")
    right, size = (exact(q, k, each, MASK)[0] for each in (v, np.abs(v)))
    assert (np.abs(new - right) <= 2**-7 * size + 1e-6).all()
    assert (np.abs(old - right) <= 2**-7 * size + 1e-6).all()


@pytest.mark.parametrize("low", ["-1e6", '-float("inf")'])
@pytest.mark.parametrize("start", ["zeros", "ones"])
def test_blocks_without_keys_keep_their_start(start: str, low: str, tmp_path: Path) -> None:
    """No iteration: 0 / 1, or 0 / 0."""
    text = CAPPED.replace("range(steps)", "range(m * 2)").replace("weight = ct.zeros", f"weight = ct.{start}")
    q, k, v = np.random.default_rng(3).normal(0, 1, (3, 100, 16))
    old, new = both(text.replace("LOW = -1e6", f"LOW = {low}"), tmp_path, {"q": q, "k": k, "v": v})
    np.testing.assert_allclose(new, old, rtol=1e-5, atol=1e-6)
    assert np.isnan(new[:64]).all() if start == "zeros" else not new[:64].any()


@pytest.mark.parametrize(("text", "same"), [(CAPPED, False), (NARROW, True), (WIDE, True)], ids=["", "float16", "60"])
def test_other_launches_keep_the_old_code(text: str, same: bool, tmp_path: Path) -> None:
    """float16, and a cap of 60: the test is one of constants."""
    new = applied(ENTRY, text, tmp_path, NO_MAXIMUM)
    [old_code], [code] = (codes_of(loaded(each, tmp_path)).values() for each in (text, new))
    assert (old_code.code_hash == code.code_hash) == same
    assert code.instructions <= old_code.instructions


def test_the_factor_of_the_sums_is_folded(tmp_path: Path) -> None:
    """64 × 32 scores are 16 maxima in each of 128 threads, and the sums 9 products."""
    before, after = (
        max(codes_of(loaded(text, tmp_path))["keys"].loops, key=lambda loop: loop.mix.get("float32", 0)).mix
        for text in (BRAIN, applied(ENTRY, BRAIN, tmp_path, NO_MAXIMUM))
    )
    assert before["float32"] - after["float32"] > 40
    assert after.get("shuffle and vote", 0) <= before["shuffle and vote"] / 2


def test_helpers_and_copies_of_loops(tmp_path: Path) -> None:
    """After mask_split, too: all loops of the helper change, and its result stays as exact."""
    split = applied(SPLIT, INNER, tmp_path, THREE_LOOPS)
    old, inner, copies = (run_of(text, tmp_path)[0] for text in (INNER, *(
        applied(ENTRY, text, tmp_path, NO_MAXIMUM) for text in (INNER, split)
    )))  # fmt: skip
    assert applied(ENTRY, split, tmp_path, NO_MAXIMUM).count("if bounded:") == 3
    for new in (inner, copies):
        np.testing.assert_allclose(*(np.frombuffer(each, np.float32) for each in (new, old)), rtol=1e-4, atol=1e-5)


def test_the_change_is_readable(tmp_path: Path) -> None:
    _, added = changed_lines(POWERS, applied(ENTRY, POWERS, tmp_path, NO_MAXIMUM))
    assert added == [
        "bounded = 0.0 < CAP * LOG2_E <= 75.0 and k.dtype in (ct.float32, ct.bfloat16)",
        "masked = -112.0 / LOG2_E if bounded else LOW",
        "if bounded and 0 < steps:",
        "higher = ct.zeros(highest.shape, dtype=ct.float32)",
        "fade = ct.exp2(highest - higher)",
        "total = total * fade",
        "weight = weight * fade",
        "highest = higher",
        "score = ct.where(columns <= rows, score, masked)",
        "if bounded:",
        "highest = ct.zeros(highest.shape, dtype=ct.float32)",
        "higher = highest",
        "else:",
    ]


CARRY = "        highest = higher\n"
REFUSED = {
    "no cap": ("* CAP\n", "* ct.load(q, (m, 0), (TILE, 1))\n", "no constant is known to bound"),
    "a sum of scores": ("* CAP\n", "* CAP + score\n", "no constant is known to bound"),
    "a wide cap": ("* CAP\n", "* 80.0\n", "leave no room"),
    "a near mask": ("score, LOW)", "score, -20.0)", "no constant is known to bound"),
    "different masks": ("LOW)\n", "LOW)\n        score = ct.where(rows < 9, score, -1e5)\n", "different numbers"),
    "float16 terms": ("part.astype(k.dtype)", "part.astype(ct.float16)", "may not have the exponents"),
    "a finite start": ('-float("inf"), ct', "-1e9, ct", "does not start at -inf"),
    "a start in float16": ('-float("inf"), ct.float32', '-float("inf"), ct.float16', "does not start at -inf"),
    "a sum in float16": ("HEAD), ct.float32)\n    steps", "HEAD), ct.float16)\n    steps", "total gets another value"),
    "a sum from memory": ("ct.zeros((TILE, HEAD), ct.float32)\n    s", "query * 1.0\n    s", "another value"),
    "the maximum": ("total / weight)", "total / weight + highest)", "highest is read for more"),
    "a sum": ("total / weight)", "total / weight + weight)", "weight is read for more"),
    "a term": ("total / weight)", "total / weight + ct.sum(part))", "part is read outside"),
    "a constant in a sum": ("weight * fade + ct.sum", "weight * fade + 1 + ct.sum", "no sum of terms"),
    "a weight": ("part.astype(k.dtype), values", "(part * score).astype(k.dtype), values", "more than a sum"),
    "no running maximum": (CARRY, "        highest = higher + 0.0\n", ""),
    "an early end": (CARRY, f"{CARRY}        if n > 3:\n            break\n", "no simple loop"),
    "a sum that is not scaled": ("total * fade)", "total)", "total is not scaled"),
    "a wrong order": (CARRY, f"{CARRY}        weight = weight * ct.exp(highest - higher)\n", "after it is assigned"),
    "stored scores": (CARRY, f"{CARRY}        ct.store(out, (m, n), score)\n", "score is read for more"),
    "scores of the last keys": ("total / weight)", "total / weight + ct.max(score))", "score is read outside"),
    "scores of the last tile": ("(TILE, 32), ct.float32))", "(TILE, 32), ct.float32) + score)", "score is read"),
    "a store": (CARRY, f"{CARRY}        ct.store(out, (m, 0), total)\n", "total is more than"),
}  # fmt: skip


@pytest.mark.parametrize(("old", "new", "reason"), REFUSED.values(), ids=REFUSED)
def test_what_it_leaves_alone(old: str, new: str, reason: str, tmp_path: Path) -> None:
    assert old in CAPPED
    refused(CAPPED.replace(old, new, 1), reason, tmp_path)


def refused(text: str, reason: str, folder: Path) -> None:
    source, facts = Source("task.py", text), launch_facts(text, folder)
    assert not ENTRY.sites(source, facts)
    assert re.search(reason, ENTRY.why_not(source, facts))


TWICE = "    if CAUSAL:\n        total, h"
HELPED_REFUSED = {
    "another cap": ("2, SEEN, CAP,", "2, SEEN, 40,", "different constants"),
    "a cap that may change": ("2, SEEN, CAP,", "2, SEEN, m + 1,", "is no constant"),
    "the maximum": ("total / weight[:, None])", "total / weight[:, None] + highest[:, None])", "highest is read"),
    "a sum between": (TWICE, f"    weight = weight * 2.0\n{TWICE}", "weight is read for more"),
    "a start between": (TWICE, f"    weight = ct.ones((ROWS,), ct.float32)\n{TWICE}", "weight gets another value"),
    "another target": ("      total, highest, weight = _", "      total, highest, other = _", "does not assign"),
    "other sums": ("    return total, highest, weight", "    return total * 1.0, highest, weight", "does not return"),
}  # fmt: skip


@pytest.mark.parametrize(("old", "new", "reason"), HELPED_REFUSED.values(), ids=HELPED_REFUSED)
def test_what_it_leaves_alone_in_helpers(old: str, new: str, reason: str, tmp_path: Path) -> None:
    assert old in INNER
    refused(INNER.replace(old, new, 1), reason, tmp_path)


BODY = CAPPED[CAPPED.index("    m = ct.bid(0)\n") : CAPPED.index("\n\ndef reference")]
LOOP = BODY[BODY.index("    # over all keys") : BODY.index("    ct.store(out")]
TILES = "    for m in range(ct.bid(0), 2, ct.num_blocks(0)):\n" + "".join(
    f"    {line}\n" for line in BODY.splitlines()[1:] if line
)
FORMS = {
    "a persistent grid": CAPPED.replace(BODY, TILES),
    "two loops": CAPPED.replace(LOOP, LOOP + LOOP),
    "two statements": CAPPED.replace("* fade + ct.sum", "* fade\n        weight += ct.sum"),
    "a call": CAPPED.replace("total / weight", "ct.truediv(total, weight)"),
    "a branch": CAPPED.replace("        score = ct.tanh", "        if CAP > 1.0:\n            score = ct.tanh"),
}


@pytest.mark.parametrize("text", FORMS.values(), ids=FORMS)
def test_other_forms_of_the_loop(text: str, tmp_path: Path) -> None:
    q, k, v = np.random.default_rng(3).normal(0, 1, (3, 100, 16))
    old, new = both(text, tmp_path, {"q": 6 * q, "k": k, "v": v})
    np.testing.assert_allclose(new, old, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("other", "reason"),
    [
        (LOOP.replace("ct.tanh(score / CAP) * CAP", "score * 1.0"), "no constant is known to bound"),
        ("    weight = weight * 0.5\n", "total is read for more than a quotient of two sums"),
    ],
)
def test_all_loops_of_a_sum_change_or_none(other: str, reason: str, tmp_path: Path) -> None:
    refused(CAPPED.replace(LOOP, LOOP + other), reason, tmp_path)


def test_it_changes_nothing_twice(tmp_path: Path) -> None:
    for text in (CAPPED, INNER):
        new = applied(ENTRY, text, tmp_path, NO_MAXIMUM)
        assert not ENTRY.sites(Source("task.py", new), launch_facts(new, tmp_path))
