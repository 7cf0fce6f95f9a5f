"""cuda-tile's `exhaustive_search` replaced: by every name, with its signature, result and errors, and put back.

Trials, keys, search locks and the store are the real ones; the search itself, which needs a GPU, is given by the tests.
"""

from __future__ import annotations

import inspect
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FunctionType, ModuleType, SimpleNamespace
from typing import Any

import cuda.tile as ct
import pytest
from cuda.tile.tune import Measurement, TuningResult, _tune

from tilewright.errors import MachineError, RequestError
from tilewright.runtime.environment import Environment
from tilewright.runtime.patch import exhaustive, exhaustive_problem, patch
from tilewright.runtime.search.searching import NothingWorks, SearchResult, TrialOutcome
from tilewright.runtime.store import warn_once
from tilewright.runtime.store.winners import Winners

THEIRS = [_tune.exhaustive_search]
"""In a list, where the patch does not reach: it replaces what stands by name in a module."""
SPACE = [SimpleNamespace(TILE_M=64, occupancy=1), SimpleNamespace(TILE_M=128, occupancy=2)]


@ct.kernel
def kernel(x, y, TILE: ct.Constant[int]):  # type: ignore[no-untyped-def]
    ct.store(y, (ct.bid(0),), ct.load(x, (ct.bid(0),), (TILE,)))


@ct.kernel
def other_kernel(x, y, TILE: ct.Constant[int]):  # type: ignore[no-untyped-def]
    ct.store(y, (ct.bid(0),), ct.load(x, (ct.bid(0),), (TILE,)) * 2)


@dataclass
class Array:
    """What the key asks of a tensor."""

    shape: tuple[int, ...] = (4096,)
    dtype: str = "torch.float32"
    address: int = 512

    def data_ptr(self) -> int:
        return self.address

    def stride(self) -> tuple[int, ...]:
        return (1,) * len(self.shape)

    def get_device(self) -> int:
        return 0


@dataclass
class Searches:
    """A search that says which configuration is the fastest, and keeps what it was asked."""

    best: int = 1
    asked: list[tuple[Any, ...]] = field(default_factory=list)
    error: Exception | None = None
    outcomes: Callable[[int, Any], TrialOutcome] = lambda place, trial: outcome(trial, us=10.0 - place)

    def __call__(self, trials: Sequence[Any], **options: Any) -> SearchResult:
        self.asked.append((tuple(trials), options))
        if self.error is not None:
            raise self.error
        outcomes = tuple(self.outcomes(place, trial) for place, trial in enumerate(trials))
        return SearchResult(self.best, 0, outcomes, {"race": 0.1})


def outcome(trial: Any, us: float | None = 10.0, status: Any = "timed", **more: Any) -> TrialOutcome:
    given = {"reason": "", "stage": None, "error": None, "error_margin_us": 0.1, "samples": 20, **more}
    return TrialOutcome(label=trial.label, status=status, us=us, **given)


@dataclass
class World:
    search: Searches
    path: Path
    capturing: bool = False

    def __call__(self) -> Environment:
        return Environment(
            search=self.search,
            winners=Winners(self.path),
            board=lambda device: f"NVIDIA H200 sm_90 ({device})",
            capturing=lambda stream: self.capturing,
        )


@contextmanager
def patched() -> Iterator[None]:
    assert patch.install()
    try:
        yield
    finally:
        patch.uninstall()


def search_of_cuda_tile(monkeypatch: pytest.MonkeyPatch, theirs: Callable[..., Any]) -> None:
    """Calls ``theirs`` in place of cuda-tile's own search."""
    passed_to = exhaustive_problem.SearchCall.passed_to
    monkeypatch.setattr(exhaustive_problem.SearchCall, "passed_to", lambda call, search: passed_to(call, theirs))


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    for name in ("TILEWRIGHT_TUNING", "TILEWRIGHT_WIDEN", "DISABLE_AUTOTUNE", "TILEGYM_DISABLE_AUTOTUNE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TILEWRIGHT_TUNED", str(tmp_path))
    one = World(Searches(), tmp_path / "tuned.db")
    monkeypatch.setattr(exhaustive, "Environment", one)
    with patched():
        yield one


X, Y = Array(), Array(address=1 << 20)


def tuned(space: Any = SPACE, **changed: Any) -> Any:
    """A call as TileGym's modules make it."""
    given: dict[str, Any] = {
        "stream": 0,
        "grid_fn": lambda c: (4096 // c.TILE_M,),
        "kernel": kernel,
        "args_fn": lambda c: (X, Y, c.TILE_M),
        "hints_fn": lambda c: {"occupancy": c.occupancy},
        "quiet": True,
        **changed,
    }
    return ct.tune.exhaustive_search(space, **given)


# Putting it there, and taking it away -------------------------------------------------------------


@contextmanager
def module_that_imports_by_name(name: str) -> Iterator[ModuleType]:
    one = ModuleType(name)
    exec(
        "from cuda.tile.tune import exhaustive_search\nfrom cuda.tile.tune import exhaustive_search as named", vars(one)
    )
    sys.modules[name] = one
    try:
        yield one
    finally:
        del sys.modules[name]


def names() -> dict[tuple[str, str], Any]:
    """Every module-level name that is called like the function, or is the function."""
    return {
        (module.__name__, name): value
        for module in list(sys.modules.values())
        for name, value in list(vars(module).items())
        if value is THEIRS[0] or (type(value) is FunctionType and getattr(value, "__wrapped__", None) is THEIRS[0])
    }


def test_every_name_is_replaced_and_comes_back() -> None:
    with module_that_imports_by_name("imported_before"):
        before = names()
        assert {("imported_before", "exhaustive_search"), ("imported_before", "named")} <= set(before)
        assert patch.install() and patch.install()
        with module_that_imports_by_name("imported_after"):
            during = names()
            assert not any(value is THEIRS[0] for value in during.values())
            assert ("imported_after", "named") in during
            patch.uninstall()
            assert vars(sys.modules["imported_after"])["named"] is THEIRS[0]
        assert names() == before
        patch.uninstall()
        assert names() == before


def test_the_signature_and_the_documentation_stay() -> None:
    with patched():
        replaced = ct.tune.exhaustive_search
        assert replaced is not THEIRS[0]
        assert inspect.signature(replaced) == inspect.signature(THEIRS[0])
        assert replaced.__doc__ == THEIRS[0].__doc__
        assert tuple(inspect.signature(replaced).parameters) == patch.PARAMETERS
    assert ct.tune.exhaustive_search is THEIRS[0]


def test_another_cuda_tile_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def exhaustive_search(space, kernel, *, budget=None):  # type: ignore[no-untyped-def]
        return "theirs"

    monkeypatch.setattr(_tune, "exhaustive_search", exhaustive_search)
    with pytest.warns(patch.PatchWarning, match="takes .space, kernel, budget.; known: cuda-tile 1.7"):
        assert not patch.install()
    assert _tune.exhaustive_search is exhaustive_search


def test_another_result_is_left_alone() -> None:
    one = SimpleNamespace(exhaustive_search=THEIRS[0], Measurement=Measurement, TuningResult=Measurement)
    assert patch.unknown_shape(_tune) == ""
    assert patch.unknown_shape(one) == "gives another TuningResult"


# The result ---------------------------------------------------------------------------------------


def test_the_result_is_cuda_tiles(world: World) -> None:
    found = tuned()
    assert type(found) is TuningResult
    assert type(found.best) is Measurement
    assert found.best.config is SPACE[1]
    assert found.best in found.successes
    assert [(one.config, one.mean_us, one.num_samples) for one in found.successes] == [
        (SPACE[0], 10.0, 20),
        (SPACE[1], 9.0, 20),
    ]
    ((trials, options),) = world.search.asked
    assert [trial.label for trial in trials] == ["TILE_M=64 occupancy=1", "TILE_M=128 occupancy=2"]
    assert options == {"stream": 0, "shipped": None, "flush_l2": True}


def test_what_became_of_each(world: World) -> None:
    """A duplicate has the measurement of its class; what was left out, wrong or broke is a failure with its reason."""
    made = [
        lambda trial: outcome(trial, us=5.0),
        lambda trial: outcome(trial, us=5.0, status="duplicate", reason="same code"),
        lambda trial: outcome(trial, us=None, status="pruned", reason="600 spill stores"),
        lambda trial: outcome(trial, us=None, status="wrong", reason="y differs by 0.5"),
        lambda trial: outcome(trial, us=None, status="failed", reason="no", error=ct.TileStaticEvalError),
    ]
    world.search.best, world.search.outcomes = 0, lambda place, trial: made[place](trial)
    space = [SimpleNamespace(TILE_M=64 << place, occupancy=1) for place in range(5)]
    for found in (tuned(space), tuned(space)):  # searched, then stored
        assert [one.config for one in found.successes] == space[:2]
        assert [(c, e.__name__, m) for c, e, m in found.failures] == [
            (space[2], "NotLaunched", "600 spill stores"),
            (space[3], "WrongResult", "y differs by 0.5"),
            (space[4], "StaticEvalError", "no"),
        ]
    assert [options["shipped"] for _, options in world.search.asked] == [None, 0], (
        "one differs: compared with the first"
    )


def test_where_none_differs_the_first_configuration_need_not_be_compiled(world: World) -> None:
    made = [lambda trial: outcome(trial, us=None, status="pruned", reason="it spills"), outcome]
    world.search.outcomes = lambda place, trial: made[place](trial)
    for _ in range(2):  # searched, then stored
        assert tuned().best.config is SPACE[1]
    assert [options["shipped"] for _, options in world.search.asked] == [None]


def test_it_says_what_it_found_unless_quiet(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    tuned(quiet=True)
    assert capsys.readouterr().out == ""
    tuned(quiet=False, flush_l2=False)
    assert "2 succeeded, 0 failed" in capsys.readouterr().out
    tuned(quiet=False, flush_l2=False)
    assert capsys.readouterr().out == "", "a stored winner is no news"


def test_a_configuration_whose_functions_raise_is_one_failure(world: World) -> None:
    def grid(config: Any) -> tuple[int]:
        if config.TILE_M == 64:
            raise ZeroDivisionError("no grid")
        return (1,)

    tuned(grid_fn=grid)
    ((first, second), _) = world.search.asked[0]
    assert "no grid" in first.reason
    assert second.grid == (1,)


@pytest.mark.parametrize(
    ("space", "error"),
    [([], ValueError), ((c for c in SPACE), TypeError), ({"a": 1}, TypeError), (3, TypeError)],
    ids=["empty", "generator", "dict", "number"],
)
def test_a_wrong_space_is_the_error_that_callers_expect(world: World, space: Any, error: type) -> None:
    """Part 7 check 5, A-45."""
    with pytest.raises(error) as raised:
        tuned(space)
    assert isinstance(raised.value, RequestError)
    assert len(str(raised.value).splitlines()) == 1
    assert not world.search.asked


def test_nothing_that_works_is_a_value_error(world: World) -> None:
    """TileGym's attention catches it, and goes on with its other variant."""
    world.search.error = NothingWorks([TrialOutcome("TILE_M=64", "failed", "no registers", stage="compile")])
    with pytest.raises(ValueError, match="No valid config found in search space.\\n.*no registers"):
        tuned()


def test_no_room_for_trials_is_the_first_configuration(world: World) -> None:
    """Nothing was compared, so nothing may replace the first; and nothing is stored."""
    world.search.best = 0
    world.search.outcomes = lambda place, trial: outcome(trial, us=None, status="pruned", reason="no room")
    with pytest.warns(warn_once.TunedStoreWarning, match="first configuration, which is not measured"):
        assert tuned().best.config is SPACE[0]
    assert not Winners(world.path).all()


# The key and the store ----------------------------------------------------------------------------


def test_found_once(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    first = tuned()
    world.search = Searches(error=AssertionError("searched again"))
    monkeypatch.setitem(sys.modules, "tilewright.runtime.search.searching", None)  # a hit does not import it
    assert tuned() == first


def test_a_hit_asks_each_function_once_a_configuration(world: World) -> None:
    tuned()
    asked: list[Any] = []
    tuned(args_fn=lambda c: asked.append(c) or (X, Y, c.TILE_M))
    assert asked == SPACE


MORE = [*SPACE, SimpleNamespace(TILE_M=32, occupancy=4)]
CHANGES: dict[str, dict[str, Any]] = {
    "another grid": {"grid_fn": lambda c: (1 + 4096 // c.TILE_M,)},
    "another kernel": {"kernel": other_kernel},
    "a kernel of the configuration": {"kernel": lambda c: other_kernel if c.TILE_M == 64 else kernel},
    "another shape": {"args_fn": lambda c: (Array((2048,)), Y, c.TILE_M)},
    "another dtype": {"args_fn": lambda c: (Array(dtype="torch.float16"), Y, c.TILE_M)},
    "another alignment": {"args_fn": lambda c: (Array(address=520), Y, c.TILE_M)},
    "in place": {"args_fn": lambda c: (Y, Y, c.TILE_M)},
    "another constant": {"args_fn": lambda c: (X, Y, 2 * c.TILE_M)},
    "a list of arrays": {"args_fn": lambda c: ([X, X], Y, c.TILE_M)},
    "other hints": {"hints_fn": lambda c: {"occupancy": 1}},
    "no hints": {"hints_fn": None},
    "warm L2": {"flush_l2": False},
    "another order": {"space": SPACE[::-1]},
    "one more": {"space": MORE},
    "the same tiles under another name": {
        "space": [{"T": c.TILE_M} for c in SPACE],
        "grid_fn": lambda c: (4096 // c["T"],),
        "args_fn": lambda c: (X, Y, c["T"]),
        "hints_fn": lambda c: {"occupancy": c["T"] // 64},
    },
}


@pytest.mark.parametrize("change", CHANGES, ids=str)
def test_what_changes_the_work_is_searched_anew(world: World, change: str) -> None:
    """X-21, W3: nothing that decides is missing from the key."""
    tuned()
    tuned(**CHANGES[change])
    assert len(world.search.asked) == 2


def test_what_changes_nothing_is_not(world: World) -> None:
    tuned()
    tuned(stream=7, args_fn=lambda c: (Array(address=4096), Array(address=1 << 22), c.TILE_M))
    assert len(world.search.asked) == 1


def test_another_toolkit_or_board(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    tuned()
    monkeypatch.setattr("tilewright.runtime.patch.exhaustive_problem.toolkit", lambda: "cuda-tile 1.7.0, tileiras 99")
    tuned()
    assert len(world.search.asked) == 2


def test_the_winner_is_stored_with_its_evidence(world: World) -> None:
    tuned()
    (winner,) = Winners(world.path).all()
    assert (winner.origin, winner.index, winner.kernel) == ("run", 1, "kernel")
    assert dict(winner.config or {}) == {"TILE_M": 128, "occupancy": 2}
    assert dict(winner.shipped or {}) == {"TILE_M": 64, "occupancy": 1}
    assert [one["status"] for one in winner.outcomes] == ["timed", "timed"]
    assert winner.parts["board"] == "NVIDIA H200 sm_90 (0)"


def test_a_winner_of_another_space_is_not_used(world: World) -> None:
    """Whatever stands under the key: its place and how it is shown must agree with this call's configurations."""
    tuned()
    (winner,) = Winners(world.path).all()
    Winners(world.path).remove([winner.key])
    Winners(world.path).put(type(winner)(**{**vars(winner), "label": "TILE_M=512"}))
    assert tuned().best.config is SPACE[1]
    assert len(world.search.asked) == 2


def test_one_searches_and_the_others_wait(world: World) -> None:
    gate = threading.Barrier(4)
    found: list[Any] = []

    def one() -> None:
        gate.wait()
        found.append(tuned().best.config)

    threads = [threading.Thread(target=one) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [SPACE[1]] * 4
    assert len(world.search.asked) == 1


# Modes --------------------------------------------------------------------------------------------


def test_off_is_cuda_tiles_own(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    monkeypatch.setenv("TILEWRIGHT_TUNING", "off")
    search_of_cuda_tile(monkeypatch, lambda **given: asked.append(given) or "theirs")
    assert tuned() == "theirs"
    (given,) = asked
    assert given["search_space"] is SPACE and given["kernel"] is kernel and tuple(given) == patch.PARAMETERS
    assert (given["quiet"], given["single_run_timeout_sec"], given["flush_l2"]) == (True, None, True)


@pytest.mark.parametrize("switch", ["DISABLE_AUTOTUNE", "TILEGYM_DISABLE_AUTOTUNE"])
def test_disabled_is_the_first_configuration(world: World, monkeypatch: pytest.MonkeyPatch, switch: str) -> None:
    """A-16: read before the store, on every path; a caller that compares times gets a number."""
    tuned()
    monkeypatch.setenv(switch, "1")
    found = tuned()
    assert found.best.config is SPACE[0]
    assert found.best.num_samples == 0
    assert 1e9 < found.best.mean_us < float("inf")
    assert len(world.search.asked) == 1


def test_stored_only(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWRIGHT_TUNING", "stored")
    with pytest.warns(warn_once.TunedStoreWarning, match="no winner is stored.*: kernel runs with its first") as said:
        assert [tuned().best.config for _ in "ab"] == [SPACE[0]] * 2
    assert len(said) == 1
    assert not world.search.asked
    monkeypatch.delenv("TILEWRIGHT_TUNING")
    tuned()
    monkeypatch.setenv("TILEWRIGHT_TUNING", "stored")
    assert tuned().best.config is SPACE[1]


def test_nothing_is_searched_while_a_graph_is_captured(world: World) -> None:
    world.capturing = True
    with pytest.warns(warn_once.TunedStoreWarning, match="CUDA graph is being captured"):
        assert tuned().best.config is SPACE[0]
    world.capturing = False
    tuned()
    world.capturing = True
    assert tuned().best.config is SPACE[1]


@pytest.mark.parametrize("error", [MachineError("no compiler"), RuntimeError("ours"), KeyError("ours")], ids=repr)
def test_what_we_cannot_do_cuda_tile_does(world: World, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    world.search.error = error
    search_of_cuda_tile(monkeypatch, lambda *given, **more: "theirs")
    with pytest.warns(warn_once.TunedStoreWarning, match="cuda-tile's own search does") as said:
        assert tuned() == "theirs"
    assert len(said) == 1


def test_what_cuda_tiles_search_raises_is_not_raised_during_an_error_of_ours(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The traceback that the user reads is of their own program."""

    def theirs(*given: Any, **more: Any) -> Any:
        raise LookupError("theirs")

    world.search.error = RuntimeError("ours")
    search_of_cuda_tile(monkeypatch, theirs)
    with pytest.warns(warn_once.TunedStoreWarning), pytest.raises(LookupError, match="theirs") as raised:
        tuned()
    assert raised.value.__context__ is None


def test_stored_only_never_searches_whatever_goes_wrong(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWRIGHT_TUNING", "stored")
    search_of_cuda_tile(monkeypatch, lambda *given, **more: "searched")
    monkeypatch.setattr(exhaustive, "problem_of", lambda *given: 1 / 0)
    with pytest.warns(warn_once.TunedStoreWarning, match="cannot look up what is stored .ZeroDivisionError"):
        assert tuned().best.config is SPACE[0]


# What is launched, and what is tried ---------------------------------------------------------------


def as_tilegyms_attention() -> Any:
    result = ct.tune.exhaustive_search(
        SPACE, 0, lambda c: (4096 // c.TILE_M,), kernel, lambda c: (X, Y, c.TILE_M), quiet=True
    )
    return result.best.config, kernel.replace_hints(occupancy=2)


def test_trials_have_the_hints_that_are_launched(world: World) -> None:
    """W1."""
    as_tilegyms_attention()
    ((trials, _),) = world.search.asked
    assert [trial.hints for trial in trials] == [{"occupancy": 2}, {"occupancy": 2}]
    (winner,) = Winners(world.path).all()
    assert winner.parts["launched_hints"] == {"occupancy": 2}


def test_widened(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWRIGHT_WIDEN", "1")
    world.search.best = 2
    found = tuned()
    ((trials, options),) = world.search.asked
    assert options["shipped"] == 0, "a neighbour may be wrong, so it is no reference"
    assert [trial.config for trial in trials[:2]] == SPACE
    assert 2 < len(trials) <= 64
    assert found.best.config == trials[2].config
    assert found.best.config not in SPACE
    monkeypatch.delenv("TILEWRIGHT_WIDEN")
    world.search.best = 1
    assert tuned().best.config is SPACE[1], "without it, another key"


def test_neighbours_that_launch_the_same_are_not_tried(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWRIGHT_WIDEN", "1")
    tuned(hints_fn=lambda c: {"occupancy": 2})  # the configuration's own occupancy changes nothing
    ((trials, _),) = world.search.asked
    assert [trial.label for trial in trials] == [
        "TILE_M=64 occupancy=1", "TILE_M=128 occupancy=2", "TILE_M=32 occupancy=1",
    ]  # fmt: skip


def test_no_warning_on_the_way(world: World) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tuned()
        tuned()
