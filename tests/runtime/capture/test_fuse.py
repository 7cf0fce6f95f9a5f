"""Pairs of kernels that become one, and pairs that must not. The launches are recorded, but not made."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import cuda.tile as ct
import pytest
from tests.runtime import fused_kernels as kernels

from tilewright.errors import RequestError
from tilewright.playbook.analyses.elementwise import element_wise
from tilewright.playbook.analyses.fusing import fused
from tilewright.playbook.base import NotApplicable
from tilewright.runtime.capture import capture, fuse, recorder
from tilewright.runtime.capture import record as capture_record
from tilewright.runtime.capture.fused_time import PredictedTimes
from tilewright.runtime.capture.guessing import loaded_text
from tilewright.runtime.capture.pairs import Pair, Pairs, pairs
from tilewright.runtime.capture.record import Capture
from tilewright.runtime.capture.reference import captured_of
from tilewright.source.syntax import Source

torch = pytest.importorskip("torch")
Launch = tuple[Any, tuple[int, ...], tuple[Any, ...]]
Step = Launch | Callable[[], object]
BFLOAT = torch.bfloat16


def drawn(*shape: int, dtype: Any = torch.float32) -> Any:
    return torch.zeros(shape, dtype=dtype)


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Callable[[Sequence[Step]], Capture]]:
    """Records launches that are not made. A step that is no launch is called."""
    monkeypatch.setattr(ct, "launch", lambda *given, **more: None)
    monkeypatch.setattr(recorder, "_call", lambda: None)  # describing the frames of pytest takes seconds
    monkeypatch.setattr(fuse, "predicted_times", lambda *_: PredictedTimes("", ()))  # tests/cli has the real one

    def record(steps: Sequence[Step]) -> Capture:
        with capture.capturing(tmp_path / "c.json"):
            for step in steps:
                if callable(step):
                    step()
                else:
                    kernel, grid, args = step
                    ct.launch(0, grid, kernel, args)  # type: ignore[arg-type]
        return capture_record.read(tmp_path / "c.json")

    yield record
    capture.uninstall()


def add(out: Any, *inputs: Any, rows: int = 24) -> Launch:
    x, y = inputs or (drawn(24, 200, dtype=BFLOAT), drawn(24, 200, dtype=BFLOAT))
    return kernels.add, (rows,), (x, y, out, 256)


def softmax(x: Any, out: Any = None) -> Launch:
    return kernels.softmax, (24,), (x, drawn(24, 200, dtype=BFLOAT) if out is None else out, 256)


def add_softmax() -> list[Step]:
    between = drawn(24, 200, dtype=BFLOAT)
    return [add(between), softmax(between)]


def silu_mul_rms_norm() -> list[Step]:
    between, x, weight = drawn(16, 384, dtype=BFLOAT), drawn(16, 384, dtype=BFLOAT), drawn(384, dtype=BFLOAT)
    out = drawn(16, 384, dtype=BFLOAT)
    gate = drawn(16, 384, dtype=BFLOAT)
    return [
        (kernels.silu_mul, (2, 6), (gate, x, between, 8, 64)),
        (kernels.rms_norm, (16,), (between, weight, out, 1e-5, 128)),
    ]


def scaled_matmul() -> list[Step]:
    half = torch.float16
    between, b, c = drawn(64, 96, dtype=half), drawn(96, 64, dtype=half), drawn(64, 64, dtype=half)
    first = kernels.scaled, (3, 4), (drawn(64, 96), drawn(1, 96), between, 0.5, 16, 32)
    return [first, (kernels.matmul, (2, 2), (between, b, c, 32, 32, 32))]


def dropped_row_sum() -> list[Step]:
    between = drawn(24, 240)
    first = kernels.dropped, (3, 4), (drawn(24, 240), drawn(24, 240), between, 0.9, 8, 64)
    return [first, (kernels.row_sum, (24,), (between, drawn(24), 64))]


def exponential_column_sums() -> list[Step]:
    between = drawn(22, 64)
    first = kernels.exponential, (3, 1), (drawn(22, 64), between, 8, 64)
    return [first, (kernels.column_sums, (6, 1), (between, drawn(6, 64), 4, 64))]


@pytest.mark.parametrize("steps", [silu_mul_rms_norm, scaled_matmul, dropped_row_sum, exponential_column_sums])
def test_a_pair_becomes_one_kernel_with_equal_bits(
    steps: Callable[[], list[Step]], recorded: Callable[[Sequence[Step]], Capture], tmp_path: Path
) -> None:
    """`fused_task` raises if the draft or a bit is wrong. The intermediate array is no longer in the kernel."""
    capture = recorded(steps())
    (pair,) = pairs(capture).found
    made = fuse.fused_task(capture, pair.producer, pair.consumer, tmp_path / "task.py")
    assert made.name == steps.__name__ and pair.problem == ""
    assert f"def {made.name}(" in fuse.kernel_file(tmp_path / "task.py").read_text()
    assert made.kernel.count("ct.store(") == 1 and "intermediate" not in made.kernel
    assert "producer=Producer(" in made.task and f"module.{made.name}" in made.task


def test_padding_is_kept_and_the_reference_launches_both_kernels(
    recorded: Callable[[Sequence[Step]], Capture], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a GPU, the first writes what the second reads, and all else are the task's own tensors."""
    made = fuse.fused_task(recorded(add_softmax()), 1, 2, tmp_path / "task.py")
    assert made.name == "add_softmax" and "x.shape[1])[None, :], x_, -INFINITY)" in made.kernel
    calls: list[tuple[Any, ...]] = []
    monkeypatch.setattr(ct, "launch", lambda *given: calls.append(given))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda *given: 7)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: calls.append(()))
    with loaded_text(made.task, made.name, tmp_path) as task:
        dims = task.selected(None)[0].dims
        inputs = {name: drawn(24, 200, dtype=BFLOAT) for name in task.inputs}
        (made_out,) = captured_of(task)._on_gpu(dims, inputs)
    (_, first, add_, (x, y, written, _)), (stream, grid, softmax_, (read, out, _)), () = calls
    assert (add_._pyfunc.__name__, softmax_._pyfunc.__name__) == ("add", "softmax")
    assert written is read and (written.shape, written.dtype) == ((24, 200), BFLOAT)
    assert x is inputs["x"] and y is inputs["y"] and out is made_out
    assert (stream, first, grid) == (7, (24,), (24,))


def found(capture: Capture) -> tuple[Pair, ...]:
    return pairs(capture).found


def test_what_the_launches_show(recorded: Callable[[Sequence[Step]], Capture]) -> None:
    between = drawn(24, 200, dtype=BFLOAT)
    again = [add(between), softmax(between), add(between), softmax(between)]
    (pair,) = found(recorded(again))
    assert (pair.producer, pair.consumer, pair.written, pair.read, pair.times) == (1, 2, "out", "x", 2)
    assert pair.saved_bytes == 2 * 2 * 24 * 200 * 2 and not pair.problem


def test_launches_that_must_stay_apart(recorded: Callable[[Sequence[Step]], Capture]) -> None:
    """Each for one reason, which the message names."""
    x, y, between, out = (drawn(24, 200, dtype=BFLOAT) for _ in range(4))
    first, then = add(between, x, y), softmax(between)
    centred = kernels.centred, (24,), (between, drawn(24, 200, dtype=BFLOAT), 256)

    def by_view() -> None:
        """The view is gone before the next launch."""
        ct.launch(0, (24,), kernels.add, (x, y[:], between, 256))  # type: ignore[arg-type]

    wrong: dict[str, list[Step]] = {
        "row 3, centred, reads it again": [first, then, centred],
        "1 of its launches are not followed by row 2": [first, then, first, centred],
        "torch changes 'x' in place between": [first, lambda: x.add_(1), then],
        "torch changes 'out' in place between": [first, lambda: between.mul_(2), then],
        "torch changes 'y' in place between": [by_view, lambda: y.add_(1), then],
        "row 2, softmax, writes 'out' over an input of add": [first, softmax(between, y)],
        "row 2, add, also gets it as 'y'": [(kernels.centred, (24,), (x, between, 256)), add(out, between, between)],
    }
    for reason, steps in wrong.items():
        pair = found(recorded(steps))[0]
        assert reason in pair.problem, reason
    assert not found(recorded([first, (kernels.centred, (24,), (x, out, 256)), then]))  # not directly before
    assert not found(recorded([first, lambda: None, softmax(drawn(24, 200, dtype=BFLOAT))]))


def test_an_array_that_is_written_anew_is_not_read_again(recorded: Callable[[Sequence[Step]], Capture]) -> None:
    """Allocators give the same address to another array."""
    between, x = drawn(24, 200, dtype=BFLOAT), drawn(24, 200, dtype=BFLOAT)
    written = kernels.centred, (24,), (x, between, 256)
    assert found(recorded([add(between), softmax(between), written, softmax(between)]))[0].problem == ""


@pytest.mark.parametrize(
    ("kernel", "reason"),
    [
        ("difference", "loads tile ct.bid(0) + 1 of 1 elements of 'x'"),
        ("centred", "it calls ct.sum"),
        ("numbered", "its arithmetic uses the number of the block: factor = ct.bid(0) * 2"),
        ("by_gather", "it computes ct.arange(TILE, dtype=ct.int32)[None, :]"),
        ("matmul", "it calls ct.zeros"),
        ("by_helper", "seeded uses the number of the block"),
        ("swapped", "line 3 is a 'assign'"),
        ("in_a_loop", "line 3 is a 'for'"),
        ("by_other_output", "its arithmetic uses 'c', which it writes: count = ct.num_tiles(c, 1, (TM, TN))"),
        ("renamed", "it assigns to its parameter 'x'"),
    ],
)
def test_kernels_that_are_not_element_wise(kernel: str, reason: str) -> None:
    text = Path(kernels.__file__).read_text()
    with pytest.raises(NotApplicable, match="is not element-wise") as refused:
        element_wise(Source("kernels.py", text), kernel)
    assert reason in str(refused.value)


def test_launches_that_the_source_keeps_apart(recorded: Callable[[Sequence[Step]], Capture], tmp_path: Path) -> None:
    x, between = drawn(24, 200, dtype=BFLOAT), drawn(24, 200, dtype=BFLOAT)
    wrong: dict[str, list[Step]] = {
        "its grid is (12,), and its output has (24,) tiles": [add(between, rows=12), softmax(between)],
        "only one shape and dtype can be fused": [add(between), softmax(between.view(48, 100))],
        "two axes of its tile have one index": [(kernels.diagonal, (3,), (x, between, 8, 128)), softmax(between)],
    }
    for reason, steps in wrong.items():
        with pytest.raises(RequestError) as refused:
            fuse.fused_task(recorded(steps), 1, 2, tmp_path / "task.py")
        assert reason in str(refused.value)
    with pytest.raises(RequestError, match="tilewright captured pairs"):
        fuse.fused_task(recorded([add(between), softmax(between)]), 2, 1, tmp_path / "task.py")
    assert not list(tmp_path.glob("*.py"))


@pytest.mark.parametrize(
    ("old", "new"),
    [("ct.where((ct.arange(TILE, dtype=ct.int32) < x.shape[1])[None, :], x_, -INFINITY)", "x_"),
     ("(left + right).astype(ct.bfloat16)", "left.astype(ct.float32) + right.astype(ct.float32)")],
)  # fmt: skip
def test_a_wrong_fused_kernel_is_refused(
    old: str, new: str, recorded: Callable[[Sequence[Step]], Capture], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the padding, and without the rounding of the intermediate array."""
    right = fuse.fused

    def wrong(*given: Any) -> Any:
        made = right(*given)
        assert old in made.text
        return replace(made, text=made.text.replace(old, new))

    monkeypatch.setattr(fuse, "fused", wrong)
    with pytest.raises(RequestError):
        fuse.fused_task(recorded(add_softmax()), 1, 2, tmp_path / "task.py")
    assert not list(tmp_path.glob("*.py"))


def test_the_sequence_ends_at_the_first_gap(recorded: Callable[[Sequence[Step]], Capture]) -> None:
    between = drawn(24, 200, dtype=BFLOAT)
    capture = recorded([add(between), softmax(between)] * 520)
    assert [len(part.sequence) for part in capture.parts] == [1024]
    assert pairs(capture).found[0].times == 512


def test_a_kernel_that_is_gone_is_in_no_pair(recorded: Callable[[Sequence[Step]], Capture]) -> None:
    capture = recorded(add_softmax())
    (part,) = capture.parts
    gone = tuple(replace(each, launch=replace(each.launch, source="another")) for each in part.launches)
    lost = Capture(capture.version, (replace(part, launches=gone),))
    assert isinstance(found := pairs(lost), Pairs) and not found.found and set(found.unread) == {"add", "softmax"}
    with pytest.raises(RequestError, match="add cannot be fused, because it cannot be read: .* has changed"):
        fuse.fused_task(lost, 1, 2, Path("task.py"))


SHARED = """import cuda.tile as ct
from elsewhere import abs

ZERO = ct.PaddingMode.NEG_INF
INFINITY = 1e3


@ct.kernel
def first(x, out, TILE: ct.Constant[int]):
    tile = VALUE
    ct.store(out, (ct.bid(0), 0), tile)


@ct.kernel
def second(x, out, TILE: ct.Constant[int]):
    LOAD
    ct.store(out, (ct.bid(0),), ct.max(tile, 1) + INFINITY)
"""
ONE, LOWEST = "ct.load(x, (ct.bid(0), 0), (1, TILE))", "padding_mode=ct.PaddingMode.NEG_INF"


def joined_text(
    value: str = ONE, load: str = f"tile = {ONE[:-1]}, {LOWEST})", dtype: str = "float32", module: str = ""
) -> str:
    text = SHARED.replace("VALUE", value).replace("LOAD", load)
    text = text.replace("import cuda.tile as ct", module).replace("ct.", "") if module else text
    return fused(text, "first", "second", "x", dtype, {"x": (24, 200), "out": (24, 200)}).text


def test_names_that_mean_something_else() -> None:
    """A function called abs, a padding called ZERO, and an INFINITY of the program."""
    assert 'INFINITY_ = float("inf")' in joined_text() and "x_, -INFINITY_)" in joined_text()
    assert "tile__ = ct.load(x, (ct.bid(0), 0), (1, TILE)) + tile_\n" in joined_text(f"{ONE} + tile_")
    for given, reason in (
        ({"value": f"abs({ONE})"}, "it calls abs"),
        ({"load": f"tile = {ONE[:-1]}, padding_mode=ZERO)"}, "with the padding ZERO"),
        ({"load": f"row = 0; tile = {ONE}"}, "has several statements"),
        ({"dtype": "bool"}, "with the padding ct.PaddingMode.NEG_INF"),
        (
            {"module": "from cuda.tile import Constant, PaddingMode, bid, kernel, load, max, store"},
            "not import 'float32'",
        ),
    ):
        with pytest.raises(NotApplicable, match=re.escape(reason)):
            joined_text(**given)


def test_a_record_without_order(recorded: Callable[[Sequence[Step]], Capture]) -> None:
    capture = recorded(add_softmax())
    without = Capture(capture.version, tuple(replace(part, sequence=()) for part in capture.parts))
    with pytest.raises(RequestError, match="capture the program again"):
        pairs(without)


def test_a_damaged_order(recorded: Callable[[Sequence[Step]], Capture]) -> None:
    capture = recorded(add_softmax())
    (part,) = capture.parts
    first, then = part.sequence
    for wrong in (replace(then, kind=9), replace(then, addresses=first.addresses[-1:]), replace(then, changed=(7,))):
        with pytest.raises(RequestError, match="order of launches is damaged"):
            pairs(Capture(capture.version, (replace(part, sequence=(first, wrong)),)))


def test_a_file_that_cannot_be_written(recorded: Callable[[Sequence[Step]], Capture], tmp_path: Path) -> None:
    (tmp_path / "task_kernel.py").mkdir()
    with pytest.raises(RequestError, match="cannot write .*task_kernel.py: Is a directory"):
        fuse.fused_task(recorded(add_softmax()), 1, 2, tmp_path / "task.py")


def test_a_module_beside_the_kernel(recorded: Callable[[Sequence[Step]], Capture], tmp_path: Path) -> None:
    """Another folder has another module of this name, or none."""
    (part,) = recorded(add_softmax()).parts
    for name in ("theirs", "other", "mine"):
        (tmp_path / name).mkdir()
    (tmp_path / "theirs" / "scales.py").touch()
    (tmp_path / "other" / "scales.py").touch()
    launch = replace(part.launches[0].launch, file=str(tmp_path / "theirs" / "kernels.py"))
    fuse._refuse_neighbours(launch, "from scales import SCALE", tmp_path / "theirs")
    fuse._refuse_neighbours(launch, "import cuda.tile as ct", tmp_path / "mine")
    for folder in ("other", "mine"):
        with pytest.raises(RequestError, match="add imports 'scales' from .*theirs; write FILE.py into this folder"):
            fuse._refuse_neighbours(launch, "from scales import SCALE", tmp_path / folder)
