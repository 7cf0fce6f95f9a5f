"""The screen's rules on constructed machine code, its laws, and what a prediction says."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilewright.compile import screen as screening
from tilewright.compile.compile import Compiled, Unit
from tilewright.compile.screen import KEEP, SLOWER, ScreenRow, candidate_of, ranking, screen
from tilewright.hardware.architectures import ARCHITECTURES, architecture, board, default_board
from tilewright.hardware.executions import WARPGROUP, Work, shape_of
from tilewright.hardware.prediction import Launched, predict
from tilewright.inspect.work import classify
from tilewright.records import Built, Configuration, Failed, LaunchFacts, MachineCode, Screened, Workload

H200 = board("H200")
PRODUCT = Work(2 * 4096**3, 3 * 4096**2 * 2, "bfloat16")
COPY = Work(0.0, 2**28, "bfloat16")

GOOD = MachineCode(
    symbol="matmul", sm=90, registers=168, stack_bytes=0, shared_bytes=213_128, threads=384, cluster=1,
    local_loads=0, local_stores=0, tensor_path="HGMMA", tensor_instructions=8,
    copies={"STSM.128": 16, "UTMALDG.2D": 5, "UTMASTG.2D": 4}, instructions=1012, code_hash="good",
)  # fmt: skip
"""128×256×64 with 8 worker warps, as tileiras builds it for sm_90: 185 µs at 4096³ on an H200."""

STREAM = MachineCode(
    symbol="copy", sm=90, registers=32, stack_bytes=0, shared_bytes=0, threads=128, cluster=1,
    local_loads=0, local_stores=0, tensor_path="none", tensor_instructions=0,
    copies={"LDG.128": 2, "STG.128": 2}, instructions=150, code_hash="stream",
)  # fmt: skip


def config(name: str, **knobs: int) -> Configuration:
    return Configuration.of({"NAME": name, **knobs})


def row(name: str, *, grid: tuple[int, ...] = (132,), occupancy: int | None = None, **changes: object) -> ScreenRow:
    """A row whose code differs from GOOD in ``changes``; its hash is its name unless they say otherwise."""
    code = replace(GOOD, **{"code_hash": name, **changes})  # type: ignore[arg-type]
    return ScreenRow(config(name), grid, code, occupancy)


def verdicts(rows: list[ScreenRow], work: Work = PRODUCT, shipped: str | None = None) -> dict[str, Screened]:
    bound = classify(work.flops, work.bytes, work.dtype, H200)
    screened = screen(rows, work, H200, bound, shipped=config(shipped) if shipped else None)
    return {str(one.configuration.NAME): each for one, each in zip(rows, screened, strict=True)}


def good(count: int = KEEP) -> list[ScreenRow]:
    """So many good codes that `KEEP` saves nothing, the first the best."""
    return [row(f"good{index}", instructions=GOOD.instructions + 20 * index) for index in range(count)]


# Duplicates (X-09) --------------------------------------------------------------------------------


def test_identical_code_is_timed_once() -> None:
    """X-09: a hint often changes nothing; the first such row stands for the others."""
    found = verdicts([row("first", code_hash="same"), row("second", code_hash="same"), *good()])
    assert found["first"].duplicate_of is None
    assert found["second"].duplicate_of == config("first")
    assert found["second"].reason == "same machine code as NAME=first"


def test_the_shipped_configuration_stands_for_its_duplicates() -> None:
    found = verdicts([row("first", code_hash="same"), row("second", code_hash="same")], shipped="second")
    assert found["first"].duplicate_of == config("second")
    assert found["second"].duplicate_of is None and found["second"].verdict == "race"


def test_the_same_code_under_another_grid_is_no_duplicate() -> None:
    found = verdicts([row("one", code_hash="same"), row("two", code_hash="same", grid=(264,))])
    assert found["one"].duplicate_of is None and found["two"].duplicate_of is None


def test_the_same_code_with_other_arguments_is_no_duplicate() -> None:
    """A number that the launch passes, such as the parts of a split sum, changes the work and not the code."""
    same = [replace(row(f"split{parts}", code_hash="same"), arguments=(parts,)) for parts in (1, 8, 8, 8.0)]
    found = screen(same, PRODUCT, H200, classify(PRODUCT.flops, PRODUCT.bytes, "bfloat16", H200))
    assert [one.duplicate_of for one in found] == [None, None, config("split8"), None]


# Spilling -----------------------------------------------------------------------------------------

SPILLS: dict[str, Any] = {"local_loads": 713, "local_stores": 829, "stack_bytes": 1792, "instructions": 3328}
"""128×256×64 without the eight warps: 3,080 µs."""


def test_heavy_spilling_is_out_where_others_do_not_spill() -> None:
    spilled = verdicts([row("spills", registers=255, threads=256, **SPILLS), *good()])["spills"]
    assert spilled.verdict == "out"
    assert "829 local stores and 713 loads, 1,792 B of stack" in spilled.reason


def test_where_all_spill_the_best_of_them_races() -> None:
    """The 4000×4097×2000 product: 32 of 40 spill, and so does the fastest."""
    rows = [row(f"spills{index}", **SPILLS | {"local_stores": 829 + index}) for index in range(3)]
    found = verdicts(rows)
    assert found["spills0"].verdict == "race"
    assert all(one.verdict == "last" for name, one in found.items() if name != "spills0")


def test_a_few_spills_outside_the_loop_are_no_verdict() -> None:
    """The fastest attention of 1024 keys spills 3 stores and 3 loads."""
    found = verdicts([row("few", local_loads=1, local_stores=1, stack_bytes=8), *good()])
    assert found["few"].verdict == "race"


def test_light_spilling_races_last() -> None:
    few: dict[str, Any] = {"local_loads": 90, "local_stores": 60, "stack_bytes": 240}
    light = verdicts([row("light", **few), *good()])["light"]
    assert light.verdict == "last" and "spills: 60 local stores" in light.reason


# Occupancy, tensor path, launch -------------------------------------------------------------------


def test_an_occupancy_that_is_not_attained_races_last() -> None:
    """F-5: a row says why it was pruned; a hint beyond what fits is a finding (X-09)."""
    asked = verdicts([row("asked", shared_bytes=229_544, occupancy=2, instructions=1400), *good()])["asked"]
    assert asked.verdict == "last"
    assert asked.reason.startswith("occupancy=2 requested, but only 1 CTA per SM, limited by ")
    assert "shared memory" in asked.reason


def test_the_reason_names_the_occupancy_of_its_own_row() -> None:
    same = row("eight", code_hash="same", shared_bytes=229_544, occupancy=8, instructions=1400)
    two = replace(same, configuration=config("two"), occupancy=2)
    for shipped, name, asked in ((None, "eight", 8), ("two", "two", 2)):
        reason = verdicts([same, two, *good()], shipped=shipped)[name].reason
        assert reason.startswith(f"occupancy={asked} requested, but only 1 CTA per SM")


def test_a_duplicate_that_asks_for_less_clears_the_code() -> None:
    same = [row("two", code_hash="same", occupancy=2, tensor_instructions=10)]
    same.append(replace(same[0], configuration=config("one"), occupancy=1))
    assert verdicts([*same, *good()])["two"].verdict == "race"


def test_a_lost_tensor_path_is_out() -> None:
    lost = verdicts([row("lost", tensor_path="none", tensor_instructions=0), *good()])["lost"]
    assert lost.verdict == "out" and "no tensor instructions" in lost.reason


def test_an_older_tensor_path_is_not_raced_first() -> None:
    """Tiles under 64 rows fall from HGMMA to HMMA on sm_90."""
    older = verdicts([row("older", tensor_path="HMMA", tensor_instructions=512), *good()])["older"]
    assert older.verdict in ("last", "out") and "only HMMA" in older.reason


def test_a_tensor_path_that_nobody_has_is_not_missed() -> None:
    found = verdicts([row(f"plain{index}", tensor_path="HMMA", instructions=1000 + index) for index in range(3)])
    assert {one.verdict for one in found.values()} == {"race"}


def test_memory_bound_work_does_not_ask_for_a_tensor_path() -> None:
    rows = [ScreenRow(config("tensor"), (132,), GOOD), ScreenRow(config("plain"), (8192,), STREAM)]
    assert verdicts(rows, COPY)["plain"].verdict == "race"


def test_what_cannot_be_launched_is_out_even_alone() -> None:
    refused = verdicts([row("large", shared_bytes=300_000)])["large"]
    assert refused.verdict == "out" and refused.reason.startswith("cannot be launched: ")


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        (LaunchFacts(shared_bytes=393_280), "shared memory 384.062 KiB > 227 KiB per CTA"),
        (LaunchFacts(tensor_columns=1024), "1024 columns of tensor memory > 512 per SM"),
        (LaunchFacts(threads=2048), "2048 threads > 1024 per CTA"),
    ],
)
def test_what_the_launch_adds_to_the_cubin_counts(facts: LaunchFacts, said: str) -> None:
    code = replace(GOOD, shared_bytes=0).launched_with(facts)
    bound = classify(1e12, 1e8, "bfloat16", H200)
    refused = screening.screen([ScreenRow(config("large"), (132,), code)], PRODUCT, H200, bound)
    assert refused[0].verdict == "out" and said in refused[0].reason
    assert code.code_hash != GOOD.code_hash and GOOD.launched_with(LaunchFacts()) is GOOD


def test_much_slower_is_out_and_says_by_how_much() -> None:
    slow = verdicts([row("slow", instructions=80_000), *good()])["slow"]
    assert slow.verdict == "out" and f"over {SLOWER:g}×" in slow.reason


def test_the_shipped_configuration_is_last_at_worst() -> None:
    kept = verdicts([row("slow", instructions=80_000), *good()], shipped="slow")["slow"]
    assert kept.verdict == "last" and "baseline" in kept.reason


def test_eight_codes_are_kept() -> None:
    rows = [row(f"slow{index}", instructions=80_000 + index) for index in range(12)]
    found = verdicts([*good(2), *rows])
    assert sum(one.verdict != "out" for one in found.values()) == KEEP
    assert found["slow0"].verdict == "last" and found["slow11"].verdict == "out"


# The order ----------------------------------------------------------------------------------------


def test_ranking_puts_race_before_last_and_drops_the_rest() -> None:
    rows = [
        row("light", local_loads=90, local_stores=60, stack_bytes=240), row("slow", instructions=80_000),
        *good(), row("twin", code_hash="good0"),
    ]  # fmt: skip
    screened = {one.configuration: verdicts(rows)[str(one.configuration.NAME)] for one in rows}
    failed = {config("broken"): Failed("compile", "no")}
    names = [one.NAME for one in ranking({**screened, **failed})]
    assert names == [*(f"good{index}" for index in range(KEEP)), "light"]


# The laws -----------------------------------------------------------------------------------------

CODES = st.builds(
    lambda registers, shared, threads, spills, path, products, instructions, name: replace(
        GOOD, registers=registers, shared_bytes=shared, threads=threads, local_loads=spills,
        local_stores=spills, stack_bytes=8 * spills, tensor_path=path,
        tensor_instructions=products if path != "none" else 0, instructions=instructions + 2 * spills,
        code_hash=str((registers, shared, threads, spills, path, products, instructions, name)),
    ),
    st.integers(16, 255), st.integers(0, 260_000), st.sampled_from([0, 128, 256, 384]),
    st.sampled_from([0, 0, 0, 3, 200, 3000]), st.sampled_from(["none", "HMMA", "HGMMA"]),
    st.integers(1, 512), st.integers(50, 20_000), st.integers(0, 1),
)  # fmt: skip
WORKS = st.builds(Work, st.floats(0, 1e13), st.floats(1e3, 1e11), st.sampled_from(["bfloat16", "float32"]))


@st.composite
def fields(draw: st.DrawFn) -> tuple[list[ScreenRow], Work, Configuration]:
    codes = draw(st.lists(CODES, min_size=1, max_size=5))
    picks = draw(st.lists(st.tuples(st.sampled_from(codes), st.sampled_from([(132,), (4096, 2)])), min_size=1))
    rows = [
        ScreenRow(config(str(index)), grid, code, draw(st.sampled_from([None, 1, 2, 8])))
        for index, (code, grid) in enumerate(picks)
    ]
    return rows, draw(WORKS), draw(st.sampled_from(rows)).configuration


def _screened(rows: list[ScreenRow], work: Work, shipped: Configuration) -> dict[Configuration, Screened]:
    bound = classify(work.flops, work.bytes, work.dtype, H200)
    screened = screen(rows, work, H200, bound, shipped=shipped)
    return {row.configuration: one for row, one in zip(rows, screened, strict=True)}


@given(fields())
def test_law_the_shipped_configuration_always_remains(field: tuple[list[ScreenRow], Work, Configuration]) -> None:
    rows, work, shipped = field
    screened = _screened(rows, work, shipped)
    assert screened[shipped].verdict != "out" and screened[shipped].duplicate_of is None
    assert shipped in ranking(screened)


@given(fields())
def test_law_enough_distinct_codes_remain(field: tuple[list[ScreenRow], Work, Configuration]) -> None:
    """Without a baseline too: as many as `KEEP`, or all that can be launched; never none of them."""
    rows, work, _ = field
    screened = _screened(rows, work, config("nobody"))
    launchable = {
        (row.code.code_hash, row.grid)
        for row in rows
        if not screened[row.configuration].reason.startswith("cannot") and not screened[row.configuration].duplicate_of
    }
    assert len(ranking(screened)) >= min(KEEP, len(launchable))


@given(fields())
def test_law_one_row_stands_for_each_distinct_code(field: tuple[list[ScreenRow], Work, Configuration]) -> None:
    rows, work, shipped = field
    screened = _screened(rows, work, shipped)
    standing = [row for row in rows if screened[row.configuration].duplicate_of is None]
    assert len(standing) == len({(row.code.code_hash, row.grid) for row in rows})
    for one in screened.values():
        assert one.reason
        assert one.duplicate_of is None or screened[one.duplicate_of].duplicate_of is None


@given(fields(), st.randoms(use_true_random=False))
def test_law_the_order_of_rows_does_not_matter(field: tuple[list[ScreenRow], Work, Configuration], random) -> None:  # type: ignore[no-untyped-def]
    """Up to which duplicate stands for the others."""
    rows, work, shipped = field
    shuffled = random.sample(rows, len(rows))

    def told(screened: dict[Configuration, Screened]) -> set[tuple[str, tuple[int, ...], str, float]]:
        standing = [row for row in rows if screened[row.configuration].duplicate_of is None]
        of = [(row, screened[row.configuration]) for row in standing]
        return {(row.code.code_hash, row.grid, one.verdict, one.predicted.us) for row, one in of}

    first = _screened(rows, work, shipped)
    assert told(first) == told(_screened(shuffled, work, shipped))
    assert first == _screened(rows, work, shipped)


# The prediction -----------------------------------------------------------------------------------


@given(CODES, WORKS, st.sampled_from(sorted(ARCHITECTURES)))
def test_law_a_prediction_is_a_time_above_the_roofline(code: MachineCode, work: Work, arch: str) -> None:
    """On every architecture: finite, and never below what the bytes take at the achievable bandwidth."""
    on = default_board(arch)
    predicted = predict(code, (132,), work, on)
    assert work.bytes / (on.achievable_bandwidth() * 1e3) < predicted.us < float("inf")
    assert predicted.why.endswith("launch")


@given(CODES, WORKS)
def test_law_spilling_costs_time(code: MachineCode, work: Work) -> None:
    spilling = replace(code, local_loads=code.local_loads + 100, local_stores=code.local_stores + 100)
    more, less = (Launched(each, (132,), work, H200).spill_us() for each in (spilling, code))
    assert more > less


def test_a_prediction_names_its_terms() -> None:
    assert predict(STREAM, (16384,), COPY, H200).why.startswith("65 µs memory at 4.3 TB/s")
    spilling = replace(GOOD, local_loads=713, local_stores=829)
    why = predict(spilling, (132,), PRODUCT, H200).why
    assert "HGMMA at 790 TFLOP/s" in why and "spill (" in why


def test_small_ctas_are_bound_by_issue() -> None:
    """Rotary embedding with tiles of one head and 4 positions: 131,072 CTAs of 256 threads took 296 µs."""
    mix = {
        "global load": 4, "global store": 2, "constant load": 24, "control": 19, "special function": 1,
        "conversion": 10, "float32": 8, "integer": 143, "move and select": 11,
    }  # fmt: skip
    tiny = replace(STREAM, threads=256, instructions=222, mix=mix, copies={"LDG.16": 2, "LDG.32": 2, "STG.16": 2})
    predicted = predict(tiny, (1024, 32, 4), Work(2e8, 2.7e8, "bfloat16"), H200)
    assert "issue of 222 instructions by 1048576 warps" in predicted.why
    assert predicted.us == pytest.approx(296, rel=0.35)


def test_waves_count_clusters() -> None:
    """One block of the tile language is one cluster (cutile-facts 7.2)."""
    shape = shape_of(replace(GOOD, cluster=2), (132,), H200)
    assert (shape.ctas, shape.resident, shape.waves) == (264, 1, 2)


def test_code_that_leaves_its_threads_to_the_launch_is_predicted_too() -> None:
    assert shape_of(replace(STREAM, threads=0), (132,), H200).threads == WARPGROUP


@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "sm_100", "sm_120"])
def test_the_expected_tensor_path_is_predicted_near_the_roofline(arch: str) -> None:
    """A large clean tile takes 1 to 3 times the speed of light on each architecture (K9)."""
    on, path = default_board(arch), architecture(arch).tensor_path
    products = {"HMMA": 256, "HGMMA": 8, "UTCMMA": 4}[path]
    tma = {"STSM.128": 16, "UTMALDG.2D": 4, "UTMASTG.2D": 2}
    copies = {"LDGSTS.128": 16, "STG.128": 16} if arch == "sm_80" else tma
    code = replace(
        GOOD, sm=on.sms, tensor_path=path, tensor_instructions=products, copies=copies,
        registers=255, threads=128 if arch == "sm_80" else 256, shared_bytes=65_536,
    )  # fmt: skip
    ideal = classify(PRODUCT.flops, PRODUCT.bytes, "bfloat16", on).speed_of_light_us
    assert ideal < predict(code, (on.sms,), PRODUCT, on).us < 3 * ideal


# The adapters -------------------------------------------------------------------------------------


def test_candidates_carry_status_and_reason() -> None:
    """F-5: timed, duplicate of, pruned because, failed: each row of the result says which."""
    unit = Unit(Workload("w", {}), config("x"), H200)
    built = Built(config("x"), "sm_90", b"", "matmul", seconds=1.5)
    compiled = Compiled(unit, built, GOOD)
    raced = verdicts([row("x"), *good()])["x"]
    assert candidate_of(compiled, raced).status == "predicted"
    assert candidate_of(compiled, raced).compile_seconds == 1.5
    assert candidate_of(compiled, replace(raced, verdict="out")).status == "screened"
    twin = replace(raced, duplicate_of=config("y"), reason="same machine code as NAME=y")
    assert candidate_of(compiled, twin).status == "duplicate"
    failed = Failed("compile", "tileiras took longer than 10 s")
    broken = candidate_of(Compiled(unit, failed, failed), failed)
    assert (broken.status, broken.reason) == ("failed", "compile: tileiras took longer than 10 s")


def test_failures_keep_their_stage_beside_the_screened(monkeypatch: pytest.MonkeyPatch) -> None:
    from tilewright.task.task import Launch

    class Task:
        compute_dtype = "bfloat16"
        outputs = ()
        space = SimpleNamespace(shipped=config("a"), every_shipped=(config("a"),))

        def arrays(self, dims: object) -> dict[str, object]:
            return {}

        def work(self, dims: object) -> float:
            return PRODUCT.flops

        def traffic(self, dims: object) -> float:
            return PRODUCT.bytes

    launch = Launch(kernel=None, grid=(132,), args=())
    monkeypatch.setattr(screening, "launch_of", lambda task, unit: (launch, {"occupancy": 2}))
    language = SimpleNamespace(arguments=lambda launch: launch.args, ignored=lambda hints: ())
    monkeypatch.setattr(screening, "language_of", lambda kernel: language)
    workload = Workload("w", {})
    built = Built(config("a"), "sm_90", b"", "matmul", seconds=1.0)
    failed = Failed("compile", "broken")
    unreadable = Failed("machine code", "no kernel")
    compiled = [
        Compiled(Unit(workload, config("a"), H200), built, GOOD),
        Compiled(Unit(workload, config("b"), H200), failed, failed),
        Compiled(Unit(workload, config("c"), H200), built, unreadable),
        Compiled(Unit(workload, config("d"), H200), built, replace(GOOD, instructions=1400, code_hash="d")),
    ]
    bound = classify(PRODUCT.flops, PRODUCT.bytes, "bfloat16", H200)
    screened = screening.screen_compiled(Task(), workload, H200, bound, compiled)  # type: ignore[arg-type]
    assert screened[config("b")] == failed and screened[config("c")] == unreadable
    asked = screened[config("d")]
    assert isinstance(asked, Screened) and asked.reason.startswith("occupancy=2 requested, but only 1 CTA per SM")
    assert set(screened) == {one.unit.configuration for one in compiled}
