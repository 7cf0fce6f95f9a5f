"""Branches, loops and waiting, where blocks that run together go different ways: whole programs in the text of
Tile IR against plain Python, one block after the other."""

from __future__ import annotations

import gc
import itertools
import signal
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from tilewright.tileir.read.reader import read
from tilewright.tileir.read.tree import TileModule
from tilewright.tileir.run import control, interpreter
from tilewright.tileir.run.control import Frame
from tilewright.tileir.run.interpreter import IMPLEMENTED, Executed, run
from tilewright.tileir.run.memory import Memory
from tilewright.tileir.run.registry import NeedsData, Unsupported
from tilewright.tileir.run.slicing import needed
from tilewright.tileir.watch.findings import DEADLOCK

I32, PTR, FLAG = "tile<i32>", "tile<ptr<i32>>", "tile<i1>"
BLOCKS = 7
_fresh = itertools.count()


def program(*lines: str, parameters: str = f"%in: {PTR}, %out: {PTR}, %n: {I32}") -> TileModule:
    """A kernel; ``%bx`` is the block's number, ``%0`` … ``%9`` are these numbers."""
    head = [f"%bx, %by, %bz = get_tile_block_id : {I32}"]
    head += [f"%{number} = constant <i32: {number}> : {I32}" for number in range(10)]
    body = "\n".join([*head, *lines])
    return read(f"cuda_tile.module @m {{\nentry @k({parameters}) {{\n{body}\nreturn\n}}\n}}")


def put(value: str, at: str = "%bx", to: str = "%out") -> str:
    p, t = f"%p{next(_fresh)}", f"%t{next(_fresh)}"
    return (
        f"{p} = offset {to}, {at} : {PTR}, {I32} -> {PTR}\n"
        f"{t} = store_ptr_tko weak {p}, {value} : {PTR}, {I32} -> token"
    )


def get(name: str, at: str = "%bx", of: str = "%in", order: str = "weak") -> str:
    p, t = f"%p{next(_fresh)}", f"%t{next(_fresh)}"
    return (
        f"{p} = offset {of}, {at} : {PTR}, {I32} -> {PTR}\n"
        f"{name}, {t} = load_ptr_tko {order} {p} : {PTR} -> {I32}, token"
    )


def op(name: str, what: str, lhs: str, rhs: str) -> str:
    """``addi``, ``muli``, ``remi`` … of two numbers."""
    tail = " signed" if what in ("remi", "maxi") else ""
    return f"{name} = {what} {lhs}, {rhs}{tail} : {I32}"


def compared(name: str, how: str, lhs: str, rhs: str) -> str:
    return f"{name} = cmpi {how} {lhs}, {rhs}, signed : {I32} -> {FLAG}"


def executed(
    module: TileModule, given: Sequence[int] = range(BLOCKS), n: int = 5, size: int = BLOCKS, **options: Any
) -> tuple[list[int], Executed]:
    memory, source, out = Memory(), np.array(given, np.int32), np.full(size, -1, np.int32)
    places = [memory.allocate(name, a, written=True).address for name, a in (("in", source), ("out", out))]
    ran = run(module, [*places, n], options.pop("grid", (BLOCKS,)), memory, **options)
    return out.tolist(), ran


def check(module: TileModule, wanted: Callable[[int], int], given: Sequence[int] = range(BLOCKS)) -> None:
    """``out`` of every block, together, in other orders and one at a time."""
    expected = [wanted(block) for block in range(BLOCKS)]
    for seed in (None, 0, 1):
        out, ran = executed(module, given, seed=seed)
        assert (out, ran.findings, ran.blocks) == (expected, (), BLOCKS)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(interpreter, "BATCH_ELEMENTS", 1)
        assert executed(module, given)[0] == expected


@pytest.mark.long
def test_a_run_leaves_no_values_to_the_garbage_collection() -> None:
    """It is rare, and a run has hundreds of megabytes."""
    gc.collect()
    gc.disable()
    try:
        check(program(compared("%small", "less_than", "%bx", "%3"), "if %small {", put("%7"), "}", put("%bx")), int)
        assert not [each for each in gc.get_objects() if isinstance(each, Frame)]
    finally:
        gc.enable()


# Branches ---------------------------------------------------------------------------------------------


def test_if_without_else_and_with_results() -> None:
    check(
        program(
            compared("%small", "less_than", "%bx", "%3"),
            "if %small {", put("%7"), "}",
            f"%r, %q = if %small -> ({I32}, {I32}) {{", f"yield %bx, %9 : {I32}, {I32}", "} else {",
            op("%w", "muli", "%bx", "%bx"), f"yield %w, %bx : {I32}, {I32}", "}",
            op("%sum", "addi", "%r", "%q"), put("%sum"),
        ),
        lambda block: block + 9 if block < 3 else block * block + block,
    )  # fmt: skip


@pytest.mark.parametrize("limit", [0, 9])
def test_if_that_all_blocks_take_the_same_way(limit: int) -> None:
    check(
        program(compared("%c", "less_than", "%bx", f"%{limit}"), "if %c {", put("%1"), "} else {", put("%2"), "}"),
        lambda block: 1 if block < limit else 2,
    )


def test_branches_merge_views_tokens_and_pointers() -> None:
    view = "tensor_view<7xi32, strides=[1]>"
    tiles = f"partition_view<tile=(1), {view}>"
    made = "make_tensor_view {}, shape = [7], strides = [1] : " + view
    check(
        program(
            compared("%even", "equal", "%bx", "%4"),
            f"%v, %t, %s = if %even -> ({tiles}, token, {PTR}) {{",
            "%m = make_token : token", f"%a = {made.format('%in')}",
            f"%pa = make_partition_view %a : {tiles}", f"yield %pa, %m, %in : {tiles}, token, {PTR}",
            "} else {",
            "%m2 = make_token : token", f"%b = {made.format('%out')}",
            f"%pb = make_partition_view %b : {tiles}", f"yield %pb, %m2, %out : {tiles}, token, {PTR}", "}",
            f"%x, %u = load_view_tko weak %v[%bx] token = %t : {tiles}, {I32} -> tile<1xi32>, token",
            f"%y = reshape %x : tile<1xi32> -> {I32}",
            get("%z", of="%s"), op("%w", "addi", "%y", "%z"), put("%w"),
        ),
        lambda block: 2 * (10 + block) if block == 4 else -2,
        given=range(10, 10 + BLOCKS),
    )  # fmt: skip


def test_some_blocks_return_early() -> None:
    module = program(
        compared("%c", "greater_than", "%bx", "%4"), "if %c {", put("%9"), "return", "}",
        compared("%d", "equal", "%bx", "%0"), "if %d {", "return", "} else {",
        compared("%e", "equal", "%bx", "%1"), "if %e {", "return", "}", "}",
        put("%bx"),
    )  # fmt: skip
    check(module, lambda block: 9 if block > 4 else -1 if block < 2 else block)


def test_all_blocks_return_inside_a_branch() -> None:
    module = program(
        compared("%c", "less_than", "%bx", "%3"), "if %c {", put("%1"), "return", "} else {", put("%2"), "return", "}",
        put("%3"),
    )  # fmt: skip
    check(module, lambda block: 1 if block < 3 else 2)


# Loops ------------------------------------------------------------------------------------------------


def test_nested_loops_with_other_trip_counts_in_each_block() -> None:
    def wanted(block: int) -> int:
        total = 0
        for i in range(block):
            for j in range(i, block, 2):
                total += i * j
        return total

    check(
        program(
            f"%r = for %i in (%0 to %bx, step %1) : {I32} iter_values(%a = %0) -> ({I32}) {{",
            f"%q = for %j in (%i to %bx, step %2) : {I32} iter_values(%b = %a) -> ({I32}) {{",
            op("%ij", "muli", "%i", "%j"), op("%c", "addi", "%b", "%ij"), f"continue %c : {I32}", "}",
            f"continue %q : {I32}", "}", put("%r"),
        ),
        wanted,
    )  # fmt: skip


def test_break_continue_and_return_inside_nested_ifs() -> None:
    def wanted(block: int) -> int:
        total = i = 0
        while True:
            i += 1
            if i > block:
                break
            if i % 3 == block % 3:
                if i == 5:
                    return total
                continue
            total += i * 10
        return total + 1

    module = program(
        f"%r = loop iter_values(%i = %0, %s = %0) : {I32}, {I32} -> {I32} {{",
        op("%k", "addi", "%i", "%1"),
        compared("%over", "greater_than", "%k", "%bx"),
        "if %over {", f"break %s : {I32}", "}",
        op("%k3", "remi", "%k", "%3"), op("%b3", "remi", "%bx", "%3"),
        compared("%same", "equal", "%k3", "%b3"),
        "if %same {",
        compared("%five", "equal", "%k", "%5"),
        "if %five {", put("%s"), "return", "}",
        f"continue %k, %s : {I32}, {I32}", "}",
        "%ten = constant <i32: 10> : tile<i32>",
        op("%more", "muli", "%k", "%ten"), op("%t", "addi", "%s", "%more"),
        f"continue %k, %t : {I32}, {I32}", "}",
        op("%end", "addi", "%r", "%1"), put("%end"),
    )  # fmt: skip
    check(module, wanted)


def test_values_that_a_loop_carries_change_places() -> None:
    def wanted(block: int) -> int:
        a, b = 0, 1
        for _ in range(block):
            a, b = b, a + b
        return a * 8 + b

    module = program(
        f"%a, %b = for %i in (%0 to %bx, step %1) : {I32} iter_values(%x = %0, %y = %1) -> ({I32}, {I32}) {{",
        op("%z", "addi", "%x", "%y"), f"continue %y, %z : {I32}, {I32}", "}",
        op("%m", "muli", "%a", "%8"), op("%r", "addi", "%m", "%b"), put("%r"),
    )  # fmt: skip
    check(module, wanted)


@pytest.mark.parametrize(("start", "end"), [("%5", "%5"), ("%9", "%bx")])
def test_a_loop_that_is_not_entered_gives_what_it_started_from(start: str, end: str) -> None:
    check(
        program(
            f"%r = for %i in ({start} to {end}, step %1) : {I32} iter_values(%a = %bx) -> ({I32}) {{",
            put("%9"), f"continue %i : {I32}", "}", put("%r"),
        ),
        lambda block: block,
    )  # fmt: skip


def counted(element: str, start: int, end: int, step: int, word: str) -> tuple[int, int]:
    """Passes, and the last value of the counter, modulo 2**31."""
    kind = f"tile<{element}>"
    cast = f"%c = trunci %i : {kind} -> {I32}" if element == "i64" else f"%c = bitcast %i : {kind} -> {I32}"
    module = program(
        *(f"%{n} = constant <{element}: {v}> : {kind}" for n, v in (("from", start), ("to", end), ("step", step))),
        f"%r, %l = for {word} %i in (%from to %to, step %step) : {kind}",
        f"iter_values(%a = %0, %o = %0) -> ({I32}, {I32}) {{",
        op("%b", "addi", "%a", "%1"), cast, f"continue %b, %c : {I32}, {I32}", "}",
        put("%r", "%0"), put("%l", "%1"),
    )  # fmt: skip
    out, ran = executed(module, grid=(1,))
    assert not ran.findings
    return out[0], out[1]


def test_a_loop_compares_as_it_is_told() -> None:
    assert counted("i32", -2, 3, 1, "") == (5, 2)
    assert counted("i32", 3, -2, 1 << 30, "unsigned") == (4, 3 + (3 << 30) - (1 << 32))
    assert counted("i32", -2, 3, 1, "unsigned") == (0, 0)
    assert counted("i32", 2**31 - 3, 2**31 - 1, 1, "") == (2, 2**31 - 2), "the counter does not wrap"
    assert counted("i64", 2**63 - 2, 2**63 - 1, 7, "") == (1, -2)
    assert counted("i64", 2**63 - 1, -(2**63) + 1, 1, "unsigned") == (2, 0)


def test_a_step_that_is_not_positive_is_refused() -> None:
    with pytest.raises(Unsupported, match="'for' whose step is not positive"):
        counted("i32", 0, 5, 0, "")


def test_an_endless_loop_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control, "ENDLESS", 50)
    endless = program(put("%3"), "loop {", "continue", "}", put("%4"))
    out, ran = executed(endless)
    (finding,) = ran.findings
    assert (finding.kind, finding.message) == (DEADLOCK, "a loop did not end within 50 iterations")
    assert out == [3] * BLOCKS


def test_a_long_loop_of_one_block_does_not_end_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control, "ENDLESS", 50)
    module = program(
        f"%r = loop iter_values(%i = %0) : {I32} -> {I32} {{", op("%k", "addi", "%i", "%1"),
        compared("%c", "greater_than_or_equal", "%k", "%bx"), "if %c {", f"break %k : {I32}", "}",
        f"continue %k : {I32}", "}", put("%r"),
    )  # fmt: skip
    check(module, lambda block: max(block, 1))


# Blocks that wait for one another ---------------------------------------------------------------------

ORDER = "acquire device"


def locked(release: bool = True) -> TileModule:
    """Each block adds its part of a sum to ``out[0]`` under a lock, which is ``out[1]``."""
    unlock = f"%was, %ut = atomic_rmw_tko release device %lock, xchg, %0 : {PTR}, {I32} -> {I32}, token"
    return program(
        f"%lock = offset %out, %1 : {PTR}, {I32} -> {PTR}",
        "loop {",
        f"%free, %ft = atomic_cas_tko acq_rel device %lock, %0, %1 : {PTR}, {I32} -> {I32}, token",
        compared("%mine", "equal", "%free", "%0"), "if %mine {", "break", "}", "continue", "}",
        get("%part"), get("%before", "%0", "%out", "relaxed device"), op("%sum", "addi", "%before", "%part"),
        put("%sum", "%0").replace("weak", "relaxed device"),
        *([unlock] if release else []),
    )  # fmt: skip


def started(module: TileModule, **options: Any) -> tuple[list[int], Executed]:
    """``in`` is 1 … 7, ``out`` starts from zeros."""
    memory, source, out = Memory(), np.arange(1, BLOCKS + 1, dtype=np.int32), np.zeros(BLOCKS, np.int32)
    places = [memory.allocate(name, a, written=True).address for name, a in (("in", source), ("out", out))]
    ran = run(module, [*places, 0], (BLOCKS,), memory, **options)
    return out.tolist(), ran


@pytest.mark.parametrize("seed", [None, 0, 1, 2, 3])
def test_a_lock_makes_blocks_take_turns(seed: int | None) -> None:
    out, ran = started(locked(), seed=seed)
    assert out[:2] == [BLOCKS * (BLOCKS + 1) // 2, 0]
    assert not ran.findings


def test_a_lock_that_is_not_released_is_a_deadlock() -> None:
    out, ran = started(locked(release=False), seed=None)
    (finding,) = ran.findings
    assert finding.kind == DEADLOCK
    assert finding.message == f"{BLOCKS - 1} blocks wait for one another, and memory no longer changes"
    assert out[0] == 1, "the first block is done"


@pytest.mark.parametrize("seed", [None, 0, 1])
def test_each_block_waits_for_the_one_before(seed: int | None) -> None:
    """A flag for each block: a chain in the order of their numbers, whatever the order in which they start."""
    chain = program(
        op("%before", "subi", "%bx", "%1"),
        compared("%first", "equal", "%bx", "%0"),
        f"%sum = if %first -> ({I32}) {{", f"yield %1 : {I32}", "} else {",
        f"%got = loop : {I32} {{",
        get("%f", "%before", "%out", ORDER), compared("%set", "greater_than", "%f", "%0"),
        "if %set {", f"break %f : {I32}", "}", "continue", "}", f"yield %got : {I32}", "}",
        op("%next", "muli", "%sum", "%2"), put("%next").replace("weak", "release device"),
    )  # fmt: skip
    out, ran = started(chain, seed=seed)
    assert out == [2 ** (block + 1) for block in range(BLOCKS)]
    assert not ran.findings


def after_the_one_before() -> TileModule:
    """Each block stores the number of blocks up to it, when the block before has."""
    return program(
        op("%before", "subi", "%bx", "%1"),
        compared("%first", "equal", "%bx", "%0"),
        f"%sum = if %first -> ({I32}) {{", f"yield %0 : {I32}", "} else {",
        f"%got = loop : {I32} {{",
        get("%f", "%before", "%out", ORDER), compared("%set", "greater_than", "%f", "%0"),
        "if %set {", f"break %f : {I32}", "}", "continue", "}", f"yield %got : {I32}", "}",
        op("%next", "addi", "%sum", "%1"), put("%next").replace("weak", "release device"),
    )  # fmt: skip


@pytest.mark.long
@pytest.mark.parametrize("module", [locked(), after_the_one_before()], ids=["lock", "chain"])
def test_many_blocks_that_wait_do_little_in_vain(module: TileModule, monkeypatch: pytest.MonkeyPatch) -> None:
    """1,024 blocks took 12 s under a lock, and minutes in a chain of random order: each asked again at every turn."""
    operations, executed = itertools.count(), interpreter.Counter.executed

    def counted(*given: Any) -> None:
        next(operations)
        executed(*given)

    monkeypatch.setattr(interpreter.Counter, "executed", counted)
    memory, out = Memory(), np.zeros(1024, np.int32)
    places = [memory.allocate(name, a).address for name, a in (("in", np.ones(1024, np.int32)), ("out", out))]
    ran = run(module, [*places, 0], (1024,), memory, seed=0)
    assert next(operations) <= 32 * 1024, "one turn in the loop to find out, one when the block is woken"
    assert out[0] == 1024 or out.tolist() == list(range(1, 1025))
    assert not ran.findings


@pytest.mark.parametrize("module", [locked(), after_the_one_before()], ids=["lock", "chain"])
def test_the_work_of_blocks_that_wait_grows_with_their_number(module: TileModule) -> None:
    """Of a chain of 1,024 blocks, half the calls looked for the block to wake: each store asked every sleeping one."""

    def calls(blocks: int) -> int:
        counted, memory = itertools.count(), Memory()
        arrays = (("in", np.ones(blocks, np.int32)), ("out", np.zeros(blocks, np.int32)))
        places = [memory.allocate(name, a, written=True).address for name, a in arrays]
        threading.setprofile(lambda frame, event, argument: None if "return" in event else next(counted))
        try:
            run(module, [*places, 0], (blocks,), memory, seed=0)
        finally:
            threading.setprofile(None)  # type: ignore[arg-type]
        return next(counted)

    few, many = calls(128), calls(512)
    assert many <= 4.4 * few and many <= 2200 * 512


def test_an_interrupted_run_leaves_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interpreter, "IDLE_ROUNDS", 1 << 40)  # so that the deadlock lasts
    before = threading.active_count()
    main = threading.main_thread().ident
    assert main is not None and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    interrupts = threading.Timer(0.3, signal.pthread_kill, (main, signal.SIGINT))

    def interrupted() -> None:
        interrupts.start()
        started(locked(release=False))

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    interrupts.join()
    assert threading.active_count() == before


def test_a_failure_in_one_block_ends_the_others() -> None:
    before = threading.active_count()
    module = program(
        compared("%last", "equal", "%bx", "%6"),
        "if %last {", f"%z = for %i in (%0 to %1, step %0) : {I32} iter_values(%a = %0) -> ({I32}) {{",
        f"continue %a : {I32}", "}", "}",
        "loop {", get("%f", "%0", "%out", ORDER), compared("%set", "greater_than", "%f", "%0"),
        "if %set {", "break", "}", "continue", "}",
    )  # fmt: skip
    with pytest.raises(Unsupported, match="step is not positive"):
        started(module)
    assert threading.active_count() == before


def test_too_many_blocks_that_may_wait_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interpreter, "AT_MOST", BLOCKS - 1)
    with pytest.raises(Unsupported, match="7 blocks may wait for one another; the interpreter runs 6"):
        started(locked())


def test_only_a_loop_that_reads_in_an_order_may_wait() -> None:
    assert interpreter.may_wait(locked().entry())
    assert not interpreter.may_wait(program("loop {", get("%a"), "break", "}").entry())
    assert not interpreter.may_wait(program(get("%a", order=ORDER), "loop {", "break", "}").entry())


# Before anything runs ---------------------------------------------------------------------------------


def test_an_unknown_operation_is_refused_before_anything_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    text = f"""
    cuda_tile.module @m {{
      entry @k(%out: {PTR}) {{
        %0 = constant <i32: 1> : {I32}
        %t = store_ptr_tko weak %out, %0 : {PTR}, {I32} -> token
        %c = constant <i1: false> : {FLAG}
        if %c {{ %r = absi %0 : {I32} loc("/here/kernel.py":12:3) }}
        return
      }}
    }}
    """
    monkeypatch.setattr(interpreter, "IMPLEMENTED", IMPLEMENTED - {"absi"})
    memory, out = Memory(), np.zeros(1, np.int32)
    place = memory.allocate("out", out, written=True).address
    with pytest.raises(Unsupported, match=r"^operation 'absi' is not implemented \(kernel.py:12\)$"):
        run(read(text), [place], (1,), memory)
    assert out[0] == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([1, 2], "k takes 3 arguments, not 2"),
        ([1, 2, 3, 4], "k takes 3 arguments, not 4"),
        ([1, 2, 1.5], "float"),
        ([1, 2, "x"], "str"),
        ([1.5, 2, 3], "float"),
        ([1, 2, 1 << 32], "argument %n is 4294967296, which does not fit into 32 bits"),
    ],
)
def test_arguments_that_do_not_fit(arguments: list[Any], message: str) -> None:
    with pytest.raises(TypeError, match=message):
        run(program(), arguments, (1,), Memory())


def test_unsigned_arguments_keep_their_bits() -> None:
    assert executed(program(put("%n")), n=2**32 - 3)[0] == [-3] * BLOCKS


# Order, sample, dry runs ------------------------------------------------------------------------------


def test_the_seed_orders_the_blocks() -> None:
    module = program(f'%t = print_tko "%d", %bx : {I32} -> token')

    def order(seed: int | None, **options: Any) -> list[int]:
        return [int(one.text) for one in executed(module, seed=seed, **options)[1].prints]

    assert order(None) == list(range(BLOCKS))
    assert order(1) == order(1) != order(2)
    assert sorted(order(1)) == list(range(BLOCKS))
    assert order(1, sample=3) == order(1)[:3]
    assert order(None, sample=3) == [0, 1, 2]


def test_a_sample_says_that_it_is_one() -> None:
    module = program(put("%7"))
    out, ran = executed(module, sample=2)
    assert sorted(out) == [-1] * 5 + [7] * 2
    assert (ran.blocks, ran.counts.blocks, ran.counts.grid_blocks, ran.counts.sampled) == (2, 2, BLOCKS, True)
    assert ran.counts.scaled(ran.counts.stored_bytes) == 4 * BLOCKS
    assert not executed(module, sample=100)[1].counts.sampled


REDUCED = (
    "%i = iota : tile<4xi32>",
    "%r = reduce %i dim=0 identities=[0 : i32] : tile<4xi32> -> tile<i32>",
    f"(%e: {I32}, %acc: {I32}) {{", op("%x", "addi", "%e", "%acc"), op("%y", "maxi", "%x", "%e"),
    f"yield %y : {I32}", "}",
)  # fmt: skip

DECIDED = {
    "stores what was loaded": (get("%x"), put("%x")),
    "a loop by the block": (
        f"%r = for %i in (%0 to %bx, step %1) : {I32} iter_values(%a = %bx) -> ({I32}) {{",
        get("%x", "%i"), op("%b", "addi", "%a", "%x"), f"continue %b : {I32}", "}", put("%r"),
    ),
    "an address that a loop carries": (
        f"%r = for %i in (%0 to %3, step %1) : {I32} iter_values(%a = %0) -> ({I32}) {{",
        op("%b", "addi", "%a", "%1"), f"continue %b : {I32}", "}", put("%bx", "%r"),
    ),
    "an address out of a reduction": (*REDUCED, put("%bx", "%r")),
    "a branch on a break": (
        f"%r = loop iter_values(%i = %0) : {I32} -> {I32} {{", op("%k", "addi", "%i", "%1"),
        compared("%c", "greater_than", "%k", "%bx"), "if %c {", f"break %k : {I32}", "}", f"continue %k : {I32}", "}",
        put("%bx", "%r"),
    ),
}  # fmt: skip
UNDECIDED = {
    "a branch on what was loaded": (get("%x"), compared("%c", "equal", "%x", "%1"), "if %c {", put("%1"), "}"),
    "a loop to what was loaded": (
        get("%x"), f"for %i in (%0 to %x, step %1) : {I32} {{", put("%i"), "continue", "}",
    ),
    "an address that was loaded": (get("%x"), put("%1", "%x")),
    "a view at a pointer that was loaded": (
        get("%x"), f"%p = offset %in, %x : {PTR}, {I32} -> {PTR}",
        "%v = make_tensor_view %p, shape = [1], strides = [1] : tensor_view<1xi32, strides=[1]>",
        "%tiles = make_partition_view %v : partition_view<tile=(1), tensor_view<1xi32, strides=[1]>>",
        "%m = make_token : token",
        f"%y, %u = load_view_tko weak %tiles[%0] token = %m : "
        f"partition_view<tile=(1), tensor_view<1xi32, strides=[1]>>, {I32} -> tile<1xi32>, token",
        put("%1"),
    ),
    "an address that a branch brings": (
        compared("%c", "equal", "%bx", "%1"), f"%a = if %c -> ({I32}) {{", get("%x"), f"yield %x : {I32}", "} else {",
        f"yield %0 : {I32}", "}", put("%1", "%a"),
    ),
    "an address that a loop brings": (
        f"%a = for %i in (%0 to %2, step %1) : {I32} iter_values(%b = %0) -> ({I32}) {{",
        get("%x"), f"continue %x : {I32}", "}", put("%1", "%a"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", DECIDED)
def test_a_dry_run_counts_what_a_run_does(name: str) -> None:
    module = program(*DECIDED[name])
    whole, dry = (executed(module, size=16, dry=dry) for dry in (False, True))
    assert dry[0] == [-1] * 16, "no data is touched"

    def counts(ran: Executed) -> list[Any]:
        return [(one.op.name, one.executed, one.loaded_bytes, one.stored_bytes) for one in ran.counts.ops]

    assert counts(dry[1]) == counts(whole[1])
    assert dry[1].counts.stored_runs.tolist() == whole[1].counts.stored_runs.tolist()


@pytest.mark.parametrize("name", UNDECIDED)
def test_a_dry_run_stops_where_data_decides(name: str) -> None:
    module = program(*UNDECIDED[name])
    executed(module, size=16)
    with pytest.raises(NeedsData):
        executed(module, dry=True)


def test_what_is_needed_goes_back_through_loops_but_not_through_loads() -> None:
    entry = program(get("%x"), op("%y", "addi", "%bx", "%1"), op("%z", "addi", "%x", "%y"), put("%z")).entry()
    assert "%bx" in needed(entry)
    assert not {"%x", "%y", "%z"} & needed(entry)
