"""Records each operation that torch runs, below autograd, and each call of the program that reads a tensor.

A dispatch mode sees every operation, also those of the backward pass. A function mode sees the calls of Python, such as
``loss.item()`` or ``x.to(device)``, which may run no operation on a CPU. On a GPU each operation is waited for, so its
time is that of its kernels, too. This makes the program slower, so a recorded run is never timed as a whole.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from time import perf_counter_ns
from types import FrameType
from typing import TYPE_CHECKING, Any

from tilewright.runtime.operations.places import ProgramPlaces, Stack
from tilewright.runtime.operations.values import SharedMemory, Value, Values
from tilewright.runtime.steps import guarded

if TYPE_CHECKING:
    from torch import Tensor

READS = ("item", "tolist", "numpy", "__bool__", "__float__", "__int__", "__index__", "__format__", "__array__")
"""Methods of a tensor whose result is on the host."""
RANDOM = ("rand", "normal", "bernoulli", "dropout", "multinomial", "uniform", "exponential", "random")
COPIES = ("tensor", "as_tensor")
"""Functions that copy values of the host, if a device is given."""
ENDS = ("backward", "grad")
"""Calls of a backward pass: `Tensor.backward` and `torch.autograd.grad`."""
NOTED = frozenset((*READS, *ENDS, "to", "cuda", "cpu"))
SIZED_BY_VALUES = ("nonzero", "masked_select", "_unique2", "unique_dim", "unique_consecutive", "repeat_interleave")
"""Operations whose result has a size that depends on values. The host waits for it."""
GRADIENTS, BACKWARD, NONDIFFERENTIABLE = 1, 2, 4
"""Flags of a recorded operation: it is recorded for a backward pass; it runs in one; it cannot be differentiated."""
RECORDING = "record an operation"
MOST_OPERATIONS = 300_000
"""After this many operations, the recording ends."""


@dataclass(frozen=True)
class OperationKind:
    """Facts about an operation, from its schema."""

    number: int
    random: bool
    written: tuple[int | str, ...]
    """The arguments that it writes to: positions or names."""
    views: bool
    sized: bool


@dataclass
class RecordingPart:
    """What ran between two marks of steps. Times are in µs. ``host``: stack → time in which no operation ran."""

    began: int
    rows: list[tuple[Any, ...]] = field(default_factory=list)
    events: list[tuple[Any, ...]] = field(default_factory=list)
    operations: int = 0
    own_ns: int = 0
    us: float = 0.0
    host: dict[Stack, float] = field(default_factory=dict)


class OperationRecorder:
    """The operations of one process."""

    def __init__(self, root: str) -> None:
        self.process, self.places, self.values = os.getpid(), ProgramPlaces(root), Values()
        self.names: list[str] = []
        self._kinds: dict[object, OperationKind] = {}
        self.parts: list[RecordingPart] = [RecordingPart(perf_counter_ns())]
        self.operations, self.busy, self.paused = 0, False, 0
        self.most = MOST_OPERATIONS
        """After this many operations, the following ones pass unrecorded."""
        self.on_full: Callable[[], None] = lambda: None
        self._modes: list[Any] = []
        self._depth = (0, 0)
        """The number of modes of torch, of each kind, when this recorder had begun."""
        self.on_backward: Callable[[], None] = lambda: None

    # Beginning and end ------------------------------------------------------------------------------

    def start(self) -> None:
        """Begins to record."""
        self._modes = list(_modes(self))
        for mode in self._modes:
            mode.__enter__()
        self._depth = _depth()

    def rest(self) -> bool:
        """Pauses, unless the program uses modes of its own. Returns whether it does."""
        if _depth() != self._depth:
            return False
        self.pause()
        return True

    def go_on_after_rest(self) -> bool:
        """Records again, unless the program now uses modes of its own. Returns whether it does."""
        if _depth() != tuple(each - 1 for each in self._depth):
            return False
        self.start()
        return True

    def is_whole(self) -> bool:
        """Returns whether all modes of this recorder are in place. Torch takes a mode off just before it calls it."""
        return not self._modes or all(now >= then for now, then in zip(_depth(), self._depth, strict=True))

    def stop(self) -> None:
        """Ends the recording."""
        self.pause()
        self._end_part()

    def mark(self) -> None:
        """Begins a new part."""
        self._end_part()
        self.parts.append(RecordingPart(perf_counter_ns()))

    def pause(self) -> None:
        """Records nothing from here on. The program runs at its own speed."""
        for mode in reversed(self._modes):
            mode.__exit__(None, None, None)
        self._modes = []

    def go_on(self) -> None:
        """Records again, in a new part."""
        self.mark()
        self.start()

    def note(self, kind: str, name: str, frame: FrameType | None) -> None:
        """Notes an event at a frame of the program."""
        self._event(kind, name, self.places.number(self.places.key(frame)), [], False)

    def _end_part(self) -> None:
        part = self.parts[-1]
        part.us = (perf_counter_ns() - part.began - part.own_ns) / 1e3

    @property
    def passes(self) -> bool:
        """Whether calls are to be passed on unrecorded."""
        return self.busy or self.paused > 0 or self.operations >= self.most or os.getpid() != self.process

    # Operations -------------------------------------------------------------------------------------

    def dispatched(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Runs an operation, and records it."""
        if self.passes or str(func).startswith("profiler."):
            return func(*args, **kwargs)
        began = perf_counter_ns()
        self.busy = True
        try:
            call = _Call(args, kwargs)
            kind = self._kinds.get(func) or self._kind(func)
            guarded(lambda: self._before(kind, call), RECORDING)
            start = perf_counter_ns()
            result = func(*args, **kwargs)
            _wait_for(result)
            us = (perf_counter_ns() - start) / 1e3
            frame = sys._getframe(2)
            guarded(lambda: self._after(kind, call, result, us, frame), RECORDING)
        finally:
            self.busy = False
        self.parts[-1].own_ns += perf_counter_ns() - began - int(1e3 * us)
        return result

    def _before(self, kind: OperationKind, call: _Call) -> None:
        """Notes the inputs, as they are before the operation writes to them."""
        call.number = hash((kind.number, self._signed(call.args, call), self._signed(call.kwargs, call)))
        if kind.random:
            call.number = self.values.fresh()
        call.ins = [each.index for each in call.inputs]
        call.ins += [each.memory.last for each in call.inputs if each.memory.last > each.index]

    def _after(self, kind: OperationKind, call: _Call, result: Any, us: float, frame: FrameType) -> None:
        """Notes the results, and adds the operation to the record."""
        import torch

        moved = any(each.moved for each in call.inputs) or _on_device(call.kwargs)
        outs = self._outs(kind, call, result, moved)
        backward = torch._C._current_graph_task_id() != -1
        flags = (GRADIENTS if call.grads and torch.is_grad_enabled() and not backward else 0) | BACKWARD * backward
        stack = self.places.number(self.places.key(frame))
        part = self.parts[-1]
        part.rows.append((stack, kind.number, flags, call.ins, outs, call.number, round(us, 1)))
        part.operations += 1
        self.operations += 1
        if self.operations == self.most:
            self.on_full()
        if kind.sized:
            part.events.append((len(part.rows), "sized", self.names[kind.number], stack, call.ins[:1], moved))

    def _outs(self, kind: OperationKind, call: _Call, result: Any, moved: bool) -> list[int]:
        """Gives the written tensors and the results their new values. Returns the indices of these."""
        outs = []
        written = [t for each in kind.written for t in _tensors(_argument(call.args, call.kwargs, each))]
        for at, tensor in enumerate(written):
            value = self.values.of(tensor)
            value.memory.written = hash((value.memory.written, call.number, at))
            value.own, value.seen = hash((call.number, at, "written")), value.memory.written
            value.index = value.memory.last = self.values.index(tensor)
            value.moved |= moved
            outs.append(value.index)
        known = {id(each) for each in (*written, *(_tensors(call.args) if kind.views else ()))}
        memory = call.inputs[0].memory if kind.views and call.inputs else None
        for at, tensor in enumerate(_tensors(result)):
            if id(tensor) not in known:
                number = hash((call.number, at))
                outs.append(self.values.add(tensor, memory or SharedMemory(), number, moved).index)
        return outs

    def _signed(self, given: Any, call: _Call) -> Any:
        """Returns a hashable form of arguments, and collects the values of their tensors."""
        import torch

        if isinstance(given, torch.Tensor):
            value = self.values.of(given)
            call.inputs.append(value)
            call.grads |= given.requires_grad
            return value.number
        if isinstance(given, (tuple, list)):
            return tuple(self._signed(each, call) for each in given)
        if isinstance(given, dict):
            return tuple((name, self._signed(each, call)) for name, each in given.items())
        return given if isinstance(given, (int, float, str, bool, type(None))) else str(given)

    def _kind(self, func: Any) -> OperationKind:
        import torch

        name = str(func)
        arguments = getattr(getattr(func, "_schema", None), "arguments", ())
        written = tuple(
            each.name if each.kwarg_only else at
            for at, each in enumerate(arguments)
            if each.alias_info is not None and each.alias_info.is_write
        )
        views = any(each.alias_info is not None and not each.alias_info.is_write for each in arguments)
        seeded = torch.Tag.nondeterministic_seeded in getattr(func, "tags", ())
        plain = name.removeprefix("aten.").rpartition(".")[0] or name
        self.names.append(name.removeprefix("aten.").removesuffix(".default"))
        random = seeded or plain.startswith(RANDOM) or "empty" in plain
        kind = OperationKind(len(self.names) - 1, random, written, views, plain in SIZED_BY_VALUES)
        self._kinds[func] = kind
        return kind

    # Calls of Python --------------------------------------------------------------------------------

    def called(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Makes a call of torch's Python interface, and records it if it reads a tensor or moves one."""
        name = getattr(func, "__name__", "")
        if self.passes:
            return func(*args, **kwargs)
        if name not in NOTED:
            result = func(*args, **kwargs)
            if kwargs.get("device") is not None:
                self._on_device(result, name in COPIES)
            return result
        began = perf_counter_ns()
        tensor = next(_tensors(args), None)
        value = None if tensor is None else self.values.of(tensor)
        self.parts[-1].own_ns += perf_counter_ns() - began
        pinned = tensor is not None and name in ("to", "cuda") and tensor.device.type == "cpu" and tensor.is_pinned()
        result = func(*args, **kwargs)
        if value is not None:
            began = perf_counter_ns()
            self._noted(name, value, result, _names_device(args[1:], kwargs), pinned)
            self.parts[-1].own_ns += perf_counter_ns() - began
        if name in ENDS:
            self.on_backward()
        return result

    def _noted(self, name: str, value: Value, result: Any, named: bool, pinned: bool) -> None:
        stack = self.places.number(self.places.key(sys._getframe(3)))
        if name in ("to", "cuda"):
            if name == "cuda" or named:
                moved = self.values.of(result)
                copied = result.is_cuda and not value.moved
                how = ("pinned" if pinned else "pageable") if copied else name
                self._event("moved", how, stack, [value.index, moved.index], value.moved)
                moved.moved = True
        else:
            self._event("backward" if name in ENDS else "read", name, stack, [value.index], value.moved)

    def _on_device(self, result: Any, copied: bool) -> None:
        """Notes that the program names the device of a new tensor. ``copied``: whether its values are the host's."""
        for tensor in _tensors(result):
            value = self.values.of(tensor)
            if copied:
                stack = self.places.number(self.places.key(sys._getframe(3)))
                self._event("moved", "tensor", stack, [value.index, value.index], False)
            value.moved = True

    def _event(self, kind: str, name: str, stack: int, ins: list[int], moved: bool) -> None:
        part = self.parts[-1]
        part.events.append((len(part.rows), kind, name, stack, ins, moved))


@dataclass
class _Call:
    """One call of an operation. ``number``: equal for calls that compute the same."""

    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    inputs: list[Value] = field(default_factory=list)
    ins: list[int] = field(default_factory=list)
    grads: bool = False
    number: int = 0


def _wait_for(result: Any) -> None:
    """Waits for an operation on a GPU. While a CUDA graph is captured, nothing can be waited for."""
    import torch

    first = next(_tensors(result), None)
    if first is not None and first.is_cuda and not torch.cuda.is_current_stream_capturing():
        torch.cuda.synchronize()


def _tensors(given: Any) -> Iterator[Tensor]:
    import torch

    if isinstance(given, torch.Tensor):
        yield given
    elif isinstance(given, (tuple, list)):
        for each in given:
            yield from _tensors(each)


def _argument(args: Sequence[Any], kwargs: Mapping[str, Any], which: int | str) -> Any:
    if isinstance(which, str):
        return kwargs.get(which)
    return args[which] if which < len(args) else None


def _on_device(kwargs: Mapping[str, Any]) -> bool:
    device = kwargs.get("device")
    return device is not None and getattr(device, "type", "cpu") != "cpu"


def _names_device(args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether the arguments of ``Tensor.to`` name a device."""
    import torch

    given = [*args[:1], kwargs.get("device"), kwargs.get("other")]
    return any(isinstance(each, (str, torch.device, torch.Tensor)) for each in given)


def inside(frame: FrameType | None) -> bool:
    """Returns whether a frame belongs to a call that torch makes to a recorder."""
    while frame is not None:
        if frame.f_code.co_name in ("__torch_dispatch__", "__torch_function__"):
            return True
        frame = frame.f_back
    return False


def _depth() -> tuple[int, int]:
    import torch

    return torch._C._len_torch_dispatch_stack(), torch._C._len_torch_function_stack()


def _modes(recorder: OperationRecorder) -> Iterator[Any]:
    from torch.overrides import TorchFunctionMode
    from torch.utils._python_dispatch import TorchDispatchMode

    class Operations(TorchDispatchMode):  # type: ignore[misc]
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return recorder.dispatched(func, args, kwargs or {})

    class Calls(TorchFunctionMode):  # type: ignore[misc]
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return recorder.called(func, args, kwargs or {})

    yield Operations()
    yield Calls()
