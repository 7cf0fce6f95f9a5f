"""Tries whether a drafted task gives the captured outputs on all allowed shapes and numbers.

Shapes are interpreted if they are small enough. The captured shape of a launch that cannot be reduced runs on the GPU.

A draft is a guess from one launch. A wrong guess must not become a task, because a check of the task would then report
an error that the kernel does not have.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TypeAlias

import numpy as np

from tilewright.errors import TaskError
from tilewright.hardware.architectures import default_board
from tilewright.race.stats import Array
from tilewright.records import Configuration, Value
from tilewright.runtime.capture.facts import ARCH
from tilewright.runtime.capture.reference import Captured, captured_of
from tilewright.task.task import Task
from tilewright.task.tensors import is_whole
from tilewright.verify import shapes
from tilewright.verify.cases import Case
from tilewright.verify.check import check_on
from tilewright.verify.examining import Examiner
from tilewright.verify.images import ROW_MAJOR
from tilewright.verify.interpreted import InterpreterEngine
from tilewright.verify.planning import Scope, plan
from tilewright.verify.reference import FloatReference
from tilewright.verify.schedule import Equipment, board_here, engine_name, equipped
from tilewright.verify.tolerance import draw

SIZES = (1 << 20, 1 << 10), (1 << 23, 1 << 14)
"""The largest shapes that are interpreted: the elements of all arrays, and the blocks. Drafts with larger shapes are
tried only if none with smaller shapes works."""
SECONDS = 60.0
"""The limit in seconds for checking the tile sizes for one form of the grid."""
DECLARED = ("declared",)
OF_INTEGERS = (*DECLARED, "small integers", "large", "tiny", "mixed signs", "constant rows", "zeros", "rows of zeros")
"""The kinds of data for which integers are drawn in different ways."""
GUESSES = 24
"""The most cases with other shapes and numbers that are tried for one draft. They take milliseconds each."""


class NotAsCaptured(Exception):
    """The captured configuration of a draft does not give the captured outputs."""


Size: TypeAlias = tuple[int, int] | None
"""The most elements of all arrays, and the most blocks, of a shape to interpret. None: the shape runs on the GPU."""


def sizes() -> tuple[Size, ...]:
    """Returns the sizes to try, the smallest first."""
    return (*SIZES, None) if engine_name(None) == "gpu" else SIZES


class TooLarge(NotAsCaptured):
    """The smallest shape of a draft has too many elements to interpret it."""


def verdicts(
    task: Task, others: Iterable[Configuration], is_sure: bool, most: Size = SIZES[-1]
) -> dict[Configuration, str]:
    """Returns the verdicts on ``others`` for a small shape, on as many as time allows. Raises NotAsCaptured if the
    shipped configuration does not give the captured outputs.

    is_sure: whether the draft contains no guess. Then only the small shape is tried.
    most: Raises TooLarge for a shape that is larger.
    """
    if all(tensor.distribution.always for tensor in task.inputs.values()):
        what = f"task '{task.name}': all its inputs are integers that are valid only together"
        raise NotAsCaptured(f"{what}, so a check has no other numbers to try")
    dims = small_shape(task)
    if most is not None and (what := too_large(task, dims, most)):
        what = f"{what}, too many to interpret; where a GPU is, it is checked there"
        raise TooLarge(f"task '{task.name}': even its smallest shape has {what}")
    with _equipped(task, captured_of(task), on_gpu=most is None) as tools:
        return _verdicts(task, tools, dims, others, is_sure)


def too_large(task: Task, dims: Mapping[str, Value], most: tuple[int, int] = SIZES[-1]) -> str:
    """Returns how many elements or blocks a shape has if there are too many to interpret it, or an empty string."""
    arrays = task.arrays(dims)
    elements = sum(math.prod(array.shape) for array in arrays.values())
    blocks = math.prod(task.launched(task.space.shipped, dims, arrays, default_board(ARCH)).grid)
    found = zip((elements, blocks), most, ("elements", "blocks"), strict=True)
    return next((f"{number} {what}" for number, limit, what in found if number > limit), "")


@contextmanager
def _equipped(task: Task, captured: Captured, on_gpu: bool) -> Iterator[Equipment]:
    if on_gpu:
        with equipped(task, "gpu", board_here("gpu", ARCH), quick=True) as tools:
            yield tools
    else:
        yield Equipment(InterpreterEngine(task, default_board(ARCH)), captured)


def _verdicts(
    task: Task, tools: Equipment, dims: dict[str, Value], others: Iterable[Configuration], is_sure: bool
) -> dict[Configuration, str]:
    shipped, reference = task.space.shipped, FloatReference(task, tools.trusted)
    case = Case(tuple(dims.items()), why="asked for")
    first = check_on(task, tools, Scope(case=case))
    if first.verdict != "correct":
        what = f"task '{task.name}': the captured launch itself does not pass on small shapes"
        raise NotAsCaptured(f"{what}: {first.reason}")
    try:
        reference.refuse_degenerate(dims, seed=0)
    except TaskError as error:
        raise NotAsCaptured(str(error)) from error
    if not is_sure:
        _refuse_guess(task, tools, reference)
    changed = [config for config in dict.fromkeys(others) if config != shipped]
    results = check_on(task, tools, Scope(changed, case=case, seconds=SECONDS)).results if changed else ()
    return {shipped: first.verdict, **{result.configuration: result.verdict for result in results}}


def small_shape(task: Task) -> dict[str, Value]:
    """Returns a small shape. Divided by the tile sizes, its dimensions leave the same remainders as the captured
    dimensions. A shape with too many blocks is reduced further: a grid may stay large while the arrays get small."""
    dims = task.selected(None)[0].dims
    moduli = shapes.moduli(task, task.space.shipped, dims)
    for elements in (shapes.WORK_ELEMENTS, shapes.WORK_ELEMENTS >> 3, 1):
        small = shapes.reduced(task, dims, moduli, shapes.Limit(elements=elements))
        if not too_large(task, small):
            break
    return small


def drawn_inputs(task: Task, dims: dict[str, Value], rng: np.random.Generator) -> dict[str, Array]:
    arrays = task.arrays(dims)
    return {
        name: np.asarray(draw(task.distribution(name, dims), arrays[name].shape, rng), np.float64)
        for name in task.inputs
    }


def _refuse_guess(task: Task, tools: Equipment, reference: FloatReference) -> None:
    """Raises NotAsCaptured if the captured configuration fails on a shape, or on integers, that a check would draw."""
    examiner = Examiner(task, tools.engine, reference)
    for case in itertools.islice(_guessed(task), GUESSES):
        try:
            result = examiner.examine(task.space.shipped, case)
        except TaskError as error:
            raise NotAsCaptured(f"task '{task.name}': with {case.described}: {error}") from error
        if result.verdict == "incorrect":
            what = f"task '{task.name}': the captured launch itself does not pass with {case.described}"
            raise NotAsCaptured(f"{what}: {result.reason}")


def _guessed(task: Task) -> Iterator[Case]:
    """Yields the cases of a check that can show a wrong guess: other shapes, and other numbers in integer arrays."""
    has_integers = any(is_whole(tensor.dtype) and not tensor.distribution.always for tensor in task.inputs.values())
    for step in plan(task, Scope().completed(task)):
        case = step.case
        if (
            case.run == "plain"
            and case.layout == ROW_MAJOR
            and case.data in (OF_INTEGERS if has_integers else DECLARED)
        ):
            yield case
