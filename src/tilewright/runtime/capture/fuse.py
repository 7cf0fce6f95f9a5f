"""Makes one kernel of a captured pair, and a task of this kernel. Both captured launches are the task's reference.

The launches show that a pair may be fused (`pairs`), the source shows how (`playbook.analyses.fusing`). The task's
draft is checked in the interpreter as that of any captured launch. In addition, the outputs of the fused kernel must be
equal to the bit to those of both launches, since the fused kernel rounds where they round.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from tilewright.errors import RequestError
from tilewright.playbook.analyses.fusing import fused
from tilewright.playbook.base import NotApplicable
from tilewright.race.stats import Array
from tilewright.runtime.capture import facts
from tilewright.runtime.capture.composed import Composed, composed
from tilewright.runtime.capture.data import Elements, numpy_dtype
from tilewright.runtime.capture.described import Argument, DescribedLaunch, with_storages
from tilewright.runtime.capture.fused_time import PredictedTimes, predicted_times
from tilewright.runtime.capture.guessing import loaded_text
from tilewright.runtime.capture.pairs import Pair, pairs
from tilewright.runtime.capture.rebuilding import loaded_kernel
from tilewright.runtime.capture.record import Capture, Recorded, chosen
from tilewright.runtime.capture.reference import captured_of
from tilewright.runtime.capture.task_file import finished_draft
from tilewright.runtime.capture.trying import drawn_inputs, small_shape
from tilewright.source.digest import source_of
from tilewright.source.needed import INSIDE, joined, source_of_needed
from tilewright.source.source_file import SourceFile
from tilewright.task.task import Task
from tilewright.task.tensors import is_whole, row_major

SCALES = (1.0, 1.0, 1e4, 1e-4, 0.0)
"""The factors of the inputs for which the outputs must be equal to the bit."""


@dataclass(frozen=True)
class FusedTask:
    """The texts of two files: the fused kernel's and the task's."""

    name: str
    kernel: str
    task: str
    pair: Pair
    times: PredictedTimes


def fused_task(capture: Capture, producer: int, consumer: int, file: Path) -> FusedTask:
    """Writes the fused kernel of two rows to ``kernel_file(file)``, and returns it with its task.

    file: the task file, which is not written. Raises RequestError, with the reason, if the two cannot be fused.
    """
    pair = _pair(capture, producer, consumer)
    first, second = chosen(capture, producer), chosen(capture, consumer)
    _refuse_other_layout(first.launch, second.launch, pair)
    texts = [source_of_needed(Path(each.launch.file), each.launch.qualname) for each in (first, second)]
    for each, own in zip((first, second), texts, strict=True):
        _refuse_neighbours(each.launch, own, file.parent.resolve())
    text = joined(texts)
    shapes = {each.name: each.spec.shape for each in first.launch.arrays()}
    dtype = first.launch.spec_of(pair.written).dtype
    try:
        made = fused(text, first.launch.qualname, second.launch.qualname, pair.read, dtype, shapes)
    except NotApplicable as reason:
        raise RequestError(f"rows {producer} and {consumer} cannot be one kernel: {reason}") from None
    both = composed(first.launch, second.launch, made, pair.written, pair.read)
    text = f'"""{_heading(first, second)}"""\n\n{made.text}'
    with _kept_if_whole(kernel_file(file), text):
        launch = _launch(kernel_file(file), both, pair)
        captured = replace(facts.captured_launch(launch), composed=both)
        task = finished_draft(captured, file.parent, _heading(first, second)).text()
        with loaded_text(task, made.name, file.parent) as draft:
            _refuse_other_bits(draft, launch)
            times = predicted_times((first.launch, second.launch), draft, file.parent)
    return FusedTask(made.name, text, task, pair, times)


@contextmanager
def _kept_if_whole(file: Path, text: str) -> Iterator[None]:
    """Writes a file. If the block raises, the file is as it was before. Raises RequestError if it cannot be written."""
    try:
        before = file.read_bytes() if file.exists() else None
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise RequestError(f"cannot write {file}: {error.strerror}") from error
    try:
        yield
    except BaseException:
        if before is None:
            file.unlink()
        else:
            file.write_bytes(before)
        raise


def kernel_file(task_file: Path) -> Path:
    """Returns the file of the fused kernel, beside the task file."""
    return task_file.with_name(f"{task_file.stem}_kernel.py")


def _pair(capture: Capture, producer: int, consumer: int) -> Pair:
    for row in (producer, consumer):
        _refuse(chosen(capture, row).launch)
    every = pairs(capture)
    found = [pair for pair in every.found if (pair.producer, pair.consumer) == (producer, consumer)]
    if not found:
        for kernel in (chosen(capture, row).launch.kernel for row in (producer, consumer)):
            if kernel in every.unread:
                raise RequestError(f"{kernel} cannot be fused, because it cannot be read: {every.unread[kernel]}")
        what = f"row {producer} does not write what row {consumer} reads directly after it"
        raise RequestError(f"{what}; the pairs: tilewright captured pairs")
    if found[0].problem:
        raise RequestError(f"rows {producer} and {consumer} cannot be one kernel: {found[0].problem}")
    return found[0]


def _refuse(launch: DescribedLaunch) -> None:
    if launch.language != "cutile":
        raise RequestError(f"{launch.kernel} is a {launch.language} kernel; only cuTile kernels can be fused")
    if launch.problem:
        raise RequestError(f"{launch.kernel} cannot be fused: {launch.problem}")
    if INSIDE in launch.qualname or "." in launch.qualname:
        raise RequestError(f"{launch.kernel} is defined inside a function; move it to the top level of its module")
    for argument in launch.arguments:
        if argument.kind not in ("array", "scalar", "constant"):
            raise RequestError(f"{launch.kernel} gets a {argument.kind} as '{argument.name}'; this cannot be fused")


def _refuse_neighbours(launch: DescribedLaunch, text: str, folder: Path) -> None:
    """Raises RequestError if a kernel imports a module beside its file, which a file in ``folder`` would not find, or
    find as another module."""
    path = Path(launch.file).resolve()
    if path.parent == folder or (path.parent / "__init__.py").is_file():
        return

    def is_in(place: Path, root: str) -> bool:
        return any((place / each).is_file() for each in (f"{root}.py", f"{root}/__init__.py"))

    for root in sorted(SourceFile(path, text).packages):
        if is_in(path.parent, root) and (is_in(folder, root) or str(path.parent) not in sys.path):
            what = f"{launch.kernel} imports '{root}' from {path.parent}"
            raise RequestError(f"{what}; write FILE.py into this folder, so that the fused kernel imports it, too")


def _refuse_other_layout(producer: DescribedLaunch, consumer: DescribedLaunch, pair: Pair) -> None:
    written, read = producer.spec_of(pair.written), consumer.spec_of(pair.read)
    if (written.shape, written.strides, written.dtype) != (read.shape, read.strides, read.dtype):
        what = f"{producer.kernel} writes {written.dtype} {written.shape}, and {consumer.kernel} reads it as"
        raise RequestError(f"{what} {read.dtype} {read.shape}: only one shape and dtype can be fused")
    if written.strides != row_major(written.shape):
        raise RequestError(f"{producer.kernel} writes an array that is not row-major; this cannot be fused")


def _heading(first: Recorded, second: Recorded) -> str:
    names = f"`{first.launch.kernel}` and `{second.launch.kernel}` as one kernel"
    times = [each.total_us / each.launched for each in (first, second) if each.total_us and each.launched]
    spent = f"; the two launches took {sum(times):.2f} µs" if len(times) == 2 else ""
    return f"{names}, recorded one after the other{spent}."


def _launch(file: Path, both: Composed, pair: Pair) -> DescribedLaunch:
    """Describes the launch of the fused kernel: the consumer's, with the arguments of both."""
    places = {
        id(argument): address
        for launch, addresses in zip((both.producer, both.consumer), pair.addresses, strict=True)
        for argument, address in zip(launch.arrays(), addresses, strict=True)
    }
    found, addresses = list[Argument](), list[int]()
    for name in both.fused.parameters:
        launch, names = (both.producer, both.fused.producer)
        if name not in names:
            launch, names = (both.consumer, both.fused.consumer)
        argument = next(each for each in launch.arguments if each.name == names[name])
        if argument.kind == "array":
            addresses.append(places[id(argument)])
            found.append(replace(argument, name=name, array=replace(argument.spec, name=name)))
        else:
            found.append(replace(argument, name=name))
    launch = replace(
        both.consumer, kernel=both.fused.name, module=file.stem, qualname=both.fused.name, file=str(file.resolve()),
        source="", arguments=tuple(found), closure={},
    )  # fmt: skip
    arguments = with_storages(launch.arguments, addresses)
    return replace(launch, source=source_of(loaded_kernel(launch)), arguments=arguments)


def _refuse_other_bits(task: Task, launch: DescribedLaunch) -> None:
    """Raises RequestError if the fused kernel differs from both captured launches in a bit of an output.

    Interprets both on a small shape, with numbers of several magnitudes. All NaN count as equal.
    """
    both = captured_of(task)
    place = {name: getattr(launch, name) for name in ("module", "file", "qualname", "source")}
    own, dims = replace(both, **place, producer=None, launch=task.launch), small_shape(task)
    for seed, scale in enumerate(SCALES):
        drawn = drawn_inputs(task, dims, np.random.default_rng(seed))
        inputs = {name: _scaled(array, task.inputs[name].dtype, scale) for name, array in drawn.items()}
        expected, found = both.outputs(dims, inputs), own.outputs(dims, inputs)
        if isinstance(expected, str) or isinstance(found, str):
            raise RequestError(
                f"the fused kernel cannot be compared: {expected if isinstance(expected, str) else found}"
            )
        for name, array in expected.items():
            if not _are_equal(array, found[name]):
                raise RequestError(f"the fused kernel does not write '{name}' as the two launches do, to the bit")


def _scaled(array: Array, dtype: str, scale: float) -> Elements:
    return (array if is_whole(dtype) else array * scale).astype(numpy_dtype(dtype))


def _are_equal(one: Elements, other: Elements) -> bool:
    bits = f"u{one.itemsize}"
    equal = one.view(bits) == other.view(bits)
    if one.dtype.kind not in "biu":
        equal |= np.isnan(one.astype(np.float64)) & np.isnan(other.astype(np.float64))
    return bool(equal.all())
