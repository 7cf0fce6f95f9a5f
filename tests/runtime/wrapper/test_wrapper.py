"""`tilewright.tuned`: tuned once, remembered, launched. On the CPU: the launch and the search are made up, the
store, the search_locks, the processes and the keys are real."""

from __future__ import annotations

import json
import os
import re
import sqlite3
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Any, get_type_hints

import cuda.tile as ct
import pytest
from tests.processes import until
from tests.runtime import kit_wrapper
from tests.runtime.kit_wrapper import World, scale

import tilewright
from tilewright import Space
from tilewright.errors import NoGpu, RequestError, StorageError
from tilewright.runtime import modes
from tilewright.runtime.environment import TuningWarning
from tilewright.runtime.store.warn_once import TunedStoreWarning
from tilewright.runtime.store.winners import Winners
from tilewright.runtime.wrapper import wrapper
from tilewright.runtime.wrapper.buckets import powers_of_two

torch = pytest.importorskip("torch")

ROOT = Path(__file__).parents[3]
STREAM = "the stream"


@pytest.fixture(autouse=True)
def _own_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWRIGHT_TUNED", str(tmp_path / "tuned"))
    for name in ("TILEWRIGHT_TUNING", "DISABLE_AUTOTUNE", "TILEGYM_DISABLE_AUTOTUNE"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def world() -> World:
    return World()


def arrays(rows: int = 8, columns: int = 16, dtype: Any = torch.float32) -> tuple[Any, Any]:
    return torch.ones(rows, columns, dtype=dtype), torch.zeros(rows, columns, dtype=dtype)


# The main path ------------------------------------------------------------------------------------------


def test_the_first_call_tunes_and_the_others_launch(world: World) -> None:
    """A-21: the search is inside the miss; later calls are a look-up and a launch of the very same object."""
    op = world.tuned()
    x, y = arrays()
    for factor in (2.0, 3.0, 3.0):
        op(STREAM, x, y, factor)
    assert len(world.searches) == 1 and world.streams == [STREAM]
    (grid, kernel, arguments), second, third = world.launches
    assert arguments[0] is x and arguments[1] is y and arguments[2:] == (2.0, 4, 16) and grid == (2, 1, 1)
    assert second[2][2] == third[2][2] == 3.0
    assert kernel is second[1] is third[1], "A-47: hints are replaced once"
    choice = op.tuned.chosen(x, y, 1.0)
    assert choice.origin == "tuned" and dict(choice.config) == {"TILE": 4, "occupancy": 2}


@pytest.mark.parametrize("others", [(3.0,), (None, 3.0)], ids=["a float", "None, then floats"])
def test_a_first_call_of_another_kind_does_not_slow_the_others(world: World, others: Any) -> None:
    """A hit runs the user's function, the function of its kinds and the launch; it takes no lock."""
    op = world.tuned()
    x, y = arrays()
    for factor in (2, *others, 3.0, 2, 3.0):
        op(STREAM, x, y, factor)
    searches, run = len(world.searches), list[str]()

    def note(frame: Any, event: str, called: Any) -> None:
        run.append(frame.f_code.co_name if event == "call" else called.__name__ if event == "c_call" else "")

    sys.setprofile(note)
    for factor in (3.0, 2, 3.0):
        op(STREAM, x, y, factor)
    sys.setprofile(None)
    assert len(world.searches) == searches == 1 + len(others)
    assert run.count("scale") == 6 and run.count("launch") == 3, "dispatch, hot function and launch"
    assert not {"_otherwise", "_kinds", "__enter__", "acquire"} & set(run)
    assert [arguments[2] for _, _, arguments in world.launches[-3:]] == [3.0, 2, 3.0]


def test_arguments_may_be_named(world: World) -> None:
    op = world.tuned()
    x, y = arrays()
    op(STREAM, factor=2.0, y=y, x=x)
    assert world.launches[0][2][0] is x and world.launches[0][2][1] is y
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'factor'"):
        op(STREAM, x, y)


def test_the_winner_is_stored_with_its_evidence(world: World) -> None:
    op = world.tuned()
    op(STREAM, *arrays(), 2.0)
    (winner,) = Winners().all()
    assert winner.kernel == "scale" and winner.origin == "wrapper" and winner.index == len(world.searches[0]) - 1
    assert winner.config == {"TILE": 4, "occupancy": 2} and winner.shipped == {"TILE": 2, "occupancy": None}
    assert len(winner.outcomes) == 6 and winner.machine["board"] == "NVIDIA H200 sm_90"
    assert winner.launches is not None and set(winner.launches) == {"winner", "runner_up", "shipped"}
    json.dumps(winner.parts)


def test_another_process_launches_what_this_one_stored(world: World) -> None:
    world.tuned()(STREAM, *arrays(), 2.0)
    other = World()
    op = other.tuned()
    x, y = arrays()
    op(STREAM, x, y, 9.0)
    assert not other.searches and other.tiles == [4] and op.tuned.chosen(x, y, 9.0).origin == "stored"


@pytest.mark.parametrize(
    "change",
    [
        lambda x, y: (x[:4], y[:4], 2.0),
        lambda x, y: (x[:, :8], y[:, :8], 2.0),
        lambda x, y: (x.to(torch.float16), y, 2.0),
        lambda x, y: (torch.zeros(8 * 16 + 1)[1:].view(8, 16), y, 2.0),
        lambda x, y: (x, y, 2),
        lambda x, y: (x, x, 2.0),
    ],
    ids=["shape", "strides", "dtype", "alignment", "a whole number", "in place"],
)
def test_a_call_that_differs_is_tuned_by_itself(world: World, change: Any) -> None:
    """A-15, X-21, W3."""
    op = world.tuned()
    x, y = arrays()
    op(STREAM, x, y, 2.0)
    for _ in range(2):
        op(STREAM, *change(x, y))
    assert len(world.searches) == 2
    assert len(Winners().all()) == 2


@pytest.mark.parametrize(
    "changes",
    [
        {"launch": "graph"},
        {"space": [{"TILE": 2, "occupancy": None}, {"TILE": 8, "occupancy": None}]},
        {"grid": lambda call, config: (call.x.shape[0], 1, 1)},
        {"kernel": scale.replace_hints(num_ctas=2)},
    ],
    ids=["launch mode", "space", "grid", "hints"],
)
def test_a_changed_declaration_finds_no_stale_winner(world: World, changes: dict[str, Any]) -> None:
    world.tuned()(STREAM, *arrays(), 2.0)
    world.tuned(**changes)(STREAM, *arrays(), 2.0)
    assert len(world.searches) == 2


def test_another_board_finds_no_winner(world: World) -> None:
    world.tuned()(STREAM, *arrays(), 2.0)
    world.tuned(environment=world.environment(board=lambda device: "NVIDIA B200 sm_100"))(STREAM, *arrays(), 2.0)
    assert len(world.searches) == 2


def test_unkeyed_arguments_do_not_tune_again(world: World) -> None:
    op = world.tuned(unkeyed=("factor",))
    x, y = arrays()
    for factor in (1, 2, 3):
        op(STREAM, x, y, factor)
    assert len(world.searches) == 1 and [launch[2][2] for launch in world.launches] == [1, 2, 3]


def test_nothing_is_asked_of_an_unkeyed_array(world: World) -> None:
    """One that the library makes like another. The launch and the search get it all the same."""
    op = world.tuned(unkeyed=("y",))
    x, y = arrays()
    for made in (y, torch.empty_like(y), torch.empty(y.numel() + 16)[16:].view_as(y)):
        op(STREAM, x, made, 2.0)
        assert world.launches[-1][2][1] is made
    assert len(world.searches) == 1 and world.arguments[0][1] is y
    op(STREAM, x[:1], y, 2.0)
    assert len(world.searches) == 2


def test_an_argument_that_is_sometimes_an_array(world: World) -> None:
    op = world.tuned()
    x, y = arrays()
    scales = torch.ones(1)
    for factor in (2.0, scales, None, 2.0, scales, None):
        op(STREAM, x, y, factor)
    assert len(world.searches) == 3
    assert [launch[2][2] for launch in world.launches] == [2.0, scales, None] * 2


# What an author's functions read ------------------------------------------------------------------------


def test_constants_of_a_float_are_made_at_each_launch(world: World) -> None:
    """A float is keyed by its type: what follows from its value must not be kept."""
    op = world.tuned(arguments={"COLUMNS": lambda call, config: int(call.factor * 10)})
    x, y = arrays()
    for factor in (1.0, 2.0):
        op(STREAM, x, y, factor)
    assert len(world.searches) == 1 and [launch[2][4] for launch in world.launches] == [10, 20]


def test_a_grid_of_an_unkeyed_number_is_made_at_each_launch(world: World) -> None:
    op = world.tuned(unkeyed=("factor",), grid=lambda call, config: (call.factor, 1, 1))
    x, y = arrays()
    for factor in (1, 2):
        op(STREAM, x, y, factor)
    assert [launch[0] for launch in world.launches] == [(1, 1, 1), (2, 1, 1)]


@pytest.mark.parametrize("made", [True, False], ids=["a new view", "the call's own"])
def test_one_function_may_give_all_arguments(world: World, made: bool) -> None:
    def arguments(call: Any, config: Any) -> tuple[Any, ...]:
        x = call.x.view(-1, 16) if made else call.x
        return x, call.y, 0.5, config.TILE, call.x.shape[1]

    op = world.tuned(arguments=arguments, parameters=("x", "y"))
    for value in (1.0, 2.0):
        x, y = arrays()
        op(STREAM, x * value, y)
        assert float(world.launches[-1][2][0][0, 0]) == value
        assert world.launches[-1][2][1] is y and world.launches[-1][2][2:] == (0.5, 4, 16)
    assert len(world.searches) == 1


@ct.kernel
def with_rows(x, y, rows, TILE: ct.Constant[int], COLUMNS: ct.Constant[int]):
    pass


@dataclass
class Settings:
    """Equal by its fields, and without a hash."""

    rows: list[int]


class Changing:
    """Equal to itself alone, whatever it holds."""

    def __init__(self, rows: list[int]) -> None:
        self.rows = rows


def test_what_is_made_of_an_object_is_made_at_each_launch(world: World) -> None:
    """Its key is its type, or the object itself: neither says what it holds."""
    changing = Changing([4])
    made: list[tuple[Callable[[Any], Any], list[Any]]] = [
        (lambda given: given[0], [[4], [8]]),
        (lambda given: given.rows[0], [Settings([4]), Settings([8])]),
        (lambda given: given.rows[0], [changing, changing]),
    ]
    for rows, calls in made:
        op = world.tuned(
            kernel=with_rows,
            parameters=("x", "y", "given"),
            grid=lambda call, config, rows=rows: (rows(call.given), 1, 1),
            arguments={
                "rows": lambda call, config, rows=rows: rows(call.given),
                "COLUMNS": lambda call, config: call.x.shape[1],
            },
        )
        for number, given in zip((4, 8, 8), (*calls, calls[1]), strict=True):
            changing.rows = [number]
            op(STREAM, *arrays(), given)
            grid, _, launched = world.launches[-1]
            assert (grid[0], launched[2]) == (number, number)


class Mask(Enum):
    NONE = 0
    CAUSAL = 1


@dataclass(frozen=True)
class Window:
    left: int
    dtype: Any = torch.float16


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (Mask.NONE, Mask.CAUSAL),
        ((128, 0), (0, 0)),
        (torch.float16, torch.bfloat16),
        (Window(1), Window(2)),
        (Window(1), Window(1, torch.bfloat16)),
        (True, 1),
        (None, 0),
    ],
)
def test_a_flag_of_any_kind_counts_by_value(world: World, one: Any, other: Any) -> None:
    """A-15, in the store and in the process."""
    op = world.tuned(
        kernel=with_rows,
        parameters=("x", "y", "flag"),
        arguments={"rows": lambda call, config: 1, "COLUMNS": lambda call, config: 16},
    )
    for flag in (one, other, one, other):
        op(STREAM, *arrays(), flag)
    assert len(world.searches) == 2


def test_methods_partials_and_objects_are_functions_too(world: World) -> None:
    class Grids:
        def grid(self, call: Any, config: Any) -> tuple[int, ...]:
            return (1, 1, 1)

        __call__ = grid

    def blocks(count: int, call: Any, config: Any) -> tuple[int, ...]:
        return (count, 1, 1)

    given = (Grids().grid, Grids(), partial(blocks, 2), partial(blocks, 3))
    for grid in given:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            world.tuned(grid=grid)(STREAM, *arrays(), 2.0)
    assert len(world.searches) == 3, "a method and an object of one function; and each partial"


def test_the_grid_may_ask_for_the_gpu(world: World) -> None:
    op = world.tuned(grid=lambda call, config: (min(call.hardware.sms, 1000), 1, 1))
    op(STREAM, *arrays(), 2.0)
    assert world.launches[0][0] == (132, 1, 1)


def test_only_what_the_space_allows_is_tried(world: World) -> None:
    space = Space(constants={"TILE": (1, 2, 4)}, shipped={"TILE": 2}, where=(lambda TILE, rows: rows > TILE,))
    op = world.tuned(space=space, dims=lambda call: {"rows": call.x.shape[0]})
    op(STREAM, *arrays(3), 2.0)
    assert [one.label for one in world.searches[0]] == ["TILE=2", "TILE=1"]


# Modes --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("switch", ["DISABLE_AUTOTUNE", "TILEGYM_DISABLE_AUTOTUNE"])
def test_off_is_read_before_the_cache(world: World, switch: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A-16: also after a key was tuned, and for each call; what off launches is never taken for a winner."""
    op = world.tuned()
    x, y = arrays()
    op(STREAM, x, y, 2.0)
    monkeypatch.setenv(switch, "1")
    op(STREAM, x, y, 2.0)
    op(STREAM, x, y, 2.0)
    fresh = world.tuned()
    fresh(STREAM, x[:4], y[:4], 2.0)
    monkeypatch.delenv(switch)
    op(STREAM, x, y, 2.0)
    fresh(STREAM, x[:4], y[:4], 2.0)
    assert world.tiles == [4, 2, 2, 2, 4, 4] and len(world.searches) == 2
    assert len(Winners().all()) == 2, "off stores nothing"


def test_stored_never_searches_and_says_once_what_is_missing(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWRIGHT_TUNING", "stored")
    op = world.tuned()
    with pytest.warns(
        TuningWarning, match=r"nothing is stored for scale on NVIDIA H200 sm_90 with x float32 8×16"
    ) as said:
        [op(STREAM, *arrays(rows), 2.0) for rows in (8, 4, 8)]
    assert len(said) == 1 and "TILEWRIGHT_TUNING=now" in str(said[0].message)
    assert not world.searches and world.tiles == [2, 2, 2]
    monkeypatch.setenv("TILEWRIGHT_TUNING", "now")
    op(STREAM, *arrays(), 2.0)
    monkeypatch.setenv("TILEWRIGHT_TUNING", "stored")
    op(STREAM, *arrays(), 2.0)
    assert len(world.searches) == 1 and world.tiles[3:] == [4, 4]


def test_under_graph_capture_nothing_is_tuned_and_nothing_kept(world: World) -> None:
    op = world.tuned()
    x, y = arrays()
    world.capturing = True
    op(STREAM, x, y, 2.0)
    op(STREAM, x, y, 2.0)
    assert not world.searches and world.tiles == [2, 2] and not Winners().all()
    world.capturing = False
    op(STREAM, x, y, 2.0)
    other = World(capturing=True)
    other.tuned()(STREAM, x, y, 2.0)
    assert len(world.searches) == 1 and other.tiles == [4], "stored is used under capture"


def test_the_author_chooses_the_mode_and_the_environment_overrides_it(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    op = world.tuned(mode="off")
    op(STREAM, *arrays(), 2.0)
    monkeypatch.setenv("TILEWRIGHT_TUNING", "now")
    op(STREAM, *arrays(), 2.0)
    assert world.tiles == [2, 4]
    monkeypatch.setenv("TILEWRIGHT_TUNING", "later")
    with pytest.warns(TuningWarning, match=r"now \| background \| stored \| off; .* nothing is searched"):
        op(STREAM, *arrays(), 4.0)
    assert world.tiles == [2, 4, 4] and len(world.searches) == 1, "the stored winner"


# What goes wrong ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [StorageError("the disk is full"), RuntimeError("no\nluck"), RequestError("bad")])
def test_a_search_that_fails_is_a_warning(world: World, error: Exception) -> None:
    def fails(*_: Any, **__: Any) -> Any:
        world.searches.append([])
        raise error

    op = world.tuned()
    chooser = op.tuned.chooser
    chooser.environment = replace(chooser.environment, search=fails)
    x, y = arrays()
    with pytest.warns(TuningWarning, match="scale is not tuned"):
        op(STREAM, x, y, 2.0)
    op(STREAM, x, y, 2.0)
    assert world.tiles == [2, 2] and len(world.searches) == 1, "tried once a process"


def test_a_failure_is_no_exception_under_w_error(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    world.fastest = lambda trials: 1 // 0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        world.tuned()(STREAM, *arrays(), 2.0)
    assert world.tiles == [2] and "ZeroDivisionError" in capsys.readouterr().err


def test_a_store_that_is_broken_does_not_break_the_call(world: World) -> None:
    path = Winners().path
    path.parent.mkdir(parents=True)
    path.write_bytes(b"not a database at all" * 100)
    with pytest.warns(UserWarning, match="tuned.db"):
        world.tuned()(STREAM, *arrays(), 2.0)
    assert world.tiles == [4]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize("mode", ["now", "off", "stored"])
def test_without_a_gpu_each_call_says_so_and_nothing_else_does(mode: str) -> None:
    """Not an OSError of cuda-tile about a library, and no warning before it."""
    op = tilewright.tuned(scale, **kit_wrapper.DECLARED, mode=mode)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(2):
            with pytest.raises(
                NoGpu, match="scale cannot be launched: there is no GPU that CUDA can use; fix: "
            ) as said:
                op(0, *arrays(), 2.0)
    assert "\n" not in str(said.value)


def test_undeclared_outputs_are_said_once(world: World) -> None:
    """Part 7 check 7: what is written is read from the Tile IR."""
    op = world.tuned(outputs=())
    with pytest.warns(TuningWarning, match=r"scale writes 'y', which is not declared; fix: outputs=\('y',\)"):
        op(STREAM, *arrays(), 2.0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        world.tuned()(STREAM, *arrays(4), 2.0)


def _space_with(hints: Any = None, **constants: Any) -> Space:
    """A space of `scale` with TILE and others."""
    constants, hints = {"TILE": (1, 2), **constants}, hints or {}
    shipped = {name: values[0] for name, values in (*constants.items(), *hints.items())}
    return Space(constants=constants, hints=hints, shipped=shipped)


def _tiles(call: Any, config: Any) -> tuple[int, int, int]:
    return (-(-call.x.shape[0] // config.TILE), _groups(config, call), 1)


def _groups(given: Any, call: Any) -> int:
    return int(given["GROUP"]) if call.x.shape and "GROUP" in given else 1


class _Grid:
    def __call__(self, call: Any, config: Any) -> tuple[int, int, int]:
        return (config.GROUP, 1, 1)


@pytest.mark.parametrize(
    "changes",
    [
        {"grid": lambda call, config: (config.TILE, config.GROUP, 1)},
        {"grid": lambda call, config: (config.TILE, config["GROUP"], 1)},
        {"grid": lambda call, config: _tiles(call, config)},
        {"grid": lambda call, config: _tiles(call=call, config=config)},
        {"grid": lambda call, config: tuple(value for value in config.values())},
        {"grid": lambda call, config: (lambda **names: (names["GRO" + "UP"], 1, 1))(**config)},
        {"grid": _Grid()},
        {"arguments": {"COLUMNS": lambda call, config: 8 * config.GROUP}},
        {"space": Space(constants={"TILE": (1, 2), "GROUP": (1, 2)}, shipped={"TILE": 1, "GROUP": 1},
                        where=[lambda TILE, GROUP: TILE >= GROUP])},
    ],
)  # fmt: skip
def test_a_name_that_the_launch_reads_is_no_parameter(world: World, changes: dict[str, Any]) -> None:
    """A name of the space counts as read wherever it may be read: by helpers, by an unpacked configuration."""
    world.tuned(**{"space": _space_with(GROUP=(1, 2)), **changes})


def test_a_stored_name_that_the_space_has_not_is_never_launched(world: World) -> None:
    """Neither from the store nor from a table; the line has the nearest name."""
    from tilewright.runtime.store.exporting import config_file_of

    world.tuned()(STREAM, *arrays(), 2.0)
    (winner,) = Winners().all()
    Winners().remove([winner.key])
    Winners().put(odd := replace(winner, config={"TILE": 4, "ocupancy": 2}))
    for changes in ({}, {"config_file": config_file_of([odd])}):
        other = World()
        with pytest.warns(TunedStoreWarning, match="'ocupancy' is no name .*did you mean 'occupancy'?.*not used"):
            other.tuned(**changes)(STREAM, *arrays(), 2.0)
        assert all(kernel is not None for _, kernel, _ in other.launches) and len(other.searches) == 1
        Winners().remove([winner.key])


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"kernel": len}, "is no kernel"),
        ({"outputs": ("z",)}, "unknown outputs: argument 'z'; known: x, y, factor"),
        ({"outputs": "y"}, "pass a list of names"),
        ({"unkeyed": ("n",)}, "unknown unkeyed: argument 'n'"),
        ({"buckets": {"n": powers_of_two}}, "unknown buckets: argument 'n'"),
        ({"arguments": {"COLS": len}}, "known: x, y, factor, TILE, COLUMNS"),
        ({"arguments": {"TILE": len}}, "both derived and a constant of the space"),
        ({"launch": "lazy"}, "unknown launch= 'lazy'; known: eager, graph"),
        ({"mode": "later"}, "mode=later is no mode; known: now | background | stored | off"),
        ({"space": []}, "space is empty"),
        ({"space": ({"TILE": t} for t in (1, 2))}, "space is a generator"),
        ({"space": [{"TILE": 1}, {"tile": 2}]}, r"space\[1\] names tile; space\[0\] names TILE"),
        ({"grid": (1, 1, 1)}, "grid= is no Python function; pass lambda call, config"),
        ({"grid": len}, "grid= is no Python function"),
        ({"dims": 5}, "dims= is no Python function; pass lambda call"),
        ({"arguments": 5}, "arguments= is no Python function; pass a mapping"),
        ({"arguments": {"COLUMNS": 5}}, r"arguments\['COLUMNS'\] is no Python function"),
        ({"buckets": 5}, "buckets= is no mapping"),
        ({"buckets": {"x": 5}}, r"buckets\['x'\] is no function; pass tilewright.powers_of_two"),
        ({"buckets": {"x": ("rows", None)}}, r"buckets\['x'\] is no function"),
        ({"parameters": ("x", "y")}, "no value for the kernel's factor"),
        ({"config_file": "/nowhere.json"}, "cannot read /nowhere.json"),
        ({"space": [{"TILE": 2, "ocupancy": 1}]}, "'ocupancy' in the space .* no hint of cuTile.*mean 'occupancy'?"),
        ({"space": _space_with(GROUP_N=(1, 2)), "grid": lambda call, config: _tiles(call, config)}, "'GROUP_N' in the"),
        ({"space": _space_with(hints={"num_warps": (4, 8)})}, "'num_warps' in the space is no parameter of scale and"),
    ],
)
def test_mistakes_of_the_author_are_one_line(world: World, changes: dict[str, Any], said: str) -> None:
    with pytest.raises(RequestError, match=said.replace("|", r"\|")) as raised:
        world.tuned(**changes)
    assert "\n" not in str(raised.value)


# What the hot path cannot show ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (
            lambda n: (torch.ones(8, 16), torch.ones(8, 16), n),
            r"16 values of 'factor'.*buckets={'factor': tile.*unkeyed",
        ),
        (
            lambda n: (torch.ones(8 + n, 16), torch.ones(8 + n, 16), 1.0),
            "16 values of 'x' and 'y'.*buckets={'x': tilewr",
        ),
        (lambda n: (torch.ones(8, 16), torch.ones(8, 16), f"mode {n}"), r"of 'factor'.*fix: unkeyed=\['factor'\] if"),
    ],
    ids=["integers", "lengths", "strings"],
)
def test_an_argument_that_causes_ever_new_searches_is_named_once(world: World, call: Any, said: str) -> None:
    op = world.tuned()
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        for n in range(40):
            op(STREAM, *call(n))
    (only,) = warned
    assert len(world.searches) == 40 and re.search(said, str(only.message))


def test_a_type_checker_knows_the_tuned_function(world: World) -> None:
    """`op.tuned.chosen(…)` passes mypy; a plain function has no such attribute."""
    made = get_type_hints(wrapper.tuned, {"Any": Any, **vars(wrapper)})["return"]
    assert made is wrapper.TunedFunction and get_type_hints(made)["tuned"] is wrapper.Tuned is type(world.tuned().tuned)


def test_few_values_are_no_warning(world: World) -> None:
    op = world.tuned()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for n in range(40):
            op(STREAM, *arrays(1 + n % 7, 16 * (1 + n % 5)), 1.0)
    assert len(world.searches) == 35


@pytest.fixture
def own_scopes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(modes, "scopes", modes._Scopes())


@pytest.mark.usefixtures("own_scopes")
@pytest.mark.parametrize("variable", ["", "now"])
@pytest.mark.parametrize("first", ["before", "after"])
def test_a_server_searches_only_in_its_scope(
    world: World, first: str, variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Outside, the shipped configuration is launched, and the winner as soon as there is one; from any thread."""
    if variable:
        monkeypatch.setenv("TILEWRIGHT_TUNING", variable)
    if first == "before":
        tilewright.search_only_in_scope()
    op = world.tuned()
    x, y = arrays()
    if first == "after":
        op(STREAM, *arrays(4), 2.0)
        tilewright.search_only_in_scope()
    before = len(world.searches)
    with pytest.warns(TuningWarning, match=r"searches run only in their scope.*with tilewright.tuning\(\):"):
        op(STREAM, x, y, 2.0)
    op(STREAM, x, y, 2.0)
    assert (
        len(world.searches) == before and world.tiles[-2:] == [2, 2] and op.tuned.chosen(x, y, 2.0).origin == "shipped"
    )
    with tilewright.tuning():
        other = threading.Thread(target=op, args=(STREAM, *arrays(12), 2.0))
        other.start()
        other.join()
        assert len(world.searches) == before, "another thread is outside"
        op(STREAM, x, y, 2.0)
    op(STREAM, x, y, 2.0)
    assert len(world.searches) == before + 1 and world.tiles[-2:] == [4, 4]
    op(STREAM, *arrays(16), 2.0)
    assert len(world.searches) == before + 1 and world.tiles[-1] == 2


def test_without_outputs_a_call_in_place_has_a_key_of_its_own(world: World) -> None:
    """Each array may be written, so all that start at one address are in the key, and nothing need be said."""
    op = world.tuned(outputs=None)
    x, y = arrays()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for given in ((x, y), (x, x), (y, x), (y, y)):
            op(STREAM, *given, 2.0)
    assert len(world.searches) == 2
    other = World()
    other.tuned()(STREAM, x, y, 2.0)
    assert not other.searches, "the key is the one with outputs=('y',), if nothing is in place"


def test_torch_compile_leaves_a_tuned_function_alone(world: World) -> None:
    """The graph breaks at the call, and none of the frames of a search is compiled (3,400 were)."""
    import torch._dynamo
    from torch._dynamo.utils import counters

    op = world.tuned()

    def step(x: Any) -> Any:
        y = torch.empty_like(x)
        op(STREAM, x, y, 2.0)
        return y + 1

    counters.clear()
    compiled = torch.compile(step, backend="eager")
    for rows in (8, 8, 4, 4):
        compiled(torch.ones(rows, 16))
    assert len(world.launches) == 4 and len(world.searches) == 2
    assert counters["frames"]["total"] < 40
    torch._dynamo.reset()
    with pytest.raises(Exception, match="a tuned kernel launches outside the graph; call it in a torch.library.custom"):
        torch.compile(step, backend="eager", fullgraph=True)(torch.ones(8, 16))


@pytest.mark.parametrize("known", [False, True], ids=["first", "after a real call"])
@pytest.mark.parametrize("kind", ["FakeTensor", "device 'meta'"])
def test_a_tensor_without_memory_is_refused_by_name(world: World, kind: str, known: bool) -> None:
    from torch._subclasses import FakeTensorMode

    op = world.tuned()
    if known:
        for rows in range(2, 9):
            op(STREAM, *arrays(rows), 2.0)
    made = len(world.launches)
    with FakeTensorMode() if kind == "FakeTensor" else torch.device("meta"):
        x, y = torch.empty(8, 16), torch.empty(8, 16)
        for _ in range(2):
            with pytest.raises(RequestError, match=f"scale: 'x' is a .*{kind}.*torch.library.custom_op"):
                op(STREAM, x, y, 2.0)
    assert len(world.launches) == made


# Buckets ------------------------------------------------------------------------------------------------


BUCKETS: dict[str, Any] = {"buckets": {"x": (powers_of_two, None), "y": (powers_of_two, None)}}


def test_shapes_of_a_bucket_share_a_winner_that_is_checked_on_each(world: World) -> None:
    """X-22: first use on another exact shape races the winner against the shipped configuration there."""
    op = world.tuned(**BUCKETS)
    for rows in (100, 120, 120, 100, 120):
        op(STREAM, *arrays(rows), 2.0)
    assert [len(trials) for trials in world.searches] == [6, 2]
    assert [one.label for one in world.searches[1]] == ["TILE=2 occupancy=auto", "TILE=4 occupancy=2"]
    op(STREAM, *arrays(200), 2.0)
    op(STREAM, *arrays(112), 2.0)  # divides by 16, unlike 100 and 120
    assert [len(trials) for trials in world.searches] == [6, 2, 6, 6]
    other = World()
    other.tuned(**BUCKETS)(STREAM, *arrays(120), 2.0)
    assert not other.searches, "the check is remembered"


def test_an_axis_that_is_contiguous_may_have_buckets_too(world: World) -> None:
    """The strides of row-major arrays follow from the shape: they do not part the shapes of a bucket."""
    op = world.tuned(**BUCKETS | {"buckets": dict.fromkeys(("x", "y"), (None, powers_of_two))})
    for columns in (100, 120):
        op(STREAM, *arrays(8, columns), 2.0)
    assert [len(trials) for trials in world.searches] == [6, 2]
    wide = torch.zeros(8, 240)[:, :100]
    op(STREAM, wide, torch.zeros(8, 100), 2.0)
    assert [len(trials) for trials in world.searches] == [6, 2, 6], "other strides are another bucket"


def test_a_neighbour_that_loses_gives_the_shape_a_search_of_its_own(world: World) -> None:
    op = world.tuned(**BUCKETS)
    op(STREAM, *arrays(100), 2.0)
    world.fastest = lambda trials: 0 if len(trials) == 2 else 3
    x, y = arrays(120)
    op(STREAM, x, y, 2.0)
    assert [len(trials) for trials in world.searches] == [6, 2, 6]
    assert dict(op.tuned.chosen(x, y, 2.0).config) == dict(world.searches[2][3].config)  # type: ignore[union-attr]


def test_stored_takes_the_bucket_as_the_author_says(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.tuned(**BUCKETS)(STREAM, *arrays(100), 2.0)
    op = world.tuned(**BUCKETS)
    x, y = arrays(120)
    monkeypatch.setenv("TILEWRIGHT_TUNING", "stored")
    op(STREAM, x, y, 2.0)
    assert op.tuned.chosen(x, y, 2.0).origin == "bucket" and world.tiles[-1] == 4
    monkeypatch.setenv("TILEWRIGHT_TUNING", "now")
    op(STREAM, x, y, 2.0)
    assert len(world.searches) == 2, "and checks it once it may"


# Threads and processes ----------------------------------------------------------------------------------


def test_of_many_threads_one_tunes_and_all_launch_the_same(world: World) -> None:
    def slow(trials: Sequence[Any]) -> int:
        time.sleep(0.2)
        return 3

    world.fastest = slow
    op = world.tuned()
    threads = [threading.Thread(target=op, args=(STREAM, *arrays(), 2.0)) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(world.searches) == 1 and len(set(world.tiles)) == 1 and len(world.tiles) == 6


PROCESS = """\
import os, sys, time, torch
from pathlib import Path
from tests.runtime.kit_wrapper import World

def fastest(trials):
    Path(sys.argv[1], f"searched-{os.getpid()}").touch()
    time.sleep(float(sys.argv[2]))
    return 1 + os.getpid() % (len(trials) - 1)

world = World(fastest=fastest)
op = world.tuned()
x = torch.ones(8, 16)
op("s", x, torch.zeros(8, 16), 2.0)
print(op.tuned.chosen(x, torch.zeros(8, 16), 2.0).config)
"""


def start(folder: Path, seconds: float, **environment: str) -> subprocess.Popen[str]:
    paths = os.pathsep.join([str(ROOT), str(ROOT / "src"), os.environ["PYTHONPATH"]])
    return subprocess.Popen(
        [sys.executable, "-c", PROCESS, str(folder), str(seconds)],
        env={**os.environ, "PYTHONPATH": paths, **environment},
        stdout=subprocess.PIPE,
        text=True,
    )


@pytest.mark.long
def test_of_several_processes_one_tunes_and_all_pick_the_same(tmp_path: Path) -> None:
    processes = [start(tmp_path, 0.5) for _ in range(3)]
    said = [process.communicate()[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0, 0]
    assert len(set(said)) == 1 and "TILE" in said[0]
    assert len(list(tmp_path.glob("searched-*"))) == 1


def test_a_process_that_is_killed_while_it_tunes_leaves_the_right_to_others(tmp_path: Path) -> None:
    first = start(tmp_path, 3600)
    assert until(lambda: first.poll() is not None or list(tmp_path.glob("searched-*")))
    first.kill()
    first.wait()
    second = start(tmp_path, 0)
    assert "TILE" in second.communicate()[0] and second.returncode == 0
    assert len(list(tmp_path.glob("searched-*"))) == 2 and len(Winners().all()) == 1


@pytest.mark.parametrize("config", [{"TILE": 2**30}, {"TILE": 4.0}, {"TILE": True}, {"TILE": 8}, {"TILE": "4"},
                                    {"occupancy": 3}, {"TILE": [4]}, {"STRANGE": 1}], ids=str)  # fmt: skip
def test_what_is_stored_or_shipped_outside_the_space_is_never_launched(world: World, config: dict[str, Any]) -> None:
    """Nor is a value of another type: 4.0 and True equal 4 and 1, and are other constants."""
    from tilewright.runtime.store.exporting import config_file_of

    world.tuned()(STREAM, *arrays(), 2.0)
    (stored,) = Winners().all()
    shipped = config_file_of([stored])
    shipped["rows"][0]["config"] |= config
    Winners().remove([stored.key])
    for given in (None, shipped) if config != {"TILE": [4]} else (None,):
        if given is None:
            other = {**dict(stored.config or {}), **config}
            row = json.dumps(other)
            Winners().put(stored)
            with closing(sqlite3.connect(Winners().path)) as file, file:
                file.execute("UPDATE winners SET config = ?", (row,))
        else:
            Winners().remove([stored.key])
        again = World()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            again.tuned(config_file=given)(STREAM, *arrays(), 2.0)
        assert len(again.searches) == 1 and [type(tile) for tile in again.tiles] == [int] and again.tiles == [4]


def test_a_merged_result_outside_the_space_is_not_launched_and_the_search_here_replaces_it(world: World) -> None:
    from tilewright.runtime.store.other_machines import SharedWinners

    world.tuned()(STREAM, *arrays(), 2.0)
    (stored,) = Winners().all()
    Winners().remove([stored.key])
    hostile = replace(stored, config={**dict(stored.config or {}), "TILE": 2**30}, machine={"host": "elsewhere"})
    SharedWinners(strict=True).merge([hostile])
    for searches in (1, 0):
        again = World()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            again.tuned()(STREAM, *arrays(), 2.0)
        assert again.tiles == [4] and len(again.searches) == searches


# The shipped config file --------------------------------------------------------------------------------------


def test_a_shipped_config_file_is_used_before_anything_is_tuned(world: World, tmp_path: Path) -> None:
    from tilewright.runtime.store.exporting import config_file_of

    world.tuned()(STREAM, *arrays(), 2.0)
    written = config_file_of(Winners().all())
    (tmp_path / "scale.json").write_text(json.dumps(written))
    Winners().remove([one.key for one in Winners().all()])
    for given in (written, tmp_path / "scale.json"):
        other = World()
        op = other.tuned(config_file=given)
        for rows in (8, 12):  # exact, and the nearest
            op(STREAM, *arrays(rows), 2.0)
        assert not other.searches and other.tiles == [4, 4]
        x, y = arrays()
        assert op.tuned.chosen(x, y, 2.0).origin == "config file"
