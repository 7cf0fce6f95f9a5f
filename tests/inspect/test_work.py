"""Work is counted in the kernel's Tile IR: of all blocks, of a sample, or, with the reason, as declared."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tilewright.cli import main as cli
from tilewright.hardware.architectures import default_board
from tilewright.inspect import work as counted
from tilewright.inspect.work import SAMPLED_BLOCKS, bound_of, classify, count
from tilewright.ledger.codec import from_json, to_json
from tilewright.records import Bound
from tilewright.task.loading import load_task
from tilewright.task.task import Task
from tilewright.tileir.run.launching import Launcher, Runnable
from tilewright.tileir.run.registry import Unsupported

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
BOARD = default_board("sm_90")
OPS = """\
import cuda.tile as ct
import tilewright as tw

@ct.kernel
def scale(x, y, TILE: ct.Constant[int]):
    t = ct.load(x, (ct.bid(0), 0), (TILE, 64))
    ct.store(y, (ct.bid(0), 0), t * t + 1)

@ct.kernel
def rows(x, at, y, TILE: ct.Constant[int]):
    row = ct.gather(at, ct.bid(0))
    ct.store(y, (ct.bid(0), 0), ct.load(x, (row, 0), (1, 64)))

def task_of(name, flops):
    return tw.Task(
        name=name,
        tensors={"x": tw.Tensor(("M", 64), "float32"), "y": tw.Output(("M", 64), "float32")},
        reference=lambda x: x * x + 1,
        launch=lambda x, y, M, config: tw.Launch(scale, (-(-M // config.TILE),), (x, y, config.TILE)),
        flops=flops, independent=("M",),
        space=tw.Space(constants={"TILE": (16, 1 << 26)}, shipped={"TILE": 16}),
        workloads={"only": {"M": 1000}},
    )

scaled = task_of("scaled", lambda M: 10**15)
least = task_of("least", lambda M: 1)
looked_up = tw.Task(
    name="looked_up",
    tensors={"x": tw.Tensor(("M", 64), "float32"), "at": tw.Tensor(("M",), "int32", tw.integers(0, 100)),
             "y": tw.Output(("M", 64), "float32")},
    reference=lambda x, at: x[at.astype(int)],
    launch=lambda x, at, y, M, config: tw.Launch(rows, (M,), (x, at, y, config.TILE)),
    flops=lambda M: 0, independent=("M",),
    space=tw.Space(constants={"TILE": (16,)}, shipped={"TILE": 16}),
    workloads={"only": {"M": 1000}},
)

@ct.kernel
def in_turn(x, counter, y, TILE: ct.Constant[int]):
    row = ct.atomic_add(counter, 0, 1)
    ct.store(y, (row, 0), ct.load(x, (row, 0), (1, 64)))

tickets = tw.Task(
    name="tickets",
    tensors={"x": tw.Tensor(("M", 64), "float32"), "counter": tw.Output((1,), "int32"),
             "y": tw.Output(("M", 64), "float32")},
    reference=lambda x, M: (M, x),
    launch=lambda x, counter, y, M, config: tw.Launch(in_turn, (M,), (x, counter, y, config.TILE)),
    flops=lambda M: 0,
    space=tw.Space(constants={"TILE": (16,)}, shipped={"TILE": 16}),
    workloads={"only": {"M": 1000}},
)

@ct.kernel
def largest(x, y, TILE: ct.Constant[int]):
    best = ct.full((1, TILE), 0, ct.float32)
    for k in range(ct.num_tiles(x, 1, (1, TILE))):
        t = ct.load(x, (ct.bid(0), k), (1, TILE), padding_mode=ct.PaddingMode.ZERO)
        best = ct.maximum(best, ct.astype(t, ct.float32))
    ct.store(y, (ct.bid(0),), ct.max(best, 1))

logits = tw.Task(
    name="logits",
    tensors={"x": tw.Tensor(("M", "N"), "bfloat16"), "y": tw.Output(("M",), "float32")},
    reference=lambda x: x.max(1).clip(0),
    launch=lambda x, y, M, config: tw.Launch(largest, (M,), (x, y, config.TILE)),
    flops=lambda M, N: M * N, independent=("M",),
    space=tw.Space(constants={"TILE": (4096,)}, shipped={"TILE": 4096}),
    workloads={"only": {"M": 400000, "N": 50257}},
)
embedded = tw.Task(
    name="embedded",
    tensors={"x": tw.Tensor(("V", "N"), "bfloat16"), "at": tw.Tensor(("M",), "int32", tw.integers(0, "V")),
             "y": tw.Output(("M", 64), "bfloat16")},
    reference=lambda x, at: x[at.astype(int), :64], serves=lambda N: N >= 64,
    launch=lambda x, at, y, M, config: tw.Launch(rows, (M,), (x, at, y, config.TILE)),
    flops=lambda M: 0, independent=("M",),
    space=tw.Space(constants={"TILE": (16,)}, shipped={"TILE": 16}),
    workloads={"only": {"V": 400000, "N": 50257, "M": 1000}},
)

@ct.kernel
def doubled(x, y, TILE: ct.Constant[int]):
    ct.store(y, (ct.bid(0),), ct.load(x, (ct.bid(0),), (TILE,)) * 2)

@ct.kernel
def doubled64(x: ct.IndexedWithInt64, y: ct.IndexedWithInt64, TILE: ct.Constant[int]):
    ct.store(y, (ct.bid(0),), ct.load(x, (ct.bid(0),), (TILE,)) * 2)

def flat(name, kernel):
    return tw.Task(
        name=name,
        tensors={"x": tw.Tensor(("N",), "bfloat16"), "y": tw.Output(("N",), "bfloat16")},
        reference=lambda x: 2 * x,
        launch=lambda x, y, N, config: tw.Launch(kernel, (-(-N // config.TILE),), (x, y, config.TILE)),
        flops=lambda N: N, independent=("N",),
        space=tw.Space(constants={"TILE": (4096,)}, shipped={"TILE": 4096}),
        workloads={"only": {"N": 400000 * 50257}},
    )

flat32, flat64 = flat("flat32", doubled), flat("flat64", doubled64)
"""


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("counted") / "ops.py"
    path.write_text(OPS)
    return path


def load(file: Path, name: str) -> Task:
    return load_task(f"{file}:{name}")


def test_the_kernel_is_counted_not_its_authors_word(file: Path) -> None:
    """Issue 3: the intensity that `classify` uses; 1000 rows in tiles of 16, the last of them half outside."""
    task = load(file, "scaled")
    work = count(task, task.workload("only"), BOARD)
    assert work.flops == 63 * 16 * 64 * 2, "a product and a sum, fused, on whole tiles"
    assert work.bytes == 2 * 1000 * 64 * 4
    assert "all 63 blocks" in work.source and work.counts is not None and not work.counts.sampled
    bound = bound_of(task, task.workload("only"), BOARD)
    assert bound.intensity == pytest.approx(work.flops / work.bytes)
    assert bound.source == work.source


def test_the_speed_of_light_is_what_any_kernel_needs(file: Path) -> None:
    """The author may state less than this kernel does; never more than it does."""
    least, more = (bound_of(load(file, name), load(file, name).workload("only"), BOARD) for name in ("least", "scaled"))
    traffic_us = 2 * 1000 * 64 * 4 / (BOARD.bandwidth_gbs * 1e3)
    assert least.speed_of_light_us == pytest.approx(traffic_us)
    assert more.speed_of_light_us == pytest.approx(traffic_us), "not the 10¹⁵ FLOP that the author claims"
    plain = classify(1e12, 1e6, "bfloat16", BOARD)
    assert classify(1e12, 1e6, "bfloat16", BOARD, least_flops=1e9).speed_of_light_us < plain.speed_of_light_us


def test_where_addresses_depend_on_data_only_that_data_is_drawn(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    task = load(file, "looked_up")
    drawn, draw = [], counted.draw

    def seen(how: Any, shape: tuple[int, ...], rng: Any) -> Any:
        drawn.append(shape)
        return draw(how, shape, rng)

    monkeypatch.setattr(counted, "draw", seen)
    work = count(task, task.workload("only"), BOARD)
    assert drawn == [(1000,)], "the integers, not the 1000×64 numbers that they choose from"
    assert "all 1000 blocks" in work.source and work.counts is not None
    assert work.counts.stored_bytes == 1000 * 64 * 4
    assert work.counts.distinct_loaded_bytes <= 100 * 64 * 4 + 1000 * 4, "the rows that were drawn, and the integers"


def test_where_addresses_depend_on_what_the_kernel_writes_a_sample_of_the_blocks_runs(file: Path) -> None:
    task = load(file, "tickets")
    work = count(task, task.workload("only"), BOARD)
    assert f"{SAMPLED_BLOCKS} of 1000 blocks" in work.source
    assert work.counts is not None and work.counts.scaled(work.counts.stored_bytes) == 1000 * (64 + 1) * 4


def limited(*commands: str, home: Path) -> subprocess.CompletedProcess[str]:
    """Commands, one after another in 1.5 GiB of address space; each of the tensors has 37 GiB."""
    code = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_AS, (3 << 29,) * 2)\n"
        "from tilewright.__main__ import main\n"
        "for command in sys.argv[1:]:\n"
        "    sys.argv[1:] = [*command.split(' ', 1), '--arch', 'sm_90', '--json']\n"
        "    if code := main(): sys.exit(code)\n"
        "    print(end='\\0')"
    )
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "TILEWRIGHT_HOME": str(home)}
    return subprocess.run([sys.executable, "-c", code, *commands], capture_output=True, text=True, env=environment)


@pytest.mark.long
def test_no_memory_of_the_size_of_the_tensors_is_needed(file: Path, tmp_path: Path) -> None:
    moved = {"logits": 400000 * (50257 * 2 + 4), "embedded": 1000 * (2 * 64 * 2 + 4), "flat64": 2 * 400000 * 50257 * 2}
    asked = [
        ("inspect", "logits"), ("tune", "logits"), ("inspect", "flat64"), ("tune", "flat64"), ("inspect", "embedded"),
    ]  # fmt: skip
    done = limited(*(f"{command} {file}:{name}" for command, name in asked), home=tmp_path)
    assert done.returncode == 0, done.stderr
    *objects, rest = done.stdout.split("\0")
    assert rest == ""
    for (command, name), text in zip(asked, objects, strict=True):
        found = json.loads(text)
        bound = found[0] if command == "inspect" else found["workloads"][0]["bound"]
        source = bound["bound_source" if command == "inspect" else "source"]
        assert source.startswith("counted in Tile IR"), source
        assert bound["speed_of_light_us"] == pytest.approx(moved[name] / (BOARD.bandwidth_gbs * 1e3), rel=0.01)


def test_extents_beyond_32_bits_name_the_annotation(file: Path, tmp_path: Path) -> None:
    done = limited(f"tune {file}:flat32", home=tmp_path)
    assert done.returncode == 2
    message = json.loads(done.stdout)["error"]["message"]
    assert message.startswith("tensor 'x' has an extent or a stride of 20102800000, beyond 32 bits; fix: annotate")
    assert "ct.IndexedWithInt64" in message


def test_inputs_that_are_too_large_to_draw_leave_the_authors_word(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counted, "DATA_BYTES", 1000)
    task = load(file, "looked_up")
    work = count(task, task.workload("only"), BOARD)
    assert work.counts is None and work.flops == 0
    assert work.source.startswith("as the task declares: not counted, load_view_tko depends on data")


def test_a_kernel_that_does_not_compile_leaves_the_authors_word(file: Path) -> None:
    task = load(file, "scaled")
    work = count(task, task.workload("only"), BOARD, task.space.shipped.replace(TILE=1 << 26))
    assert work.flops == 10**15 and "not counted" in work.source and "maximum of 16777216" in work.source


def test_large_address_tiles_are_sampled() -> None:
    """Gathers compute an address for each element; the counts of a sample say so, and scale to the grid."""
    task = load_task(str(EXAMPLES / "swiglu.py"))
    work = count(task, task.workload("16384x4096"), BOARD)
    assert work.counts is not None and work.counts.sampled and " of 65536 blocks" in work.source
    assert work.flops == 6 * 16384 * 4096
    assert work.counts.scaled(work.counts.loaded_bytes) == 2 * 16384 * 4096 * 2


def test_a_bound_that_was_stored_before_it_had_a_source_is_still_read() -> None:
    bound = Bound("memory", "why", 1.0, 2.0, 3.0, "counted")
    said = json.loads(json.dumps(to_json(bound)))
    assert from_json(Bound, said) == bound
    del said["source"]
    assert from_json(Bound, said, defaults=True) == Bound("memory", "why", 1.0, 2.0, 3.0)


def test_lines_as_a_table_and_as_json(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    where = [f"{file}:scaled", "--arch", "sm_90"]
    assert cli.main(["inspect", *where, "--lines"]) == 0
    said = capsys.readouterr().out
    assert "ct.store(y" in said and "all 63 blocks" in said and "FLOP/B" in said
    assert cli.main(["inspect", *where, "--lines", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["counts"]["other_flop"] == found["flop"] == 63 * 16 * 64 * 2
    stores = [one for one in found["counts"]["lines"] if one["operations"].get("store_view_tko")]
    assert [(one["line"], one["stored_bytes"]) for one in stores] == [(7, 1000 * 64 * 4)]


def test_lines_take_one_architecture(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["inspect", f"{file}:scaled", "--arch", "sm_90,sm_100", "--lines"]) == 2
    assert "--lines takes one" in capsys.readouterr().err


PERSISTENT = """\
import cuda.tile as ct
import tilewright as tw

@ct.kernel
def double(x, y, N: ct.Constant[int]):
    for step in range(ct.bid(0), ct.cdiv(N, 64), ct.num_blocks(0)):
        at = step * 64 + ct.arange(64, dtype=ct.int32)
        ct.scatter(y, at, ct.gather(x, at) * 2)

task = tw.Task(
    name="double",
    tensors={"x": tw.Tensor(("N",), "float32"), "y": tw.Output(("N",), "float32")},
    reference=lambda x: x * 2,
    launch=lambda x, y, N, config: tw.Launch(double, (128,), (x, y, N)),
    flops=lambda N: N,
    space=tw.Space(constants={}, shipped={}),
    workloads={"only": {"N": 128 * 64 * 16}},
)
"""


def test_few_blocks_with_long_loops_are_counted_in_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A persistent grid over addresses: the number of blocks alone does not say how long counting takes."""
    file = tmp_path / "persistent.py"
    file.write_text(PERSISTENT)
    task = load_task(str(file))
    whole = count(task, task.workload("only"), BOARD)
    assert "all 128 blocks" in whole.source and whole.counts is not None
    monkeypatch.setattr(counted, "MOST_ELEMENTS", 80 * 64 * 16)
    part = count(task, task.workload("only"), BOARD)
    assert "80 of 128 blocks" in part.source and part.counts is not None
    assert part.counts.scaled(part.counts.stored_bytes) == pytest.approx(whole.counts.stored_bytes, rel=0.02)
    assert part.flops == pytest.approx(whole.flops, rel=0.02)


@pytest.mark.parametrize(
    ("steps", "ends"),
    [
        ([(1.0, 0.01), (2.4, 0.02)], None),  # too early to tell
        ([(1.0, 0.01), (2.6, 0.02)], 1),  # 130 s in all, and 10 s are there
        ([(2.6, 0.1), (9.0, 0.4)], None),  # 26 s, and 22 s: not certain
        ([(2.6, 0.9), (5.0, 0.01), (8.0, 0.02)], None),  # the second loop of the kernel
    ],
)
def test_a_count_that_is_certain_to_exceed_its_time_ends_early(steps: list[tuple[float, float]], ends: int) -> None:
    now = [0.0]
    look = counted.hopeless(10.0, lambda: now[0])
    for place, (at, share) in enumerate(steps):
        now[0] = at
        if place == ends:
            with pytest.raises(Unsupported, match="will exceed its time limit"):
                look(share)
        else:
            look(share)


def test_a_launch_with_too_many_tiles_is_given_up_long_before_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock goes on with each look, so the count ends after a quarter of its time."""
    looks: list[float] = []
    hopeless = counted.hopeless

    def counting(seconds: float) -> Any:
        look = hopeless(seconds, lambda: float(len(looks)))
        return lambda share: (looks.append(share), look(share))

    monkeypatch.setattr(counted, "hopeless", counting)
    task = load_task(str(EXAMPLES / "matmul.py"))
    dims = {**task.workload("4096").dims, "M": 1 << 15, "N": 1 << 15, "K": 256}
    arrays = task.arrays(dims)
    runnable = Launcher(task, BOARD).runnable(task.space.shipped, dims, arrays)
    assert isinstance(runnable, Runnable)
    assert counted.count_launch(runnable, arrays, 40.0, 4) is None
    assert len(looks) == 11
