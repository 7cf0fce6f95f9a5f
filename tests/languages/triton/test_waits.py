"""Reading from PTX where the threads of a block wait."""

from __future__ import annotations

import pytest

from tilewright.languages.triton.waits import WaitsInPtx

STORE, LOAD, WAIT = "@%p1 st.global.b32 [ %rd1 + 0 ], { %r1 };", "ld.global.b32 { %r2 }, [ %rd2 + 0 ];", "bar.sync \t0;"
FIRST, SECOND = ("writes", ("k.py", 7)), ("reads", ("k.py", 9))


def waits(*lines: str, **more: bool) -> WaitsInPtx:
    """The PTX of some instructions: a store stands in line 7, a load in line 9."""
    at = {STORE: ".loc\t1 7 5 // k.py:7:5", LOAD: ".loc\t1 9 5"}
    body = [part for line in lines for part in (at.get(line, ""), line)]
    return WaitsInPtx("\n".join(["$L__BB0_0:", *body, "ret;", '.file\t1 "/home/me/k.py"']), **more)


def test_a_barrier_between_them_orders_them() -> None:
    assert waits(STORE, WAIT, LOAD).between(FIRST, SECOND)
    assert waits(STORE, "barrier.sync 0;", LOAD).between(FIRST, SECOND)


@pytest.mark.parametrize(
    "lines",
    [
        (STORE, LOAD),
        (WAIT, STORE, LOAD, WAIT),
        (STORE, "bar.warp.sync -1;", LOAD),
        (STORE, f"@%p3 {WAIT}", LOAD),
        (STORE, "bar.sync 1, 64;", WAIT, LOAD),
        (STORE, WAIT, "call.uni f, ();", LOAD),
        (STORE, "@%p2 bra $L__BB0_1;", WAIT, "$L__BB0_1:", LOAD),
        ("$L__BB0_1:", LOAD, STORE, "@%p2 bra $L__BB0_1;"),
        (STORE, WAIT, "$L__BB0_1:", LOAD, STORE, "@%p2 bra $L__BB0_1;"),
        ("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%rd1, {%r1, %r2}], [%r3];", WAIT, LOAD),
    ],
)
def test_without_one_on_every_path_they_are_not_ordered(lines: tuple[str, ...]) -> None:
    assert not waits(*lines).between(FIRST, SECOND)


def test_a_barrier_in_a_loop_orders_its_iterations() -> None:
    assert waits("$L__BB0_1:", LOAD, WAIT, STORE, WAIT, "@%p2 bra $L__BB0_1;").between(FIRST, SECOND)
    assert waits(STORE, "bra.uni $L__BB0_1;", LOAD, "$L__BB0_1:", WAIT, LOAD).between(FIRST, SECOND)


LESS = "setp.lt.s32 %p4, %r17, 1;"
SKIPPED = "@%p4 bra $L__BB0_1;", WAIT, "$L__BB0_1:"  # a loop with a barrier that is skipped where %p4 holds


def test_jumps_on_one_predicate_agree() -> None:
    """The loop that waits is skipped only where the later loop, with the second access, is skipped, too."""
    later = "@%p4 bra $L__BB0_2;", LOAD, "$L__BB0_2:"
    assert waits(LESS, STORE, *SKIPPED, *later).between(FIRST, SECOND)
    negated = "@!%p4 bra $L__BB0_3;", "bra.uni $L__BB0_2;", "$L__BB0_3:", LOAD, "$L__BB0_2:"
    assert waits(LESS, STORE, *SKIPPED, *negated).between(FIRST, SECOND)


@pytest.mark.parametrize(
    "lines",
    [
        (LESS, STORE, *SKIPPED, "@!%p4 bra $L__BB0_2;", LOAD, "$L__BB0_2:"),
        (LESS, STORE, *SKIPPED, "@%p5 bra $L__BB0_2;", LOAD, "$L__BB0_2:"),
        (LESS, STORE, *SKIPPED, LESS, "@%p4 bra $L__BB0_2;", LOAD, "$L__BB0_2:"),
        (LESS.replace("%p4", "%p4|%p5"), STORE, *SKIPPED, "@%p4 bra $L__BB0_2;", LOAD, "$L__BB0_2:"),
        (STORE, *SKIPPED, LESS, "@%p4 bra $L__BB0_2;", LOAD, "$L__BB0_2:"),
        ("$L__BB0_3:", LESS, LOAD, STORE, *SKIPPED, "@%p4 bra $L__BB0_3;"),
    ],
)
def test_jumps_that_may_disagree_are_not_ordered(lines: tuple[str, ...]) -> None:
    """The other way, another predicate, a predicate that is computed again or between, or with another one."""
    assert not waits(*lines).between(FIRST, SECOND)


def test_an_access_in_inline_assembly_stands_in_the_line_before_it() -> None:
    inline = "// begin inline asm", ".loc\t1 9 5", "mov.u32 %r2, 0x0;", ".loc\t1 10 5", LOAD.replace("%rd2", "%rd3")
    read = waits(STORE, WAIT, ".loc\t1 9 5", *inline, "// end inline asm", LOAD)
    assert read.between(FIRST, SECOND)
    assert not read.between(FIRST, ("reads", ("k.py", 10)))


def test_a_cluster_or_an_access_that_is_not_there_orders_nothing() -> None:
    assert not waits(STORE, WAIT, LOAD, in_cluster=True).between(FIRST, SECOND)
    assert not waits(STORE, WAIT, LOAD).between(FIRST, ("reads", ("k.py", 8)))
    assert not waits(STORE, WAIT, LOAD).between(("updates", ("k.py", 7)), SECOND)
