"""The search over live tensors: what is launched, what is compared, what is raced, and that nothing is spoilt.

Front end, tileiras and cubins are real; what a launch does and how long it takes is made up (requirements A-41,
X-08, X-23, X-24, F-5, Part 7 checks 5 and 7)."""

from __future__ import annotations

import gc
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from tests.processes import until
from tests.runtime.caller_kernels import (
    CpuMachine,
    double_in_place,
    doubled,
    doubles,
    doubles_in_place,
    found,
    product,
    scale,
    space,
    torch,
    vectors,
)

from tilewright.compile import accumulators
from tilewright.errors import RequestError
from tilewright.languages.cutile import private as cutile_private
from tilewright.languages.cutile.cutile import CuTile
from tilewright.runtime.search import building, scratch
from tilewright.runtime.search.scratch import DeviceLost, NoRoom
from tilewright.runtime.search.searching import NothingWorks
from tilewright.runtime.search.trials import Trial


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """cuTile's disk cache, in a folder of the test's own."""
    folder = tmp_path / "cutile-cache"
    folder.mkdir()
    monkeypatch.setattr(cutile_private, "cache_directory", lambda: str(folder))
    return folder


def on(x: Any, y: Any) -> Any:
    return lambda config: (x, y, config["TILE"], config.get("UNUSED", 0))


def test_the_fastest_is_found_and_each_has_its_outcome() -> None:
    """F-5: one outcome for each configuration, in the order of the space."""
    x, y = vectors()
    machine = CpuMachine(doubles, {"TILE=64": 20.0, "TILE=128": 12.0, "TILE=256": 10.0})
    result = found(space(64, 128, 256), machine, on(x, y))
    assert (result.best, result.runner_up) == (2, 1)
    assert [one.status for one in result.outcomes] == ["timed"] * 3
    assert [one.us for one in result.outcomes] == pytest.approx([20, 12, 10], rel=0.01)
    assert all(one.error_margin_us < 0.1 and one.samples >= 6 for one in result.outcomes)  # type: ignore[operator]
    assert set(result.seconds) == {"lower", "compile", "verify", "race"}


@pytest.mark.parametrize("error", [None, KeyboardInterrupt])
def test_no_full_collection_of_garbage_before_the_compilers_start(
    error: type[BaseException] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Afterwards, and after an error, all is as before."""
    x, y = vectors()
    before, during = gc.get_threshold(), []
    lower = CuTile.lower

    def seen(self: CuTile, *given: Any) -> Any:
        during.append(gc.get_threshold())
        if error is not None:
            raise error
        return lower(self, *given)

    monkeypatch.setattr(CuTile, "lower", seen)
    with pytest.raises(error) if error else nullcontext():
        found(space(64, 128), CpuMachine(doubles), on(x, y))
    assert set(during) == {(*before[:2], 1 << 30)} and gc.get_threshold() == before


def test_overlapping_searches_leave_the_garbage_collector_as_it_was() -> None:
    before, first, second = gc.get_threshold(), building.no_full_collection(), building.no_full_collection()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    second.__exit__(None, None, None)
    assert gc.get_threshold() == before


def test_tile_ir_is_read_while_compilers_run(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = vectors()
    assemble = CuTile.assemble

    def when_all_are_read(self: CuTile, lowered: Any, seconds: float) -> Any:
        assert until(lambda: building._module.cache_info().currsize == 3), "read before the first cubin is there"
        return assemble(self, lowered, seconds)

    monkeypatch.setattr(CuTile, "assemble", when_all_are_read)
    result = found(space(64, 128, 256), CpuMachine(doubles), on(x, y))
    assert [one.status for one in result.outcomes] == ["timed"] * 3
    assert building._module.cache_info().currsize == 0, "what is large is not kept"


def test_shipped_wins_a_tie() -> None:
    """X-23: within 1 % nothing changes what is in use."""
    x, y = vectors()
    machine = CpuMachine(doubles, {"TILE=64": 10.0, "TILE=128": 10.05})
    assert found(space(64, 128), machine, on(x, y), shipped=1).best == 1
    assert found(space(64, 128), machine, on(x, y), shipped=0).best == 0


def test_equal_work_is_timed_once() -> None:
    """X-09: a constant that the code does not use, and a hint that changes nothing."""
    x, y = vectors()
    configs = [{"TILE": 64, "UNUSED": n, "occupancy": o} for n in (1, 2) for o in (None, 1)]
    configs.append({"TILE": 128, "UNUSED": 1, "occupancy": None})
    machine = CpuMachine(doubles)
    result = found(configs, machine, on(x, y), hints_fn=lambda config: {"occupancy": config["occupancy"]})
    assert [one.status for one in result.outcomes] == ["timed", "duplicate", "duplicate", "duplicate", "timed"]
    assert result.outcomes[3].us == result.outcomes[0].us
    assert "TILE=64 UNUSED=1 occupancy=auto" in result.outcomes[3].reason
    assert len(machine.raced) == 2


def test_another_grid_is_other_work() -> None:
    x, y = vectors()
    configs = [{"TILE": 64, "blocks": n} for n in (16, 8)]
    machine = CpuMachine(doubles)
    result = found(configs, machine, on(x, y), grid_fn=lambda config: (config["blocks"],))
    assert [one.status for one in result.outcomes] == ["timed", "timed"]


def test_a_wrong_configuration_is_fast_and_never_picked() -> None:
    """X-24."""
    x, y = vectors()

    def does(trial: Trial, args: tuple[Any, ...]) -> None:
        args[1].copy_(args[0] * (2.1 if trial.config["TILE"] == 128 else 2))

    machine = CpuMachine(does, {"TILE=128": 1.0})
    result = found(space(64, 128), machine, on(x, y))
    assert (result.best, result.outcomes[1].status) == (0, "wrong")
    assert "'y'[" in result.outcomes[1].reason and "TILE=128" not in machine.raced


def test_skipped_work_shows_although_the_output_held_the_answer() -> None:
    """trust.md 1: the array is what an earlier, right call has left."""
    x, y = vectors()
    y.copy_(x * 2)

    def does(trial: Trial, args: tuple[Any, ...]) -> None:
        half = 512 if trial.config["TILE"] == 128 else 1024
        args[1][:half] = args[0][:half] * 2

    result = found(space(64, 128), CpuMachine(does), on(x, y))
    assert result.outcomes[1].status == "wrong" and "nan" in result.outcomes[1].reason


def test_declared_outputs_and_in_place_arrays_are_as_before() -> None:
    """A-41: to the byte, and each timed launch of an in-place kernel finds its input."""
    x, y = vectors()
    before, seen = x.clone(), set()

    def does(trial: Trial, args: tuple[Any, ...]) -> None:
        seen.add(float(args[0][0]))
        doubles_in_place(trial, args)

    machine = CpuMachine(does, {"TILE=128": 5.0})
    result = found(space(64, 128), machine, lambda config: (x, config["TILE"]), double_in_place)
    assert result.best == 1 and torch.equal(x, before) and seen == {float(before[0])}
    found(space(64, 128), CpuMachine(doubles), on(x, y))
    assert bool((y == 7.0).all())


def test_an_alias_is_in_place_too() -> None:
    """One argument is read and another written, on the same memory."""
    x, _ = vectors()
    before = x.clone()

    def does(trial: Trial, args: tuple[Any, ...]) -> None:
        args[1].copy_(args[0] * 2)

    result = found(space(64, 128), CpuMachine(does), on(x, x))
    assert [one.status for one in result.outcomes] == ["timed", "timed"] and torch.equal(x, before)


def test_arguments_may_be_clones() -> None:
    """X-08: `args_fn` makes its own output each time."""
    x, y = vectors()
    result = found(space(64, 128), CpuMachine(doubles, {"TILE=128": 5.0}), lambda c: (x, y.clone(), c["TILE"], 0))
    assert result.best == 1 and bool((y == 7.0).all())


def test_lists_of_tensors() -> None:
    """The arrays of a list are written, compared and given back."""
    sources = [torch.randn(rows, 16) for rows in (32, 17)]
    targets = [torch.ones_like(one) for one in sources]

    def does(trial: Trial, args: tuple[Any, ...]) -> None:
        for source, target in zip(args[0], args[1], strict=True):
            target.copy_(source * 2)
        if trial.config["TILE"] == 16:
            args[1][1][16, 3] = 0.0

    configs = space(8, 16, 32)
    result = found(configs, CpuMachine(does), lambda c: (sources, targets, c["TILE"]), doubled, grid_fn=lambda c: (2,))
    assert [one.status for one in result.outcomes] == ["timed", "wrong", "timed"]
    assert "'targets[1]'[16, 3]" in result.outcomes[1].reason
    assert all(bool((one == 1).all()) for one in targets)


@pytest.mark.parametrize("when", ["run", "race"])
@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_ctrl_c_leaves_the_arrays_as_they_were(when: str, error: type[BaseException]) -> None:
    """A-41, also while the race runs."""
    x, _ = vectors()
    before = x.clone()
    machine = CpuMachine(doubles_in_place)

    def does(trial: Trial, args: tuple[Any, ...]) -> None:
        args[0].mul_(2)
        if machine.raced if when == "race" else trial.config["TILE"] == 128:
            raise error

    machine.does = does
    with pytest.raises(error):
        found(space(64, 128), machine, lambda config: (x, config["TILE"]), double_in_place)
    assert torch.equal(x, before)


def test_whatever_fails_is_one_configurations_outcome() -> None:
    """Part 7 check 5: grid, arguments, hints, front end and launch; the others are searched."""
    x, y = vectors()

    def does(trial: Trial, args: tuple[Any, ...]) -> None:
        if trial.config["why"] == "launch":
            raise RuntimeError("CUDA_ERROR_INVALID_VALUE")
        doubles(trial, args)

    def args_fn(config: Any) -> Any:
        return (x, y, {"arguments": 1 // (config["why"] != "arguments")}["arguments"] * config["TILE"], 0)

    reasons = ["", "grid", "arguments", "hints", "front end", "launch"]
    configs = [{"TILE": 100 if why == "front end" else 2 ** (5 + n), "why": why} for n, why in enumerate(reasons)]
    result = found(
        configs, CpuMachine(does), args_fn,
        grid_fn=lambda c: 1024 // c["TILE"] // (c["why"] != "grid"),
        hints_fn=lambda c: {"occupancy": 99 if c["why"] == "hints" else None},
    )  # fmt: skip
    assert result.best == 0
    assert [one.status for one in result.outcomes] == ["timed"] + ["failed"] * 5
    assert [one.stage for one in result.outcomes[1:]] == ["launch", "launch", "launch", "front end", "verify"]
    assert [one.error.__name__ for one in result.outcomes[1:3]] == ["ZeroDivisionError"] * 2  # type: ignore[union-attr]
    assert "CUDA_ERROR_INVALID_VALUE" in result.outcomes[5].reason


def test_where_shipped_does_not_work_the_first_that_does_is_the_reference() -> None:
    x, y = vectors()

    def does(trial: Trial, args: tuple[Any, ...]) -> None:
        if trial.config["TILE"] == 64:
            raise RuntimeError("no")
        doubles(trial, args)

    result = found(space(64, 128, 256), CpuMachine(does), on(x, y))
    assert result.best in (1, 2) and result.outcomes[0].status == "failed"
    assert "TILE=64 does not work" in result.note and "TILE=128" in result.note


def test_nothing_works() -> None:
    """The first error is in the message, all outcomes beside it."""
    x, y = vectors()

    def does(trial: Trial, args: tuple[Any, ...]) -> None:
        raise RuntimeError("out of luck")

    with pytest.raises(NothingWorks, match="none of the 2 configurations works; TILE=64.*out of luck") as caught:
        found(space(64, 128), CpuMachine(does), on(x, y))
    assert [one.status for one in caught.value.outcomes] == ["failed", "failed"]
    assert caught.value.first.error is RuntimeError


def test_a_lost_device_ends_the_search_and_names_the_configuration() -> None:
    x, y = vectors()

    def does(trial: Trial, args: tuple[Any, ...]) -> None:
        if trial.config["TILE"] == 128:
            raise DeviceLost(f"configuration {trial.label} broke the GPU's context")
        doubles(trial, args)

    with pytest.raises(DeviceLost, match="TILE=128"):
        found(space(64, 128), CpuMachine(does), on(x, y))


def test_without_room_to_keep_what_trials_overwrite_shipped_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = vectors()
    machine = CpuMachine(doubles)

    def none_left(arrays: Any) -> Any:
        raise NoRoom("8 GiB of written arrays cannot be kept beside them")

    monkeypatch.setattr(scratch, "Kept", none_left)
    result = found(space(64, 128), machine, on(x, y), shipped=1)
    assert result.best == 1 and machine.ran == [] and "8 GiB" in result.note
    assert {one.status for one in result.outcomes} == {"pruned"}


def test_a_kernel_that_is_not_deterministic_widens_what_is_allowed() -> None:
    x, y = vectors()
    generator = torch.Generator().manual_seed(1)

    def does(trial: Trial, args: tuple[Any, ...]) -> None:
        args[1].copy_(args[0] * 2 + 0.02 * torch.randn(1024, generator=generator))

    result = found(space(64, 128), CpuMachine(does), on(x, y))
    assert [one.status for one in result.outcomes] == ["timed", "timed"]
    assert "not deterministic" in result.note


def products(configs: Any, **options: Any) -> tuple[CpuMachine, Any]:
    """A search of products 256 × 256 × 256 in bfloat16."""
    a, b, c = (torch.randn(256, 256, dtype=torch.bfloat16) for _ in "abc")
    machine = CpuMachine(lambda trial, args: args[2].copy_(args[0] @ args[1]))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(building, "BUDGET_SECONDS", 120.0)
        result = found(
            configs, machine, lambda config: (a, b, c, config["TILE_M"], config["TILE_N"]), product,
            grid_fn=lambda config: (256 // config["TILE_M"], 256 // config["TILE_N"]),
            hints_fn=lambda config: {"occupancy": config["occupancy"]}, **options,
        )  # fmt: skip
    return machine, result


SMALL, LARGER, SPILLS, HOPELESS, HUGE = (
    {"TILE_M": m, "TILE_N": n, "occupancy": occupancy}
    for m, n, occupancy in ((64, 64, None), (128, 64, None), (256, 64, 4), (256, 128, None), (256, 256, None))
)
"""On sm_90: four CTAs an SM leave 128 registers a thread; 256 × 128 sums do not fit into any."""


@pytest.fixture
def assembled(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """What tileiras got, by its length."""
    seen: list[int] = []
    real = CuTile.assemble

    def counting(self: CuTile, lowered: Any, seconds: float) -> Any:
        seen.append(len(lowered.code))
        return real(self, lowered, seconds)

    monkeypatch.setattr(CuTile, "assemble", counting)
    return seen


def test_what_spills_is_not_launched_and_what_must_spill_is_not_compiled(assembled: list[int]) -> None:
    machine, result = products([SMALL, SPILLS, HOPELESS])
    assert [one.status for one in result.outcomes] == ["timed", "pruned", "pruned"]
    assert "B of stack a thread" in result.outcomes[1].reason
    assert "more than 254 registers" in result.outcomes[2].reason
    assert set(machine.ran) == {"TILE_M=64 TILE_N=64 occupancy=auto"} and len(assembled) == 2


def test_the_shipped_one_is_always_launched(assembled: list[int]) -> None:
    """It is what the others are measured against."""
    _, result = products([HOPELESS, SMALL])
    assert [one.status for one in result.outcomes] == ["timed", "timed"] and len(assembled) == 2


def test_if_none_is_in_use_the_quickest_to_compile_is_the_reference(assembled: list[int]) -> None:
    """TileGym's attention: its first configuration takes tileiras 5.6 of the 7 s of a search, and spills."""
    machine, result = products([HOPELESS, SMALL, LARGER], shipped=None)
    assert [one.status for one in result.outcomes] == ["pruned", "timed", "timed"] and len(assembled) == 2
    assert machine.ran[:2] == ["TILE_M=64 TILE_N=64 occupancy=auto"] * 2, "the reference runs twice"
    assert not result.note.startswith("the shipped")


def test_if_none_is_in_use_and_the_quickest_fails_another_is_the_reference() -> None:
    x, y = vectors()

    def does(trial: Trial, args: tuple[Any, ...]) -> None:
        if trial.config["TILE"] == 64:
            raise RuntimeError("no")
        doubles(trial, args)

    machine = CpuMachine(does)
    result = found(space(256, 64, 128), machine, on(x, y), shipped=None)
    assert [one.status for one in result.outcomes] == ["timed", "failed", "timed"]
    assert machine.ran[:3] == ["TILE=64", "TILE=128", "TILE=128"] and "does not work" not in result.note


def test_if_none_is_in_use_and_all_spill_those_that_spill_least_are_raced(assembled: list[int]) -> None:
    _, result = products([HUGE, HOPELESS, SPILLS], shipped=None)
    assert [one.status for one in result.outcomes] == ["pruned", "timed", "timed"] and len(assembled) == 3


def test_where_all_spill_those_that_spill_least_are_launched(assembled: list[int]) -> None:
    """A 4000 × 4097 × 2000 product on an H200: 32 of 40 spill, and so does the fastest."""
    _, result = products([SPILLS, HOPELESS, HUGE])
    assert [one.status for one in result.outcomes] == ["timed", "timed", "pruned"] and len(assembled) == 3
    assert "where the least is" in result.outcomes[2].reason


def test_what_must_spill_is_not_compiled_where_something_spills_less(
    assembled: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """TileGym's group_gemm: what ships takes 256 B of stack, and the other took 6 s to compile."""
    monkeypatch.setattr(accumulators, "LEAST_STACK", 2000)
    _, result = products([SPILLS, HOPELESS])
    assert [one.status for one in result.outcomes] == ["timed", "pruned"] and len(assembled) == 1


@pytest.mark.parametrize(("flush", "l2"), [(True, "cold"), (False, "warm")])
@pytest.mark.parametrize("mode", ["eager", "graph"])
def test_the_way_of_launching_reaches_the_clock(flush: bool, l2: str, mode: str) -> None:
    x, y = vectors()
    machine = CpuMachine(doubles)
    found(space(64), machine, on(x, y), flush_l2=flush, launch_mode=mode)
    assert machine.policy is not None
    assert (machine.policy.l2, machine.policy.launch) == (l2, mode)


def test_cubins_are_where_a_launch_looks_for_them(cache: Path) -> None:
    x, y = vectors()
    found(space(64, 128), CpuMachine(doubles), on(x, y))
    from cutile_cache import _cache

    assert any(cache.iterdir())
    assert _cache is not None


def test_mistakes_of_the_caller_are_one_line() -> None:
    x, y = vectors()
    with pytest.raises(RequestError, match="known: eager, graph"):
        found(space(64), CpuMachine(doubles), on(x, y), launch_mode="lazy")
    with pytest.raises(RequestError, match="number 3 of 1"):
        found(space(64), CpuMachine(doubles), on(x, y), shipped=3)


def test_importing_the_search_is_light() -> None:
    """No torch, NumPy or cuda-tile before a search."""
    code = (
        "import sys, tilewright.runtime.search.searching, tilewright.runtime.search.trials as t\n"
        "assert not {'torch', 'numpy', 'cuda.tile'} & set(sys.modules), sorted(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_kernel_that_is_launched_is_one_object_for_equal_hints() -> None:
    """A-47: each new kernel object would run the front end again."""
    from tilewright.runtime.search.cutile_trials import trials

    made = trials(space(64, 128), lambda c: 1, scale, lambda c: (), lambda c: {"occupancy": 2})
    assert made[0].kernel is made[1].kernel  # type: ignore[union-attr]
