"""The stand-in for `ct.launch`: which kind of launch this is, how often it came, when to time it.

Two launches are of one kind when their kernel and its hints, the grid, the shapes, strides, dtypes and
alignment of their arrays, and their other arguments are equal; of a floating-point scalar that is no
constant only that it is one. Everything on the way of a known launch is kept to what Python does in one or
two microseconds: one generated function reads the key, one dictionary knows it, one counter takes a step.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from time import perf_counter
from typing import Any, cast

from tilewright.errors import in_one_line
from tilewright.runtime.capturing import record as capture_record
from tilewright.runtime.capturing.data import Data
from tilewright.runtime.capturing.described import DescribedLaunch, array_of, described
from tilewright.runtime.capturing.record import Part, Recorded
from tilewright.runtime.capturing.timing import Sampled, next_sample

KINDS = 256
"""Kinds of launch of one kernel that are described; further ones are counted with the last of them."""
ALIGNMENT = 15
"""Of an address: a launch specialises on whether it is a multiple of 16."""
OBJECTS = 8
"""Kernel objects of one function and its hints that are known by their identity. A program that makes one for each
launch (`replace_hints` on the hot path) would otherwise fill the memory."""

Key = tuple[Any, ...]
Reader = Callable[[Any, Any], Key]


class Kind:
    """One kind of launch."""

    __slots__ = ("data", "error", "failed", "in_graph", "launch", "next", "others", "sampled", "ticks")

    def __init__(self, launch: DescribedLaunch, data: dict[str, str]) -> None:
        self.launch, self.data, self.sampled = launch, data, Sampled()
        self.ticks = count(1)  # its next() is one step that no thread can divide
        self.next = 1
        """The number of the next launch to time."""
        self.in_graph = self.failed = self.others = 0
        self.error = ""

    def recorded(self) -> Recorded:
        one, made = self.sampled, int(repr(self.ticks)[6:-1]) - 1  # `count(7)`: without taking a step
        return Recorded(
            self.launch, made, self.in_graph, self.failed, self.error, one.busy, one.idle, one.host,
            self.data, self.others,
        )  # fmt: skip


class Recorder:
    """Counts the launches of one process, on their way to ``original``. ``launch`` is the stand-in."""

    def __init__(self, original: Callable[..., Any], path: Path, data_bytes: int = 0) -> None:
        self.original, self.path = original, path
        self._data = Data(path, data_bytes)
        self._lock, self._writing = threading.RLock(), threading.RLock()
        self._readers: dict[int, Reader] = {}
        """By the id of a kernel object that is kept, so that the id stays taken."""
        self._kernels: dict[tuple[int, str], _Kernel] = {}
        self._kinds: dict[Key, Kind] = {}
        self._in_graph: Callable[[], bool] = _never
        """Whether launches go into a CUDA graph now."""
        self._warned = False
        self._gpu = ""
        self._started = perf_counter()
        self.launch = self._stand_in()

    def _stand_in(self) -> Callable[..., Any]:
        readers, kinds, original, step = self._readers, self._kinds, self.original, next

        def launch(stream: Any, grid: Any, kernel: Any, args: Any, /, **more: Any) -> Any:
            kind: Kind | None
            try:
                kind = kinds[readers[id(kernel)](grid, args)]
                number = step(kind.ticks)
            except Exception:
                kind, number = self._found(kernel, grid, args)
            if kind is None:
                return original(stream, grid, kernel, args, **more)
            try:
                if number < kind.next and not self._in_graph():
                    return original(stream, grid, kernel, args, **more)
                return self._timed(kind, number, stream, grid, kernel, args, more)
            except BaseException as error:
                self._failed(kind, error)
                raise

        launch.__doc__ = original.__doc__
        return launch

    def _timed(
        self, kind: Kind, number: int, stream: Any, grid: Any, kernel: Any, args: Any, more: Any
    ) -> Any:
        if self._in_graph():
            with self._lock:
                kind.in_graph += 1
            return self.original(stream, grid, kernel, args, **more)
        kind.next = next_sample(number)
        return kind.sampled.call(lambda: self.original(stream, grid, kernel, args, **more), stream, number)

    def _failed(self, kind: Kind, error: BaseException) -> None:
        with self._lock:
            kind.failed += 1
            kind.error = kind.error or in_one_line(error)

    # A launch that is not known yet

    def _found(self, kernel: Any, grid: Any, args: Any) -> tuple[Kind | None, int]:
        """Its kind, described now if need be, and its number; no kind where it cannot be described."""
        try:
            with self._lock:
                kind = self._kind(kernel, grid, args)
            return kind, next(kind.ticks)
        except Exception as error:
            self._say_once(f"a launch is not recorded: {in_one_line(error)}")
            return None, 0

    def _kind(self, kernel: Any, grid: Any, args: Any) -> Kind:
        known = self._known(kernel, args)
        key = known.reader(tuple(grid), args)
        kind = self._kinds.get(key)
        if kind is None and len(known.kinds) >= KINDS:
            kind = known.kinds[-1]
            kind.others += 1
        elif kind is None:
            kind = self._kinds[key] = self._new(kernel, grid, args)
            known.kinds.append(kind)
        return kind

    def _new(self, kernel: Any, grid: Any, args: Any) -> Kind:
        torch = sys.modules.get("torch")
        if not self._gpu and torch is not None and torch.cuda.is_initialized():
            self._gpu = str(torch.cuda.get_device_name())
            self._in_graph = torch.cuda.is_current_stream_capturing
        launch = described(kernel, grid, args)
        return Kind(launch, {} if self._in_graph() else self._data.kept(launch, args))

    def _known(self, kernel: Any, args: Any) -> _Kernel:
        """The function and hints of a kernel object, with a reader that fits the types of these arguments."""
        from tilewright.languages.cutile_private import parameter_annotations

        name = (id(kernel._pyfunc), repr(kernel._compiler_options))
        known = self._kernels.get(name)
        if known is None:
            constants = tuple(one.constant for one in parameter_annotations(kernel))
            known = self._kernels[name] = _Kernel(len(self._kernels), kernel._pyfunc, constants)
        types = tuple(map(type, args))
        if known.types != types:
            make = _reader if known.types is None else _careful_reader
            known.types, known.reader = types, make(known.number, args, known.constants)
            self._readers.update({id(one): known.reader for one in known.objects})
        if len(known.objects) < OBJECTS and all(one is not kernel for one in known.objects):
            known.objects.append(kernel)
            self._readers[id(kernel)] = known.reader
        return known

    # What was recorded

    def recorded(self, finished: bool = False) -> Part:
        """``finished``: waits for the samples that the GPU has not done."""
        kinds = list(self._kinds.values())
        if finished:
            for kind in kinds:
                kind.sampled.read_all()
        return Part(
            os.getpid(), tuple(getattr(sys, "orig_argv", sys.argv)), os.getcwd(), self._gpu,
            perf_counter() - self._started, finished, tuple(kind.recorded() for kind in kinds),
        )  # fmt: skip

    def write(self, finished: bool = False) -> None:
        """Into this process's part; what cannot be written is said once, and the program goes on."""
        try:
            with self._writing:
                if self._kinds or finished:
                    part = self.recorded(finished)
                    capture_record.write(capture_record.part_file(self.path, part.pid), part)
        except Exception as error:
            self._say_once(f"cannot write {self.path}: {in_one_line(error)}")

    def forget(self) -> None:
        """In a forked process: what the other process launched, and the locks that its threads held."""
        self._lock, self._writing = threading.RLock(), threading.RLock()
        self._kinds.clear()
        for known in self._kernels.values():
            known.kinds.clear()
        self._started = perf_counter()

    def _say_once(self, text: str) -> None:
        if not self._warned:
            self._warned = True
            print(f"tilewright: {text}", file=sys.stderr, flush=True)


@dataclass
class _Kernel:
    """One function with its hints, whatever objects of `ct.kernel` the program makes of it."""

    number: int
    function: Any
    """Kept, so that its id stays taken."""
    constants: tuple[bool, ...]
    """Of each parameter, whether it is a constant."""
    types: tuple[type, ...] | None = None
    reader: Reader = field(default=lambda grid, args: ())
    objects: list[Any] = field(default_factory=list)
    kinds: list[Kind] = field(default_factory=list)


def _reader(number: int, args: Sequence[Any], constants: Sequence[bool]) -> Reader:
    """A function of grid and arguments that gives the key of a launch of kernel ``number``, for arguments of these
    types: as `_careful_reader`, but written out, because a loop over them takes half as long again."""
    parts = []
    for place, (arg, constant) in enumerate(zip(args, constants, strict=True)):
        one = f"a[{place}]"
        if _is_tensor(arg):
            parts.append(f"({one}.shape, {one}.stride(), {one}.dtype, {one}.data_ptr() & {ALIGNMENT})")
        elif isinstance(arg, float) and not constant:
            parts.append(f"type({one})")
        else:
            parts.append(
                one if isinstance(arg, (int, float, str, type(None))) else f"part({one}, {constant})"
            )
    text = f"lambda grid, a: ({number}, grid, {''.join(f'{part}, ' for part in parts)})"
    return cast(Reader, eval(text, {"part": _part}))  # noqa: S307  (made of numbers alone)


def _careful_reader(number: int, args: Sequence[Any], constants: Sequence[bool]) -> Reader:
    """For a kernel that is launched on arguments of several types."""
    return lambda grid, args: (number, grid, *map(_part, args, constants))


def _part(value: Any, constant: bool) -> Any:
    """What of an argument tells kinds of launches apart."""
    if _is_tensor(value):
        return value.shape, value.stride(), value.dtype, value.data_ptr() & ALIGNMENT
    if isinstance(value, (list, tuple)):
        return (type(value), *(_part(one, constant) for one in value))
    if isinstance(value, float) and not constant:
        return type(value)
    if value is None or isinstance(value, (int, float, str)):
        return value
    found = array_of(value)
    if found is None:
        return type(value), repr(value)
    array, address = found
    return array.shape, array.strides, array.dtype, address & ALIGNMENT


def _is_tensor(value: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def _never() -> bool:
    return False
