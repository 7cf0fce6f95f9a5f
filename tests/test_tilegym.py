"""The tasks for TileGym's own kernels (`bench/tilegym`): they launch what TileGym's wrappers launch, edits included."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType

import ml_dtypes
import numpy as np
import pytest

from tilewright import decorated_hints
from tilewright.hardware.architectures import default_board
from tilewright.hardware.boards import Board
from tilewright.optimize.choosing import Past, proposals
from tilewright.playbook import catalogue
from tilewright.playbook.base import Entry
from tilewright.playbook.entries.bounded_maximum import ENTRY as BOUNDED
from tilewright.playbook.entries.bounded_maximum import NO_MAXIMUM
from tilewright.playbook.entries.mask_split import BRANCH, THREE_LOOPS
from tilewright.playbook.entries.mask_split import ENTRY as MASK_SPLIT
from tilewright.playbook.entries.row_division import ENTRY as ROW_DIVISION
from tilewright.playbook.entries.row_division import INVERSE
from tilewright.playbook.entries.scaled_max import ENTRY as SCALED_MAX
from tilewright.records import Configuration
from tilewright.source.syntax import Source
from tilewright.task.loading import editable_files, load_task
from tilewright.task.task import Launch, Task
from tilewright.testing.entries import facts_of
from tilewright.tileir.run.interpreter import run
from tilewright.tileir.run.launching import Launcher, Runnable
from tilewright.tileir.run.memory import Memory
from tilewright.verify.images import storage

pytestmark = [
    pytest.mark.skipif(
        importlib.util.find_spec("tilegym") is None or importlib.util.find_spec("torch") is None,
        reason="needs TileGym (pip install --no-deps tilegym==1.5.1) and torch",
    ),
    pytest.mark.usefixtures("tilegym"),
]

FOLDER = Path(__file__).parent.parent / "bench" / "tilegym"
HELPERS = {
    "as_launched",
    "attention_reference",
    "confirm",
    "drift",
    "first_calls",
    "operations",
    "public",
    "run",
    "shipped",
    "tune_patched",
    "wrappers",
}
FILES = sorted(path.stem for path in FOLDER.glob("*.py") if path.stem not in HELPERS)
HOPPER = default_board("sm_90")
BLACKWELL = default_board("sm_100")
HINTS = ("num_ctas", "occupancy", "num_worker_warps")


@pytest.fixture(autouse=True)
def _without_a_record(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What a search took on some GPU is no concern of these tests."""
    sys.path.insert(0, str(FOLDER))
    import as_launched

    monkeypatch.setattr(as_launched, "_record", dict)
    yield
    sys.path.remove(str(FOLDER))


def task_of(name: str, files: dict[str, str] | None = None) -> Task:
    return load_task(str(FOLDER / f"{name}.py"), files)


def launched(task: Task, config: Configuration, workload: str | None = None, board: Board = HOPPER) -> Launch:
    dims = task.workloads[workload or next(iter(task.workloads))]
    return task.launched(config, dims, task.arrays(dims), board)


def knobs_of(task: Task, launch: Launch) -> dict[str, object]:
    code = launch.kernel._pyfunc.__code__
    by_name = dict(zip(code.co_varnames, launch.args, strict=False))
    carried = decorated_hints(launch.kernel)
    return {**{name: by_name[name] for name in task.space.constants}, **{name: carried[name] for name in HINTS}}


def edited(tmp_path: Path, task: Task, *changes: tuple[str, str]) -> dict[str, str]:
    """The overlay of the task's editable file with a copy in which each text is replaced, once."""
    (original,) = editable_files(task)
    text = original.read_text()
    for old, new in changes:
        assert text.count(old) >= 1, old
        text = text.replace(old, new, 1)
    copy = tmp_path / original.name
    copy.write_text(text)
    return {str(original): str(copy)}


def test_there_is_a_task_for_every_listed_operation() -> None:
    sys.path.insert(0, str(FOLDER))
    from operations import OPERATIONS

    assert sorted(OPERATIONS) == FILES


@pytest.mark.parametrize("name", FILES)
def test_ships_what_the_wrapper_launches_on_every_workload(name: str) -> None:
    """A task has one shipped configuration, so its workloads must be launched alike (the baseline is honest)."""
    task = task_of(name)
    for workload in task.workloads:
        launch = launched(task, task.space.shipped, workload)
        assert knobs_of(task, launch) == dict(task.space.shipped), workload


@pytest.mark.parametrize("name", [name for name in FILES if name not in ("softmax", "swiglu", "silu_and_mul")])
def test_launches_another_configuration_as_the_wrapper_would(name: str) -> None:
    task = task_of(name)
    dims = next(iter(task.workloads.values()))
    other = next(
        one
        for one in task.space.configurations(90, dims)
        if any(one[knob] != task.space.shipped[knob] for knob in task.space.constants)
    )
    launch = launched(task, other)
    constants = {knob: value for knob, value in knobs_of(task, launch).items() if knob in task.space.constants}
    assert constants == {knob: other[knob] for knob in task.space.constants}


def test_attention_is_launched_with_a_hint_that_was_never_searched() -> None:
    """The list says occupancy 1, the search times none, the launch has 2 (weak point W1)."""
    task = task_of("fmha")
    assert task.space.shipped.occupancy == 2
    assert launched(task, task.space.shipped, "causal").grid == (4096 // task.space.shipped.TILE_M, 128, 1)


def test_a_literal_and_a_decorator_that_were_edited_are_what_ships(tmp_path: Path) -> None:
    before = task_of("fmha")
    files = edited(
        tmp_path,
        before,
        ("SimpleNamespace(TILE_M=256, TILE_N=128, num_ctas=1, occupancy=1)",
         "SimpleNamespace(TILE_M=64, TILE_N=128, num_ctas=1, occupancy=1)"),
        ("@ct.kernel\ndef _fmha_kernel(", "@ct.kernel(num_worker_warps=4)\ndef _fmha_kernel("),
    )  # fmt: skip
    after = task_of("fmha", files)
    assert after.space.shipped == before.space.shipped.replace(TILE_M=64, TILE_N=128, num_worker_warps=4)
    launch = launched(after, after.space.shipped, "causal")
    assert launch.grid[0] == 64 and decorated_hints(launch.kernel)["num_worker_warps"] == 4
    assert launched(before, before.space.shipped, "causal").grid[0] == 16, "the original is as it was"


def test_a_line_that_was_added_to_a_list_is_what_ships_and_the_rest_stays(tmp_path: Path) -> None:
    line = "        yield SimpleNamespace(TILE_M=256, TILE_N=128, num_ctas=1, occupancy=1)\n"
    added = line.replace("256", "64")
    after = task_of("fmha", edited(tmp_path, task_of("fmha"), (line, added + line)))
    assert after.space.shipped.TILE_M == 64
    assert 256 in {one.TILE_M for one in after.space.include}


def test_the_fixed_hint_of_the_launch_can_be_edited(tmp_path: Path) -> None:
    change = ("_fmha_kernel.replace_hints(occupancy=2)", "_fmha_kernel.replace_hints(occupancy=1)")
    assert task_of("fmha", edited(tmp_path, task_of("fmha"), change)).space.shipped.occupancy == 1


def test_a_constant_of_the_module_that_was_edited_is_what_ships(tmp_path: Path) -> None:
    change = ("_DEFAULT_TILE_M = 64", "_DEFAULT_TILE_M = 128")
    after = task_of("swa_attention", edited(tmp_path, task_of("swa_attention"), change))
    assert after.space.shipped.TILE_M == 128
    assert launched(after, after.space.shipped, "mistral").grid[0] == 64


def test_an_assignment_in_a_wrapper_that_was_edited_is_what_ships(tmp_path: Path) -> None:
    change = ("            TILE_SIZE_M = 4  #", "            TILE_SIZE_M = 2  #")
    assert task_of("rms_norm", edited(tmp_path, task_of("rms_norm"), change)).space.shipped.TILE_SIZE_M == 2


def test_the_recorded_choice_of_the_search_ships_until_the_list_is_edited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import as_launched

    sizes = [(256, 128, 1), (128, 128, 2), (256, 128, 2), (256, 128, 2)]
    listed = [{"TILE_M": m, "TILE_N": n, "num_ctas": 1, "occupancy": o} for m, n, o in sizes]
    listed[3]["num_ctas"] = 2
    record = {"fmha": {name: {"list": listed, "pick": listed[1]} for name in task_of("fmha").workloads}}
    monkeypatch.setattr(as_launched, "_record", lambda: record)
    assert task_of("fmha").space.shipped.TILE_M == 128
    change = ("yield SimpleNamespace(TILE_M=128, TILE_N=128", "yield SimpleNamespace(TILE_M=64, TILE_N=64")
    assert task_of("fmha", edited(tmp_path, task_of("fmha"), change)).space.shipped.TILE_M == 64


def test_workloads_for_which_the_search_took_different_things_are_tasks_of_their_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import as_launched
    from operations import workloads_of

    listed = [{"TILE_M": m, "TILE_N": 128, "num_ctas": 1, "occupancy": 1} for m in (256, 128)]
    record = {"fmha": {"causal": {"list": listed, "pick": listed[0]}, "full": {"list": listed, "pick": listed[1]}}}
    monkeypatch.setattr(as_launched, "_record", lambda: record)
    found = {where.rpartition(":")[2]: names for where, names in workloads_of("fmha").items()}
    assert found == {"fmha": ("causal",), "fmha_full": ("full",), "fmha_short": ("short",)}


def test_the_record_of_what_the_searches_took_fits_the_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    """With `shipped.json` as it is committed: what ships is the same for all workloads of a task."""
    import as_launched
    from operations import OPERATIONS, workloads_of

    monkeypatch.undo()
    as_launched._record.cache_clear()
    for operation in OPERATIONS:
        for where, workloads in workloads_of(operation).items():
            task = load_task(where)
            for workload in workloads:
                launch = launched(task, task.space.shipped, workload)
                assert knobs_of(task, launch) == dict(task.space.shipped), (where, workload)


def test_another_architecture_gets_another_branch_of_the_wrapper() -> None:
    """The bmm list has a Hopper branch of its own."""
    task = task_of("bmm")
    config = task.space.shipped
    assert knobs_of(task, launched(task, config, board=BLACKWELL))["TILE_N"] == 256
    assert config.TILE_N == 64


def test_a_kernel_that_takes_lists_is_launched_with_lists() -> None:
    task = task_of("group_gemm")
    launch = launched(task, task.space.shipped)
    a, b, c, *_ = launch.args
    assert [one.name for one in a] == [f"a{group}" for group in range(8)]
    assert len(b) == len(c) == 8
    assert launch.grid == (HOPPER.sms, 1, 1)


@pytest.mark.parametrize("name", ["fmha", "attention_sink", "swa_attention"])
def test_attention_promises_no_tile_that_has_memory_behind_the_last_key(name: str) -> None:
    task = task_of(name)
    dims = next(iter(task.workloads.values()))
    assert [task.promises({**dims, "S": extent}) for extent in (1, 130, 128)] == [False, False, True]


@pytest.mark.parametrize("name", ["swa_attention", "attention_sink"])
def test_masks_leave_the_middle_of_a_window_before_hints_are_tried(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only searching for tiles comes first: in what ships, 89 and 95 % of the iterations need no mask."""
    import as_launched

    monkeypatch.undo()
    as_launched._record.cache_clear()
    task = task_of(name)
    facts = facts_of(task)
    texts = {path: path.read_text() for path in editable_files(task)}
    hints = ("latency", "occupancy", "worker_warps", "clusters")
    entries = [entry for entry in catalogue() if entry.about.id in (*hints, "mask_split", "tune_space")]
    past = Past(history={}, tried={}, kept=0, lossy=False, lowered=(), missed={})
    found, _ = proposals(texts, facts, entries, past)
    assert [each.entry for each in found[:2]] == ["tune_space", "mask_split"]
    assert found[1].values() == (THREE_LOOPS, BRANCH)


@pytest.mark.parametrize("scaling", ["1.0 / math.sqrt(D)", "0.0", "-0.7"])
def test_a_maximum_that_is_scaled_later_changes_no_bit(scaling: str, tmp_path: Path) -> None:
    """Of attention with a window, whose hidden scores are −1e30: above 0, 0 and below."""
    task = task_of("swa_attention")
    (path,) = editable_files(task)
    source = Source(path.name, path.read_text())
    (site,) = SCALED_MAX.sites(source, facts_of(task))
    assert site.kernel == "_swa_fwd_kernel" and site.values
    texts = [source.text, *(SCALED_MAX.apply(source, site, value) for value in site.values)]
    before, *after = (
        attended(text.replace("scaling = 1.0 / math.sqrt(D)", f"scaling = {scaling}"), task, tmp_path) for text in texts
    )
    assert after == [before] * len(site.values)


@pytest.mark.parametrize("before", [(), (MASK_SPLIT, SCALED_MAX)], ids=["as it ships", "after other changes"])
def test_one_division_a_row_changes_no_bit(before: tuple[Entry, ...], tmp_path: Path) -> None:
    task = task_of("swa_attention")
    (path,) = editable_files(task)
    source, facts = Source(path.name, path.read_text()), facts_of(task)
    shipped = attended(source.text, task, tmp_path)
    for entry, value in (*((each, None) for each in before), (ROW_DIVISION, INVERSE)):
        (site,) = entry.sites(source, facts)
        source = Source(path.name, entry.apply(source, site, value or site.values[0]))
    assert source.text.count("inverse = 1.0 / scaled") == 1
    assert attended(source.text, task, tmp_path) == shipped


@pytest.mark.long
def test_attention_for_gemma_keeps_no_maximum(tmp_path: Path) -> None:
    """As it is, and with three loops in place of one; the results differ by the rounding of terms to bfloat16."""
    task = task_of("gemma_attention")
    (path,) = editable_files(task)
    shipped, facts = Source(path.name, path.read_text()), facts_of(task)
    (edges,) = MASK_SPLIT.sites(shipped, facts)
    split = Source(path.name, MASK_SPLIT.apply(shipped, edges, THREE_LOOPS))
    texts = [shipped.text]
    for source, loops in ((shipped, 1), (split, 3)):
        (site,) = BOUNDED.sites(source, facts)
        texts.append(BOUNDED.apply(source, site, NO_MAXIMUM))
        assert texts[-1].count("if bounded:") == loops
    before, *after = (attended(text, task, tmp_path, {"G": 1}) for text in texts)
    assert after[0] == after[1]
    old, new = (np.frombuffer(each, ml_dtypes.bfloat16).astype(float) for each in (before, after[0]))
    assert np.abs(new - old).max() < 2**-6 and np.abs(new - old).mean() < 2**-10


def attended(text: str, task: Task, folder: Path, more: Mapping[str, int] = MappingProxyType({})) -> bytes:
    """The output of one head of 256 queries with a window of 100, in the interpreter."""
    (original,) = editable_files(task)
    copy = folder / original.name
    copy.write_text(text)
    changed = task_of(task.name, {str(original): str(copy)})
    dims = {"B": 1, "H": 1, "S": 256, "D": 128, "window": 100, **more}
    arrays, rng = changed.arrays(dims), np.random.default_rng(7)
    runnable = Launcher(changed, HOPPER).runnable(changed.space.shipped, dims, arrays)
    assert isinstance(runnable, Runnable)
    data = {name: rng.normal(0, 1, spec.shape).astype(storage(spec.dtype)) for name, spec in arrays.items()}
    memory = Memory()
    addresses = {name: memory.allocate(name, array).address for name, array in data.items()}
    assert not run(runnable.module, runnable.bound(addresses, memory), runnable.launch.grid, memory).findings
    return data["out"].tobytes()
