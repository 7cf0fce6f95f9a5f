"""Work is counted in the kernel's Tile IR: of all blocks, of a sample, or, with the reason, as declared."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tilewright.cli import main as cli
from tilewright.hardware.architectures import default_board
from tilewright.inspect import work as counted
from tilewright.inspect.work import SAMPLED_BLOCKS, bound_of, classify, count
from tilewright.ledger.codec import from_json, to_json
from tilewright.records import Bound
from tilewright.task.loading import load_task
from tilewright.task.task import Task

EXAMPLES = Path(__file__).parents[2] / "examples"
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
        space=tw.Space(constants={"TILE": (16, 48)}, shipped={"TILE": 16}),
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
    workloads={"only": {"M": 1000}, "few": {"M": 40}},
)
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


def test_where_addresses_depend_on_data_a_sample_of_the_blocks_runs(file: Path) -> None:
    task = load(file, "looked_up")
    work = count(task, task.workload("only"), BOARD)
    assert f"{SAMPLED_BLOCKS} of 1000 blocks" in work.source
    assert work.counts is not None and work.counts.sampled
    assert work.counts.scaled(work.counts.stored_bytes) == 1000 * 64 * 4
    assert "40 of" not in count(task, task.workload("few"), BOARD).source, "so few all run"


def test_inputs_that_are_too_large_to_draw_leave_the_authors_word(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counted, "DATA_BYTES", 1000)
    task = load(file, "looked_up")
    work = count(task, task.workload("only"), BOARD)
    assert work.counts is None and work.flops == 0
    assert work.source.startswith("as the task declares: not counted, load_view_tko depends on data")


def test_a_kernel_that_does_not_compile_leaves_the_authors_word(file: Path) -> None:
    task = load(file, "scaled")
    work = count(task, task.workload("only"), BOARD, task.space.shipped.replace(TILE=48))
    assert work.flops == 10**15 and "not counted" in work.source and "power of two" in work.source


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
