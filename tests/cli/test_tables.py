"""The tables, on a console of known width: what a person reads of a record."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console, Group, RenderableType
from tests.made_runs import baseline_iteration, metrics, raced, run_record

from tilewright.cli import doctor
from tilewright.cli.candidate_table import PREDICTED, by_time, candidate_table, inspected, microseconds
from tilewright.cli.optimize_table import ending
from tilewright.cli.terminal_table import Column, TerminalTable, not_shown
from tilewright.cli.tune_table import tuned, workload_result
from tilewright.doctor.probes import Probe
from tilewright.hardware.architectures import default_board
from tilewright.inspect.inspect import Inspected
from tilewright.optimize.optimized import Optimized
from tilewright.records import (
    Bound,
    Candidate,
    Configuration,
    Machine,
    MachineCode,
    MeasuredTime,
    PredictedTime,
    Searched,
    TuningResult,
    Workload,
    WorkloadResult,
)

CODE = MachineCode(
    symbol="k", sm=90, registers=168, stack_bytes=1808, shared_bytes=98304, threads=256, cluster=1,
    local_loads=606, local_stores=658, tensor_path="HGMMA", tensor_instructions=8, copies={},
    instructions=900, code_hash="0" * 64,
)  # fmt: skip
BOUND = Bound("memory", why="12 FLOP/B is under the ridge at 206", intensity=12, ridge=206, speed_of_light_us=50)
FAST = Configuration.of({"TILE_M": 128, "GROUP": 8, "occupancy": None})
SLOW = Configuration.of({"TILE_M": 64, "GROUP": 8, "occupancy": 2})
BROKEN = Configuration.of({"TILE_M": 256, "GROUP": 8, "occupancy": None})


def code_of(config: Configuration) -> MachineCode:
    """Only the first has this many registers and spills."""
    return CODE if config["TILE_M"] == 128 else replace(CODE, registers=128, local_stores=0)


def candidate(config: Configuration, predicted: float | None, measured: float | None = None) -> Candidate:
    return Candidate(
        config,
        "raced" if measured else "predicted" if predicted else "failed",
        "leader" if measured else "[bold]compile[/bold]: out of shared memory",
        code_of(config) if predicted else None,
        0.5,
        PredictedTime(predicted, "roofline") if predicted else None,
        MeasuredTime(measured, (measured - 0.1, measured * 1.01 - 0.325), (measured,)) if measured else None,
    )


def result(*candidates: Candidate, measured: bool = True) -> WorkloadResult:
    race = {"noise": {"why": "two copies of one kernel differ by +0.02%", "biased": False}}
    return WorkloadResult(
        Workload("4096", {"M": 4096}), BOUND, candidates[0], (FAST, SLOW) if measured else (), candidates,
        SLOW, "fastest; no other candidate was shown to be within 1.0% of it", race if measured else None,
    )  # fmt: skip


def shown(renderable: RenderableType, width: int = 160) -> str:
    console = Console(width=width, record=True, quiet=False, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(renderable)
    return console.export_text()


def line_with(text: str, word: str) -> str:
    return next(line for line in text.splitlines() if word in line)


def test_predicted_and_measured_times_have_columns_of_their_own() -> None:
    text = shown(workload_result(result(candidate(FAST, 60.0, 62.5), candidate(SLOW, 55.0, 70.0)), True))
    assert re.search(r"predicted +measured +± +speed", text)
    row = line_with(text, " 128 ")
    assert row.index("60.00") < row.index("62.50") < row.index("0.2") < row.index("80.0%")
    assert "658/606" in row and "168" in row


def test_rows_stand_by_measured_then_predicted_time_and_what_failed_is_last() -> None:
    rows = [candidate(BROKEN, None), candidate(SLOW, 55.0), candidate(FAST, 60.0, 62.5)]
    assert [one.configuration for one in by_time(rows)] == [FAST, SLOW, BROKEN]


def test_duplicates_are_a_count_in_the_row_of_their_original() -> None:
    originals = [candidate(FAST.replace(GROUP=n), 60.0 + n) for n in range(12)]
    copies = [
        replace(one, configuration=one.configuration.replace(occupancy=occupancy), status="duplicate",
                reason=f"same machine code as {one.configuration}")
        for one in originals for occupancy in (1, 2)
    ]  # fmt: skip
    text = shown(Group(*candidate_table("t", [*copies, *originals], [PREDICTED], show_all=False)))
    assert text.count("; 2 more with the same machine code") == 10 and "duplicate" not in text.split("6 more")[0]
    assert "6 more configurations; --all shows them" in text
    everything = shown(Group(*candidate_table("t", [*copies, *originals], [PREDICTED], show_all=True)))
    assert everything.count("same machine code as") == 24 and "more" not in everything


def test_a_line_says_how_many_were_never_compiled_if_any() -> None:
    whole = result(candidate(FAST, 60.0, 62.5), candidate(SLOW, 55.0, 70.0))
    part = replace(whole, searched=Searched("halving", 2, 20_000, True, "the time limit of 40 s was reached"))
    line = line_with(shown(workload_result(part, True)), "never")
    assert line.startswith("2 of 20,000 configurations were compiled, the others never; strategy 'halving' stopped")
    assert line.strip().endswith("because the time limit of 40 s was reached")
    every = replace(whole, searched=Searched("exhaustive", 2, 2, True, "it had no more configurations to try"))
    assert "never" not in shown(workload_result(every, True)) + shown(workload_result(whole, True))
    slow = replace(whole, searched=Searched("exhaustive", 2, 5, True, "it had no more configurations to try", slow=3))
    assert line_with(shown(workload_result(slow, True)), "never").strip() == (
        "2 of 5 configurations were compiled, the others never; "
        "3 expected to be slow (--strategy exhaustive compiles all)"
    )


def test_below_the_table_stand_the_best_why_the_gain_the_ties_and_the_noise() -> None:
    text = shown(workload_result(result(candidate(FAST, 60.0, 62.5), candidate(SLOW, 55.0, 70.0)), True))
    assert f"best: {FAST}  measured 62.50 ± 0.2 µs, 80.0% of the speed of light" in text
    assert "why: fastest; no other candidate was shown to be within 1.0% of it" in text
    assert "shipped today: 70.00 µs measured, 1.12× the best" in text
    assert str(SLOW) in text.partition("tied with it (1)")[2]
    assert "A/A noise: two copies" in text
    assert "bound: memory, speed of light 50.00 µs; 12 FLOP/B" in text


def test_without_a_measurement_there_is_no_measured_column() -> None:
    one = result(candidate(FAST, 60.0), candidate(BROKEN, None), measured=False)
    text = shown(workload_result(one, False))
    assert "measured" not in text and "± " not in text
    assert "(predicted)" in text
    assert f"best: {FAST}  predicted 60.00 µs" in text
    assert "A/A" not in text


def test_knobs_that_do_not_vary_are_said_once() -> None:
    text = shown(workload_result(result(candidate(FAST, 60.0), candidate(SLOW, 55.0), measured=False), False))
    assert "the same in all: GROUP=8" in text
    assert not re.search(r"^ *TILE_M.*GROUP", text, re.MULTILINE)


def test_a_long_knob_is_broken_and_the_compilers_choice_is_auto() -> None:
    hinted = FAST.replace(occupancy=None)
    named = Configuration((*hinted.items_, ("num_worker_warps", 8)))
    text = shown(workload_result(result(candidate(named, 60.0), measured=False), False))
    assert re.search(r"num_ .*\n.*worker_.*\n.*warps", text)
    assert re.search(r"^ *128 +8 +auto +8 +predicted", text, re.MULTILINE)


def test_text_of_a_record_is_not_markup() -> None:
    one = result(candidate(FAST, 60.0), candidate(BROKEN, None), measured=False)
    assert "[bold]compile[/bold]" in shown(workload_result(one, False))


def test_nothing_worked() -> None:
    lost = replace(result(candidate(BROKEN, None), measured=False), best=None, reason="no candidate compiled")
    text = shown(workload_result(lost, False))
    assert "best: none; no candidate compiled" in text


def test_a_narrow_terminal_loses_no_configuration() -> None:
    one = result(candidate(FAST, 60.0, 62.5), candidate(SLOW, 55.0, 70.0), candidate(BROKEN, None))
    text = shown(workload_result(one, True), width=100)
    assert re.search(r"^ *128 +auto +raced +60.00 +62.50 +0.2 +80.0% +168 +658/606", text, re.MULTILINE)


def test_every_workload_has_its_table() -> None:
    machine = Machine("sm_90", None, None, "here", {})
    one = result(candidate(FAST, 60.0), measured=False)
    other = replace(one, workload=Workload("odd", {"M": 1000}))
    text = shown(tuned(TuningResult("matmul", machine, False, (one, other), "run", {"total": 1.0})))
    assert "workload 4096" in text and "workload odd" in text


def test_inspected_has_one_table_for_each_architecture() -> None:
    workload = Workload("4096", {"M": 4096})
    rows = [
        Inspected(arch, default_board(arch), workload, BOUND, one)
        for arch in ("sm_90", "sm_100")
        for one in (candidate(BROKEN, None), candidate(FAST, 60.0))
    ]
    text = shown(inspected(rows))
    assert "sm_90 (H200), workload 4096" in text and "sm_100 (B200), workload 4096" in text
    row = line_with(text, " 128 ")
    for cell in ("168", "658/606", "1808", "96", "HGMMA", "256", "60.00"):
        assert cell in row
    assert text.index(" 128 ") < text.index(" 256  failed")


def forty(measured: bool) -> WorkloadResult:
    """Forty candidates with seven knobs, of which most are slow, alike or broken."""
    made = []
    for n in range(40):
        knobs = {"TILE_M": 64 << n % 3, "TILE_N": 64 << n % 4, "TILE_K": 32, "GROUP_SIZE_M": n + 1}
        config = Configuration.of({**knobs, "occupancy": None, "num_ctas": 1 + n % 2, "num_worker_warps": 4})
        one = candidate(config, None if n % 5 == 4 else 60.0 + n, 61.5 + n if measured and n < 3 else None)
        why = (
            f"compile: shared memory {220 + n} KiB of 227 KiB"
            if one.code is None
            else f"predicted 1.{n} times the best"
        )
        made.append(replace(one, reason="same machine code as " + str(FAST) if n % 5 == 3 else why))
    return result(*made, measured=measured)


@pytest.mark.parametrize("measured", [True, False])
def test_forty_candidates_fit_into_eighty_columns(measured: bool) -> None:
    """The best ten and the shipped one stand there with their reasons; of the others a count for each reason."""
    one = forty(measured)
    text = shown(workload_result(one, measured), width=80)
    assert max(map(len, text.splitlines())) <= 80
    assert "the same in all: TILE_K=32, occupancy=auto, num_worker_warps=4" in text
    for best in by_time(one.candidates)[:10]:
        assert re.search(rf"\b{best.configuration['GROUP_SIZE_M']}\b", text)
    assert "30 more configurations; --all shows them" in text
    assert "8 failed: compile: shared memory … KiB of 227 KiB" in text
    everything = shown(workload_result(one, measured, show_all=True), width=80)
    assert max(map(len, everything.splitlines())) <= 80 and "more configurations" not in everything
    assert everything.count("same machine code as") == 8 and "…" not in everything


def test_inspected_fits_into_eighty_columns() -> None:
    rows = [
        Inspected("sm_90", default_board("sm_90"), Workload("4096", {"M": 4096}), BOUND, one)
        for one in forty(False).candidates
    ]
    text = shown(inspected(rows), width=80)
    assert max(map(len, text.splitlines())) <= 80 and "30 more configurations" in text
    everything = shown(inspected(rows, show_all=True), width=80)
    assert max(map(len, everything.splitlines())) <= 80 and "…" not in everything
    assert all(f"{220 + n} KiB" in everything for n in range(4, 40, 5))


def test_the_shipped_configuration_is_always_shown() -> None:
    one = forty(False)
    slowest = by_time(one.candidates)[-9]
    text = shown(workload_result(replace(one, shipped=slowest.configuration), False), width=80)
    assert slowest.reason in text and "29 more configurations" in text


def test_one_hidden_row_is_called_one() -> None:
    assert shown(Group(*not_shown([("failed", "")], "case"))).startswith("1 more case; --all shows it\n")
    assert shown(Group(*not_shown([("failed", "")] * 2, "case"))).startswith("2 more cases; --all shows them\n")


@pytest.mark.parametrize(
    ("names", "kept", "line", "text"),
    [
        (("small",), 1, "1.33× over 1 workload, 1 change kept", "1 of 1 change kept"),
        (("small", "large"), 2, "1.33× over 2 workloads, 2 changes kept", "2 of 2 changes kept"),
    ],
)
def test_one_change_is_called_one(names: tuple[str, ...], kept: int, line: str, text: str) -> None:
    sides = [[metrics(name, us) for name in names] for us in (20.0, 15.0)]
    record = replace(run_record(workloads=names), run="r", baseline=tuple(sides[0]), final=tuple(sides[1]))
    tried = [raced(n, 15.0, 20.0, keep=True, workloads=names) for n in range(1, kept + 1)]
    done = Optimized(record, (baseline_iteration(workloads=names), *tried), "", Path())
    assert next(ending(done, "ops.py")) == line and str(done).endswith(text)


def test_the_end_names_tune_if_workloads_share_a_configuration_of_a_space() -> None:
    def end(*names: str, entry: str = "tune_space") -> str:
        final = tuple(metrics(name, 15.0) for name in names)
        record = replace(run_record(workloads=names), branch="b", baseline=final, final=final)
        tried = replace(raced(1, 15.0, 20.0, keep=True, workloads=names), entry=entry)
        done = Optimized(record, (baseline_iteration(workloads=names), tried), "", Path())
        return "\n".join(ending(done, "ops.py"))

    assert "for one each, merge it, then: tilewright tune ops.py" in end("small", "large")
    assert "tilewright tune" not in end("small") + end("small", "large", entry="occupancy")


def test_a_table_loses_nothing_on_a_narrow_terminal() -> None:
    table = TerminalTable("kernel", Column("arrays", spare=1), Column("µs", right=True), title="all")
    table.add(
        ("a_kernel_with_a_name_of_forty_characters", "bf16[4096,4096] bf16[4096]", "12.50"), "a reason of its own"
    )
    table.add(("softmax", "f32[16]", "1.25"))
    text = shown(table, width=40)
    assert max(map(len, text.splitlines())) <= 40
    joined = "".join(text.split())
    for words in (
        "a_kernel_with_a_name_of_forty_cha",
        "racters",
        "12.50",
        "arraysbf16[4096,4096]bf16[4096];areasonofitsown",
    ):
        assert words in joined


@pytest.mark.parametrize(
    ("us", "text"),
    [(0.01234, "0.0123"), (1.23456, "1.235"), (62.5, "62.50"), (984.2, "984.2"), (3129.4, "3,129"),
     (0.0, "0.000"), (float("inf"), "–")],
)  # fmt: skip
def test_microseconds_have_four_digits(us: float, text: str) -> None:
    assert microseconds(us) == text


def test_checks_show_the_fix_below_the_finding() -> None:
    found = [
        Probe("Python", True, "3.11"),
        Probe("nvdisasm", False, "not installed", "pip install nvidia-cuda-nvdisasm"),
        Probe("NVML", False, "not installed", required=False),
        Probe("GPU", None, "none"),
    ]
    text = shown(doctor.table(found))
    assert [line[0] for line in text.splitlines() if line[0] != " "] == ["✓", "✗", "!", "–"]
    assert "fix: pip install nvidia-cuda-nvdisasm" in text
