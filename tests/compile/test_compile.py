"""Compiling candidates with the real compiler: in parallel, each with its own outcome, nothing left behind."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.processes import for_ever, gone, own_children, running, until

from tilewright.compile import compile as compile_module
from tilewright.compile.compile import Compiled, Unit, compile_all, effort, hints_of, launch_of
from tilewright.errors import CompilerMissing, TaskError
from tilewright.hardware.architectures import default_board
from tilewright.languages.cutile import cutile, private, toolchain
from tilewright.languages.cutile.toolchain import Tool
from tilewright.records import Built, Configuration, Failed, MachineCode
from tilewright.space.space import Space
from tilewright.task.loading import load_task
from tilewright.task.task import Task
from tilewright.tools import child

OPS = """\
import cuda.tile as ct
import tilewright as tw

@ct.kernel
def scale(x, y, TILE: ct.Constant[int], ADD: ct.Constant[int]):
    t = ct.load(x, (ct.bid(0),), (TILE,))
    ct.store(y, (ct.bid(0),), t * 2 + ADD)

@ct.kernel(opt_level=0)
def unoptimised(x, y, TILE: ct.Constant[int], ADD: ct.Constant[int]):
    ct.store(y, (ct.bid(0),), ct.load(x, (ct.bid(0),), (TILE,)) * 2 + ADD)

def launch(x, y, M, config):
    blocks = M // config.BLOCKS
    return tw.Launch(scale, (blocks,), (x, y, config.TILE, config.ADD))

task = tw.Task(
    name="scale",
    tensors={"x": tw.Tensor(("M",), "float32"), "y": tw.Output(("M",), "float32")},
    reference=lambda x: 2 * x,
    launch=launch,
    flops=lambda M: M,
    space=tw.Space(
        constants={"TILE": (64, 128), "ADD": (0, 1), "BLOCKS": (1, 2)},
        hints={"occupancy": (None, 2), "num_ctas": (None, 2)},
        shipped={"TILE": 64, "ADD": 0, "BLOCKS": 1, "occupancy": None, "num_ctas": None},
    ),
    workloads={"small": {"M": 4096}, "large": {"M": 8192}},
)
"""
BOARD = default_board("sm_90")


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> Task:
    path = tmp_path_factory.mktemp("compile") / "ops.py"
    path.write_text(OPS)
    return load_task(str(path))


def unit(task: Task, workload: str = "small", **knobs: Any) -> Unit:
    return Unit(task.workload(workload), task.space.shipped.replace(**knobs), BOARD)


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The commands of the compilers that were started."""
    commands: list[list[str]] = []
    real = child.run

    def counting(command: Any, *rest: Any, **options: Any) -> Any:
        if Path(command[0]).name == "tileiras" and "--version" not in command:
            commands.append(list(command))
        return real(command, *rest, **options)

    monkeypatch.setattr(child, "run", counting)
    return commands


@pytest.fixture
def fake_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """A shell script in the place of tileiras."""

    def make(script: str) -> Path:
        path = tmp_path / "tileiras"
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
        tool = Tool(path, (13, 3), "fake", from_pip=True)
        monkeypatch.setattr(cutile, "find_tileiras", lambda: tool)
        return path

    return make


def failure(compiled: Compiled) -> Failed:
    assert isinstance(compiled.built, Failed)
    assert compiled.code == compiled.built
    assert "\n" not in compiled.built.reason
    return compiled.built


# What is built


def test_it_tells_when_each_compiler_has_a_candidate(task: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    """K11: other work in Python waits for this. It is told where there are fewer candidates than compilers, too."""
    units = [unit(task, TILE=tile) for tile in (32, 256, 64)]
    lowered: list[Unit] = []
    real = compile_module.lower

    def counting(of: Task, one: Unit) -> Any:
        lowered.append(one)
        return real(of, one)

    monkeypatch.setattr(compile_module, "lower", counting)
    for jobs, first in ((2, 2), (32, len(units))):
        told: list[int] = []
        lowered.clear()
        compile_all(task, units, jobs=jobs, on_busy=lambda told=told: told.append(len(lowered)))
        assert told[0] == first and told[-1] == len(units)


def test_results_stand_in_the_order_of_the_units(task: Task) -> None:
    units = [unit(task, TILE=tile, ADD=add) for add in (0, 1) for tile in (32, 64)]
    finished: list[Unit] = []
    threads: set[int] = set()

    def on_done(one: Compiled) -> None:
        finished.append(one.unit)
        threads.add(threading.get_ident())

    results = compile_all(task, units, jobs=2, on_done=on_done)
    assert [one.unit for one in results] == units
    assert sorted(map(str, finished)) == sorted(map(str, units)), "each is reported once"
    assert threads == {threading.get_ident()}, "in the caller's thread"
    for one in results:
        assert isinstance(one.built, Built) and isinstance(one.code, MachineCode)
        assert one.built.configuration == one.unit.configuration
        assert one.code.symbol == one.built.symbol and one.code.sm == 90
        assert one.built.symbol.endswith(f"_I{one.unit.configuration.TILE}_I{one.unit.configuration.ADD}")
    assert len({one.code.code_hash for one in results if isinstance(one.code, MachineCode)}) == len(units)


def test_equal_bytecode_is_compiled_once(task: Task, started: list[list[str]]) -> None:
    """BLOCKS changes the grid alone; workloads of equal divisibility share their code as well."""
    units = [unit(task, workload, BLOCKS=blocks) for workload in ("small", "large") for blocks in (1, 2, 4)]
    results = compile_all(task, units)
    assert len(started) == 1
    assert [one.unit for one in results] == units
    assert [one.built.configuration.BLOCKS for one in results if isinstance(one.built, Built)] == [1, 2, 4] * 2


def test_a_hint_that_asks_for_the_default_is_compiled_once(
    task: Task, started: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The launch of each finds its own cubin. An unknown compiler compiles both, and the machine code is equal."""
    units = [unit(task), unit(task, num_ctas=1)]
    plain, asked = (one.built for one in compile_all(task, units))
    assert isinstance(plain, Built) and isinstance(asked, Built) and len(started) == 1
    assert plain.cubin == asked.cubin and plain.cache_key != asked.cache_key
    monkeypatch.setattr(private, "DEFAULTS_SEEN", ())
    separate = [one.code for one in compile_all(task, units)]
    assert len(started) == 3
    assert len({code.code_hash for code in separate if isinstance(code, MachineCode)}) == 1


def test_hints_reach_the_compiler(task: Task, started: list[list[str]]) -> None:
    two, one = compile_all(task, [unit(task, num_ctas=2), unit(task)])
    assert isinstance(two.code, MachineCode) and isinstance(one.code, MachineCode)
    assert (two.code.cluster, one.code.cluster) == (2, 1)
    assert len(started) == 2


def test_automatic_overrides_the_decorator(task: Task) -> None:
    """A-11: None is said to the compiler, or a value of the kernel's decorator would be timed instead."""
    assert set(hints_of(task, task.space.shipped).values()) == {None}
    assert hints_of(task, task.space.shipped.replace(num_ctas=2))["num_ctas"] == 2
    kernel = launch_of(task, unit(task))[0].kernel.replace_hints(num_ctas=2)
    plain, reset = kernel.replace_hints(), kernel.replace_hints(**hints_of(task, task.space.shipped))
    assert (plain._compiler_options.num_ctas, reset._compiler_options.num_ctas) == (2, None)


def test_the_kernels_own_optimisation_level_is_kept(task: Task, started: list[list[str]]) -> None:
    """The launch would compile with it: the same level, or our cubin is another than the deployed."""
    kernel = sys.modules[task.launch.__module__].unoptimised
    plain = replace(task, launch=lambda x, y, config: replace_kernel(task, kernel, x, y, config))
    compile_all(plain, [unit(task)])
    assert "-O0" in started[0]


def replace_kernel(task: Task, kernel: Any, x: Any, y: Any, config: Configuration) -> Any:
    return replace(task.launch(x, y, 4096, config), kernel=kernel)


def test_several_architectures_in_one_call(task: Task) -> None:
    units = [replace(unit(task), board=default_board(arch)) for arch in ("sm_80", "sm_90", "sm_100", "sm_120")]
    codes = [one.code for one in compile_all(task, units)]
    assert [code.sm for code in codes if isinstance(code, MachineCode)] == [80, 90, 100, 120]


def test_a_launch_is_made_from_specifications(task: Task) -> None:
    launch, hints = launch_of(task, unit(task, TILE=128, num_ctas=2))
    assert launch.grid == (4096,)
    assert launch.args[0].shape == (4096,) and launch.args[2:] == (128, 0)
    assert hints == {"occupancy": None, "num_ctas": 2}


def test_nothing_to_compile_is_nothing(task: Task) -> None:
    assert compile_all(task, []) == []


# What goes wrong with one candidate


def test_a_mistake_in_the_kernel_has_its_source_line(task: Task) -> None:
    """X-24: a tile that is no power of two."""
    bad, good = compile_all(task, [unit(task, TILE=96), unit(task)])
    failed = failure(bad)
    assert failed.stage == "front end"
    assert failed.reason.startswith("ops.py:6: ")
    assert "power" in failed.reason
    assert isinstance(good.code, MachineCode), "the others are built all the same"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("(x, y, config.TILE)", "the kernel takes 4 arguments, the launch passes 3"),
        ("(x, y, x, config.ADD)", "TILE|[Cc]onstant"),
        ("(x, 'y', config.TILE, 0)", "."),
        ("(x, None, config.TILE, 0)", "."),
    ],
)
def test_arguments_that_do_not_fit_the_kernel_are_one_line(tmp_path: Path, arguments: str, said: str) -> None:
    path = tmp_path / "ops.py"
    path.write_text(OPS.replace("(x, y, config.TILE, config.ADD))\n", f"{arguments})\n"))
    task = load_task(str(path))
    failed = failure(compile_all(task, [unit(task)])[0])
    assert failed.stage == "front end"
    assert re.search(said, failed.reason), failed.reason


def test_a_launch_that_fails_for_one_configuration_is_that_ones(task: Task) -> None:
    bad, good = compile_all(task, [unit(task, BLOCKS=0), unit(task)])
    assert failure(bad) == Failed("launch", "ops.py:14: ZeroDivisionError: integer division or modulo by zero")
    assert isinstance(good.code, MachineCode)


def test_a_compiler_over_its_budget_is_killed(task: Task, fake_compiler: Callable[[str], Path]) -> None:
    hangs = for_ever()
    fake_compiler(f"sleep {hangs}")
    failed = failure(compile_all(task, [unit(task)], seconds=0.1)[0])
    assert failed.stage == "tool" and "tileiras did not end: it used" in failed.reason
    assert "s of processor time in 0.8 s; fix: " in failed.reason
    assert gone(hangs), "and what it had started"


def test_the_real_compiler_over_its_budget_is_killed(task: Task) -> None:
    failed = failure(compile_all(task, [unit(task, ADD=12)], seconds=0.005)[0])
    assert failed.stage == "tool" and "tileiras" in failed.reason


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine, a second of processor time takes a while."""
    monkeypatch.setitem(child.run.__kwdefaults__, "patience", 300.0)


@pytest.mark.usefixtures("patient")
def test_the_budget_is_processor_time(task: Task, fake_compiler: Callable[[str], Path]) -> None:
    fake_compiler("while :; do :; done")
    failed = failure(compile_all(task, [unit(task)], seconds=1)[0])
    assert failed == Failed("tool", "tileiras took longer than its budget of 1 s of processor time")


@pytest.mark.usefixtures("patient")
def test_a_compiler_that_waits_for_a_busy_machine_is_in_time(task: Task, fake_compiler: Callable[[str], Path]) -> None:
    """Issue 13, point 8: not compiled in time is no verdict."""
    real = toolchain.find_tileiras().path
    fake_compiler(f'sleep 2.5; exec {real} "$@"')
    (one,) = compile_all(task, [unit(task)], seconds=2)
    assert isinstance(one.code, MachineCode)


def test_a_compiler_that_crashes_is_that_candidates_outcome(task: Task, fake_compiler: Callable[[str], Path]) -> None:
    fake_compiler("kill -SEGV $$")
    results = compile_all(task, [unit(task, ADD=add) for add in range(3)])
    assert {failure(one) for one in results} == {
        Failed("tool", "tileiras was killed by signal 11 (Segmentation fault)")
    }


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("echo 'error: out of registers' >&2; exit 2", "tileiras returned 2: out of registers"),
        ("echo 'x.mlir:1:1: error: no such op' >&2; exit 1", "tileiras returned 1: no such op"),
        ("echo 'loc(\"/tmp/a/ops.py\":6:9): error: bad tile' >&2; exit 1", "ops.py:6: bad tile"),
        ("exit 3", "tileiras returned 3: nothing on standard error"),
        ("printf '\\377\\376 broken' >&2; exit 1", "broken"),
    ],
)
def test_the_compilers_message_is_kept(
    task: Task, fake_compiler: Callable[[str], Path], script: str, reason: str
) -> None:
    fake_compiler(script)
    failed = failure(compile_all(task, [unit(task)])[0])
    assert failed.stage == ("compile" if "error:" in script else "tool")
    assert reason in failed.reason


def test_a_compiler_that_says_well_and_writes_nothing_has_failed(
    task: Task, fake_compiler: Callable[[str], Path]
) -> None:
    fake_compiler("exit 0")
    assert failure(compile_all(task, [unit(task)])[0]).stage == "tool"


def test_a_cubin_that_cannot_be_read_is_that_candidates_outcome(
    task: Task, fake_compiler: Callable[[str], Path]
) -> None:
    fake_compiler('while [ "$1" != -o ]; do shift; done; printf "\\177ELF no more" > "$2"')
    (one,) = compile_all(task, [unit(task)])
    assert isinstance(one.built, Built)
    assert isinstance(one.code, Failed) and one.code.stage == "machine code"


def test_a_wrong_cuda_home_does_not_matter(task: Task, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """measured.md 7: the pip compiler fails with return code 5 when it finds another toolkit."""
    for name in ("CUDA_HOME", "CUDA_PATH"):
        monkeypatch.setenv(name, str(tmp_path / "cuda-12"))
    (one,) = compile_all(task, [unit(task, ADD=13)])
    assert isinstance(one.code, MachineCode), one.code


# What goes wrong with everything


def test_a_missing_compiler_is_said_once(task: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def missing() -> Tool:
        calls.append(1)
        raise CompilerMissing("tileiras, the cuTile compiler, is not installed; " + toolchain.FIX)

    monkeypatch.setattr(cutile, "find_tileiras", missing)
    with pytest.raises(CompilerMissing, match="pip install 'cuda-tile") as caught:
        compile_all(task, [unit(task, ADD=add) for add in range(4)])
    assert len(calls) == 1
    assert "\n" not in str(caught.value)


def test_a_compiler_that_vanishes_is_missing(task: Task, fake_compiler: Callable[[str], Path]) -> None:
    fake_compiler("exit 0").unlink()
    with pytest.raises(CompilerMissing, match="tileiras"):
        compile_all(task, [unit(task)])


def test_a_kernel_of_no_known_language_is_the_tasks_mistake(task: Task) -> None:
    other = replace(task, launch=lambda x, y, config: replace_kernel(task, print, x, y, config))
    with pytest.raises(TaskError, match="is a builtin_function_or_method, not a kernel of a known language: c"):
        compile_all(other, [unit(task)])


@pytest.fixture
def no_children_left() -> Iterator[None]:
    before = own_children()
    yield
    assert own_children() <= before


@pytest.mark.usefixtures("no_children_left")
def test_ctrl_c_leaves_no_compiler_behind(task: Task, fake_compiler: Callable[[str], Path]) -> None:
    other = for_ever()
    fake_compiler(f"sleep {other} & wait")

    def interrupted(one: Compiled) -> None:  # the one that the front end refuses, when the others run
        assert until(lambda: running(other))
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        compile_all(
            task, [unit(task, TILE=tile) for tile in (3, 64, 128, 256, 512)], jobs=2, seconds=60, on_done=interrupted
        )
    assert gone(other), "and what the compilers had started"
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("tileiras")]


@pytest.mark.usefixtures("no_children_left")
def test_ctrl_c_at_any_moment_waits_for_no_compiler(task: Task, fake_compiler: Callable[[str], Path]) -> None:
    """Also for one whose thread was just about to start it."""
    hangs = for_ever()
    fake_compiler(f"sleep {hangs}")

    for delay in (0.0, 0.0005, 0.001, 0.002, 0.004, 0.008):

        def interrupted(one: Compiled, delay: float = delay) -> None:
            time.sleep(delay)
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            compile_all(task, [unit(task, TILE=t) for t in (3, 64, 128)], jobs=2, seconds=60, on_done=interrupted)
        assert gone(hangs)


@pytest.mark.usefixtures("no_children_left")
def test_an_error_while_reading_leaves_no_compiler_behind(task: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(cubins: Any) -> Any:
        raise CompilerMissing("nvdisasm is not installed")

    monkeypatch.setattr("tilewright.compile.compile.read_all", broken)
    with pytest.raises(CompilerMissing, match="nvdisasm"):
        compile_all(task, [unit(task, ADD=add) for add in range(3)])


def test_compiling_needs_no_torch(task: Task) -> None:
    """Tilewright imports none; cuda-tile imports it where it is installed, and does without where it is not."""
    script = textwrap.dedent(f"""
        import sys
        from tilewright.compile.compile import Unit, compile_all
        from tilewright.hardware.architectures import default_board
        from tilewright.task.loading import load_task
        task = load_task({str(task.file)!r})
        print("torch" in sys.modules)
        sys.modules["torch"] = None
        unit = Unit(task.workload("small"), task.space.shipped, default_board("sm_100"))
        print(compile_all(task, [unit])[0].code.sm)
    """)
    env = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=env)
    assert done.stdout.split() == ["False", "100"], done.stderr


# The order -----------------------------------------------------------------------------------------

SECONDS = {
    (128, 128, 4): 2.1, (64, 128, 4): 1.1, (128, 64, 4): 1.75, (64, 64, 4): 0.82, (128, 32, 4): 1.5,
    (64, 32, 4): 0.73, (128, 128, 8): 0.72, (64, 128, 8): 0.47, (128, 64, 8): 0.84, (64, 64, 8): 0.5,
    (128, 32, 8): 0.68, (64, 32, 8): 0.55,
}  # fmt: skip
"""TILE_M, TILE_N, num_worker_warps → processor time of tileiras for examples/fmha.py (2026-11-22, a machine with 2
cores). Each was compiled two or four times: with both values of ``occupancy``, and 4 warps are also the default."""


def test_compilers_that_take_longest_start_first() -> None:
    """The last of 14 compilers at a time ends at most 8 % later than if their times were known."""

    def end(order: list[tuple[int, int, int]]) -> float:
        free = [0.0] * 14
        for tiles in order:
            free[free.index(min(free))] += SECONDS[tiles]
        return max(free)

    jobs = [tiles for tiles in SECONDS for _ in range(4 if tiles[2] == 4 else 2)]
    named = {tiles: [("TILE_M", tiles[0]), ("TILE_N", tiles[1]), ("num_worker_warps", tiles[2])] for tiles in jobs}
    known, by_area = (sorted(jobs, key=key) for key in (lambda job: -SECONDS[job], lambda job: -job[0] * job[1]))
    ours = end(sorted(jobs, key=lambda job: -effort(named[job])))
    assert ours <= 1.08 * end(known) < end(by_area)


def test_kernels_without_tiles_keep_their_order() -> None:
    assert effort([]) == effort([("ADD", 7), ("occupancy", 2)]) > effort([("num_warps", 8)])


def passed_in_order(tiles: Sequence[int], ships: int = 0, **options: Any) -> list[tuple[object, ...]]:
    """The order in which examples/fmha.py with 128 rows, these columns, and 4 or 8 warps passes the front end.

    ships: the place of the shipped one among these.
    """
    fmha = load_task(str(Path(__file__).parents[2] / "examples" / "fmha.py"))
    passed: list[tuple[object, ...]] = []

    def launch(config: Configuration, causal: bool, **given: Any) -> Any:
        passed.append((causal, config.TILE_N, config.num_worker_warps))
        raise ValueError("as a test")

    configs = [
        Configuration.of({"TILE_M": 128, "TILE_N": tile, "occupancy": 1, "num_worker_warps": warps})
        for warps in (8, 4) for tile in tiles
    ]  # fmt: skip
    constants, hints = {"TILE_M": (128,), "TILE_N": tiles}, {"occupancy": (1,), "num_worker_warps": (8, 4)}
    task = replace(fmha, launch=launch, space=Space(constants=constants, hints=hints, shipped=configs[ships]))
    board = default_board("sm_90")
    units = [Unit(task.workload(name), config, board) for config in configs for name in ("causal", "full")]
    assert [one.unit for one in compile_all(task, units, jobs=2, **options)] == units
    return passed


def test_units_that_are_likely_skipped_pass_the_front_end_last() -> None:
    rest = [(128, 4), (128, 8), (64, 4), (64, 8)]
    passed = passed_in_order((64, 128, 256), unfit=False)
    assert [each[1:] for each in passed if each[0]] == [(256, 8), *rest, (256, 4)]
    assert [each[1:] for each in passed_in_order((64, 128, 256)) if each[0]] == [(256, 4), (256, 8), *rest]


def test_what_ships_is_never_skipped_and_passes_in_its_order() -> None:
    passed = passed_in_order((128, 256), ships=3, unfit=False)
    assert [each[1:] for each in passed if each[0]][:2] == [(256, 4), (256, 8)]


def test_units_that_share_a_front_end_pass_it_together() -> None:
    """The two kernels of this space have the efforts 4096 and 2048, and 2896 and 1448."""
    passed = passed_in_order((64, 128))
    one_workload = [(128, 4), (128, 8), (64, 4), (64, 8)]
    assert passed == [(causal, *each) for causal in (True, False) for each in one_workload]
