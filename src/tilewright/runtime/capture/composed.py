"""Two captured launches as the reference of one fused kernel: their arguments and grids in a task of this kernel.

The task's extents may be smaller than the captured ones. The arguments of both launches are those of the fused kernel,
except the tiles of the producer, which stay as captured. Its grid has one block for each tile of its output.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from tilewright.errors import RequestError
from tilewright.playbook.analyses.fusing import Fused
from tilewright.records import Value
from tilewright.runtime.capture.described import INTERMEDIATE, Argument, DescribedLaunch


@dataclass(frozen=True)
class Composed:
    """A producer, the consumer that reads its output, and the fused kernel that does the work of both.

    written, read: the parameters of the two that get the intermediate array.
    grid: for each axis of the producer's grid, the axis of the intermediate array and the extent of its tile; None for
        an axis of one block.
    """

    producer: DescribedLaunch
    consumer: DescribedLaunch
    fused: Fused
    written: str
    read: str
    grid: tuple[tuple[int, int] | None, ...]

    @property
    def dtype(self) -> str:
        """The dtype of the intermediate array."""
        return self.producer.spec_of(self.written).dtype

    def produced(self, text: Callable[[str], str]) -> str:
        """Returns the grid and the arguments of the producer's launch. ``text``: returns a fused argument as text."""
        blocks = ("1" if each is None else f"-(-{INTERMEDIATE}.shape[{each[0]}] // {each[1]})" for each in self.grid)
        new = {old: name for name, old in self.fused.producer.items()}
        args = (self._text(each, self.written, new, text) for each in self.producer.arguments)
        return f"({''.join(f'{each}, ' for each in blocks)}), ({''.join(f'{each}, ' for each in args)})"

    def consumed(self, text: Callable[[str], str]) -> Iterator[str]:
        """Yields the arguments of the consumer's launch."""
        new = {old: name for name, old in self.fused.consumer.items()}
        yield from (self._text(each, self.read, new, text) for each in self.consumer.arguments)

    def _text(self, own: Argument, between: str, new: Mapping[str, str], text: Callable[[str], str]) -> str:
        if own.name == between:
            return INTERMEDIATE
        return text(new[own.name]) if own.name in new else repr(own.value)


def composed(producer: DescribedLaunch, consumer: DescribedLaunch, fused: Fused, written: str, read: str) -> Composed:
    """Joins two launches. Raises RequestError if the producer's grid is not one block for each tile of its output."""
    spec = producer.spec_of(written)
    for array in producer.arrays():
        if array.name not in (written, *fused.producer.values()):
            raise RequestError(f"{producer.kernel}: '{array.name}' has no effect on what it writes; remove it")
    blocks: dict[int, tuple[int, int]] = {}
    for axis, (index, size) in enumerate(zip(fused.index, fused.shape, strict=True)):
        tile, extent = _number(size, producer.constants), spec.shape[axis]
        number = re.fullmatch(r"(?:\w+\.)*bid\((\d)\)", index)
        if tile is None:
            raise RequestError(
                f"{producer.kernel}: its tile has the extent {size}, which is neither a number nor a constant"
            )
        if number is None and (index != "0" or tile < extent):
            raise RequestError(
                f"{producer.kernel}: not each block of its grid stores its own tile, at ({', '.join(fused.index)})"
            )
        if number is not None and int(number[1]) in blocks:
            raise RequestError(f"{producer.kernel}: two axes of its tile have one index, {index}")
        if number is not None:
            blocks[int(number[1])] = axis, tile
    grid = tuple(blocks.get(axis) for axis in range(len(producer.grid)))
    tiles = tuple(1 if each is None else -(-spec.shape[each[0]] // each[1]) for each in grid)
    if tiles != producer.grid or len(blocks) > len(grid):
        raise RequestError(f"{producer.kernel}: its grid is {producer.grid}, and its output has {tiles} tiles")
    return Composed(producer, consumer, fused, written, read, grid)


def _number(text: str, constants: Mapping[str, Value]) -> int | None:
    value = int(text) if text.isdigit() else constants.get(text)
    return value if isinstance(value, int) else None
