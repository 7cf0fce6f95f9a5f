"""`tuned verify`: what holds, has drifted, is wrong, or cannot be said here. The kernels compile for real elsewhere;
here a machine without a GPU runs their Python functions and its clock says what the test wants."""

from __future__ import annotations

import importlib
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.processes import PATIENCE
from tests.runtime.made_winners import winner

from tilewright.race.protocol import CandidateCrashed, Clock
from tilewright.race.rules import Policy
from tilewright.runtime.capture.described import described
from tilewright.runtime.key import digest
from tilewright.runtime.search.device import Shot
from tilewright.runtime.search.scratch import DeviceLost
from tilewright.runtime.search.trials import Trial, label
from tilewright.runtime.store.verifying import Here, Verified, source_problem, verify
from tilewright.runtime.store.winners import Winner
from tilewright.source.needed import digest_of_needed

torch = pytest.importorskip("torch")
pytest.importorskip("cuda.tile")

BOARD, TOOLKIT = "NVIDIA H200 sm_90", "cuda-tile 1.7.0, tileiras 13.4.92"
HERE = Here(BOARD, TOOLKIT)

KERNELS = """
    import cuda.tile as ct

    @ct.kernel
    def double(x, y, TILE: ct.Constant[int]):
        block = ct.bid(0)
        ct.store(y, (block,), ct.load(x, (block,), (TILE,)) * 2)

    @ct.kernel
    def add_to(x, y, TILE: ct.Constant[int]):
        block = ct.bid(0)
        ct.store(y, (block,), ct.load(x, (block,), (TILE,)) + ct.load(y, (block,), (TILE,)))
"""


@dataclass
class OnCpu:
    """Runs a kernel as a function of tensors; ``times`` are µs by the name of the launch."""

    times: Mapping[str, float]
    wrong: tuple[str, ...] = ()
    fails: Mapping[str, Exception] = field(default_factory=dict)
    crashes_in_race: str = ""
    arch: str = "sm_90"
    policies: list[Policy] = field(default_factory=list)
    seen: list[tuple[str, float]] = field(default_factory=list)
    """Of each launch in the race: its name, and the sum of its output before it."""

    def active(self) -> AbstractContextManager[None]:
        return nullcontext()

    def run(self, trial: Trial, args: tuple[Any, ...]) -> None:
        if trial.config in self.fails:
            raise self.fails[trial.config]
        x, y, _ = args
        if trial.kernel._pyfunc.__name__ == "add_to":
            y += x
        else:
            y.copy_(x * 2)
        if trial.config in self.wrong:
            y[3] += 1

    @contextmanager
    def clock(self, shots: Sequence[Shot], policy: Policy) -> Iterator[tuple[Clock, Policy]]:
        self.policies.append(policy)
        noise = np.random.default_rng(0)
        machine = self

        class Drawn:
            def round(self, order: Sequence[int]) -> Sequence[float]:
                found = []
                for index in order:
                    shot = shots[index]
                    if shot.trial.config == machine.crashes_in_race:
                        raise CandidateCrashed(index, "illegal address")
                    shot.refresh()
                    machine.seen.append((shot.trial.config, float(shot.args[1].sum())))
                    machine.run(shot.trial, shot.args)
                    found.append(machine.times[shot.trial.config] * float(noise.normal(1.0, 0.002)))
                return found

        yield Drawn(), policy


NAME = "kernels_to_verify"


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A module of the user's; `forget` it where it has changed."""
    path = tmp_path / f"{NAME}.py"
    path.write_text(textwrap.dedent(KERNELS))
    monkeypatch.syspath_prepend(tmp_path)
    yield path
    forget()


def forget() -> None:
    """As a new process would find it."""
    sys.modules.pop(NAME, None)
    importlib.invalidate_caches()


def stored(file: Path, kernel: str = "double", **changes: Any) -> Winner:
    made = getattr(importlib.import_module(NAME), kernel)
    x, y = torch.zeros(256), torch.zeros(256)

    def launch(tile: int) -> dict[str, Any]:
        launched = described(made, (256 // tile, 1, 1), (x, y, tile))
        return replace(launched, text=digest_of_needed(file, kernel)).to_json()

    launches = {"winner": launch(128), "runner_up": launch(64), "shipped": launch(32)}
    tiles = {"config": {"TILE": 128}, "runner_up": {"TILE": 64}, "shipped": {"TILE": 32}}
    outcomes = tuple({"label": label(tile), "status": "timed", "us": 1.0} for tile in tiles.values())
    parts: dict[str, Any] = {"board": BOARD, "toolkit": TOOLKIT, "arrays": {}} | changes.pop("parts", {})
    made_of = {"launches": launches, "outcomes": outcomes, **tiles, **changes}
    return winner(digest(parts), kernel=kernel, parts=parts, **made_of)


def one(entry: Winner, device: OnCpu | None, here: Here = HERE, **options: Any) -> Verified:
    [found] = verify([entry], here, device, seconds=PATIENCE, memory="cpu", **options)
    return found


def test_a_winner_that_is_still_the_fastest_holds_with_its_intervals(file: Path) -> None:
    found = one(stored(file), OnCpu({"winner": 10.0, "runner_up": 11.0, "shipped": 12.0}))
    assert found.verdict == "holds", found.reason
    assert [(one.name, one.label) for one in found.against] == [("shipped", "TILE=32"), ("runner_up", "TILE=64")]
    assert found.against[0].ratio.low < 1.2 < found.against[0].ratio.high
    assert "shipped takes 1.2" in found.reason
    assert found.us == pytest.approx(10.0, rel=0.01)
    assert found.to_json()["against"][0]["ratio"]["n"] >= 24


def test_one_that_another_overtook_has_drifted_and_names_the_command_that_mends_it(file: Path) -> None:
    entry = stored(file)
    found = one(entry, OnCpu({"winner": 10.0, "runner_up": 9.0, "shipped": 12.0}))
    assert found.verdict == "drifted"
    assert "runner-up TILE=64 is 1.1" in found.reason and f"prune --key {entry.key[:12]}`" in found.reason


@pytest.mark.parametrize("shipped", [9.95, 10.0])
def test_a_difference_inside_the_tie_band_is_no_drift(file: Path, shipped: float) -> None:
    found = one(stored(file), OnCpu({"winner": 10.0, "runner_up": 10.0, "shipped": shipped}))
    assert found.verdict == "holds", found.reason


def test_another_output_is_wrong_however_fast(file: Path) -> None:
    device = OnCpu({"winner": 1.0, "runner_up": 11.0, "shipped": 12.0}, wrong=("winner",))
    found = one(stored(file), device)
    assert found.verdict == "wrong" and "'y'[3] is " in found.reason
    assert not device.policies  # it was not timed


def test_one_that_no_longer_runs_is_wrong(file: Path) -> None:
    device = OnCpu({}, fails={"winner": RuntimeError("tileiras: internal error")})
    found = one(stored(file), device)
    assert found.verdict == "wrong" and "no longer runs" in found.reason and "internal error" in found.reason
    crashed = one(stored(file), OnCpu({"winner": 1.0, "runner_up": 1.0, "shipped": 1.0}, crashes_in_race="winner"))
    assert crashed.verdict == "wrong" and "illegal address" in crashed.reason


def test_where_the_shipped_one_does_not_run_nothing_is_said(file: Path) -> None:
    found = one(stored(file), OnCpu({}, fails={"shipped": RuntimeError("no")}))
    assert found.verdict == "cannot" and "shipped: RuntimeError: no" in found.reason


def test_a_runner_up_that_does_not_run_is_left_out(file: Path) -> None:
    times = {"winner": 10.0, "shipped": 12.0}
    found = one(stored(file), OnCpu(times, fails={"runner_up": RuntimeError("no")}))
    assert found.verdict == "holds" and [one.name for one in found.against] == ["shipped"]


@pytest.mark.parametrize("kernel", ["add_to", "double"])
def test_before_each_launch_outputs_hold_what_the_first_launch_had(kernel: str, file: Path) -> None:
    """A-41, trust.md 38: a kernel in place gets its input back, and none finds its last answer."""
    device = OnCpu({"winner": 10.0, "runner_up": 11.0, "shipped": 12.0})
    assert one(stored(file, kernel), device).verdict == "holds"
    for name in ("winner", "shipped"):
        assert len({total for launched, total in device.seen if launched == name}) == 1


def test_a_shipped_winner_is_raced_against_its_runner_up_alone(file: Path) -> None:
    entry = stored(file)
    assert entry.launches is not None
    entry = replace(entry, launches=dict(entry.launches) | {"shipped": entry.launches["winner"]})
    found = one(entry, OnCpu({"winner": 10.0, "runner_up": 11.0}))
    assert found.verdict == "holds" and [one.name for one in found.against] == ["runner_up"]


@pytest.mark.parametrize(
    ("parts", "l2", "launch"),
    [({}, "cold", "eager"), ({"flush_l2": False}, "warm", "eager"), ({"launch_mode": "graph"}, "cold", "graph")],
)
def test_it_is_timed_as_it_was_tuned(file: Path, parts: dict[str, Any], l2: str, launch: str) -> None:
    device = OnCpu({"winner": 10.0, "runner_up": 11.0, "shipped": 12.0})
    one(stored(file, parts=parts), device)
    assert [(policy.l2, policy.launch) for policy in device.policies] == [(l2, launch)]


def test_another_toolkit_is_said_and_raced(file: Path) -> None:
    found = one(stored(file), OnCpu({"winner": 1.0, "runner_up": 2.0, "shipped": 2.0}), Here(BOARD, "cuda-tile 1.8.0"))
    assert (found.verdict, found.tuned_with) == ("holds", TOOLKIT)


# What cannot be raced


def test_without_a_gpu_what_can_be_said_is_said(file: Path) -> None:
    found = one(stored(file), None, Here(None, "cuda-tile 1.8.0"))
    assert found.verdict == "cannot" and "no GPU here" in found.reason and "source is unchanged" in found.reason
    assert found.tuned_with == TOOLKIT


def test_a_changed_source_and_a_kernel_that_is_gone(file: Path) -> None:
    """Part 7 check 6: the stale entry is found by its source."""
    entry = stored(file)
    assert source_problem(entry) == ""
    original = file.read_text()
    file.write_text(file.read_text().replace("* 2)", "* 3000)"))
    forget()
    for device in (None, OnCpu({})):
        found = one(entry, device)
        assert found.verdict == "cannot" and "'double'" in found.reason and "has changed" in found.reason
    file.write_text("x = 1\n")
    forget()
    assert "does not define 'double'" in source_problem(entry)
    file.unlink()
    forget()
    assert "the kernel's file is gone" in source_problem(entry)
    file.write_text(original + "raise OSError('the user made a mistake')\n")
    forget()
    assert "the user made a mistake" in source_problem(entry)


def test_another_board_an_imported_entry_and_a_broken_description(file: Path) -> None:
    device = OnCpu({})
    assert "another GPU" in one(stored(file), device, Here("NVIDIA B200 sm_100", TOOLKIT)).reason
    imported = replace(stored(file), origin="import", launches=None)
    assert "it was imported" in one(imported, device).reason
    broken = replace(stored(file), launches={"winner": {"kernel": "double"}})
    assert one(broken, device).verdict == "cannot"


def test_no_room_for_one_entry_does_not_end_the_others(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    device, full = OnCpu({"winner": 1.0, "runner_up": 2.0, "shipped": 2.0}), iter([True, False])
    clock = device.clock

    def sometimes(shots: Sequence[Shot], policy: Policy) -> AbstractContextManager[tuple[Clock, Policy]]:
        if next(full):
            raise torch.OutOfMemoryError("CUDA out of memory")
        return clock(shots, policy)

    monkeypatch.setattr(device, "clock", sometimes)
    found = list(verify([stored(file)] * 2, HERE, device, seconds=PATIENCE, memory="cpu"))
    assert [one.verdict for one in found] == ["cannot", "holds"] and "out of memory" in found[0].reason


def test_a_broken_context_ends_the_rest(file: Path) -> None:
    device = OnCpu({}, fails={"winner": DeviceLost("configuration TILE=128 broke the GPU's context")})
    found = list(verify([stored(file)] * 2, HERE, device, memory="cpu"))
    assert [one.verdict for one in found] == ["wrong", "cannot"]
    assert "an earlier entry broke" in found[1].reason
