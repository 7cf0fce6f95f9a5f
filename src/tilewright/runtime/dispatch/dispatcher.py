"""`tilewright.Dispatcher`: calls a tuned task from a program, in any of its languages.

    softmax = tilewright.Dispatcher("several_languages.py", "configs/softmax.json")
    softmax(stream, x=x, out=out)

The first call with new shapes chooses a configuration by the config file's rule, compiles it, and keeps its program.
A steady call, with the same arrays as an earlier call, is one look-up and one call of the CUDA driver.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar

from tilewright.compile.compile import Unit
from tilewright.errors import MachineError, RequestError, TaskError, TilewrightError, ToolFailed
from tilewright.languages import language_of
from tilewright.languages.base import Identity
from tilewright.launching import cuda
from tilewright.launching.driver import ProgramLaunch
from tilewright.records import Built, Configuration, Failed, Json, Value, Workload
from tilewright.runtime.arrays import Stream, facts_of, handle_of
from tilewright.runtime.dispatch.calls import TaskCall, call_of
from tilewright.runtime.dispatch.parts import parts_of
from tilewright.runtime.environment import Environment
from tilewright.runtime.store.config_file import PREDICTED, load
from tilewright.runtime.store.warn_once import TuningWarning, warn_once
from tilewright.space.space import Space
from tilewright.task.loading import task_of
from tilewright.task.task import Launch, Task
from tilewright.worker.messages import Pointer, Program, Table
from tilewright.worker.programs import built_here

LAUNCHES, PROGRAMS = 1024, 256
"""The most launches and programs that a `Dispatcher` keeps. A further one replaces the one that was not used for the
longest time. A launch has a kilobyte, and a program the bytes of its cubin."""

K = TypeVar("K")
V = TypeVar("V")


@dataclass(frozen=True)
class DispatchChoice:
    """The configuration of a call. ``match``: the kind of the row that has it; ``shipped`` if no row fits."""

    config: Configuration
    match: Literal["exact", "nearest", "shipped"]
    why: str


class Dispatcher:
    """Launches a task in its tuned configuration when it is called with a stream and the task's tensors by name.

    task: a task, or ``FILE[:TASK]``.
    table: the file of ``tilewright tune FILE --into DIR``, or its content. Raises RequestError for another file.

    A call takes the CUDA stream (of torch, cuda.core or CuPy, or its handle; None is the default stream), the tensors
    on the GPU that is current, and as keywords the dimensions that no tensor's shape shows. It raises RequestError for
    arguments that do not fit the task. If a configuration cannot be built here, a shipped one is launched, with one
    warning. Several threads may call at the same time. A call whose arrays were used before can be captured in a CUDA
    graph. No array is kept.
    """

    def __init__(
        self, task: Task | str | os.PathLike[str], table: str | os.PathLike[str] | Mapping[str, Json],
        *, _environment: Environment | None = None,
    ) -> None:  # fmt: skip
        self.task = task_of(task)
        self.table = load(table if isinstance(table, Mapping) else os.fspath(table))
        if self.table.kernel != self.task.name:
            raise RequestError(
                f"{self.table.name} has the configurations of {self.table.kernel}, not of task '{self.task.name}'"
            )
        self._environment = _environment or Environment()
        self._launches = _Recent[Hashable, tuple[ProgramLaunch, int]](LAUNCHES)
        self._programs, self._cubins = _Recent[Hashable, Program](PROGRAMS), _Recent[Identity, Built](PROGRAMS)
        self._building, self._thread = threading.Lock(), threading.local()

    def __call__(self, stream: Stream = None, /, **given: object) -> None:
        key = tuple([(name, *_seen(value)) for name, value in given.items()])
        try:
            known = self._launches.get(key)
        except TypeError:  # an argument that cannot be a key: `call_of` says what is wrong with it
            known = None
        if known is None:
            known = self._launch(call_of(self.task, given))
            self._launches[key] = known
        launch, device = known
        if not getattr(self._thread, "has_context", False):
            self._make_current(device)
        launch(stream if type(stream) is int else handle_of(stream))

    def chosen(self, **given: object) -> DispatchChoice:
        """Returns the configuration for a call with these arguments, and the reason. Compiles and launches nothing."""
        return self._choice(call_of(self.task, given))

    def _choice(self, call: TaskCall) -> DispatchChoice:
        board = self._environment.hardware(call.device)
        task = self.task.on(board.arch)

        def allowed(config: Mapping[str, Value]) -> bool:
            return _declared(task.space, config, board.sm, call.dims) is not None

        row = self.table.find(parts_of(task, call.dims, call.arrays, board), allowed=allowed)
        if row is None:
            why = f"{self.table.name} has no row near this call on {board.name}"
            return DispatchChoice(task.space.shipped, "shipped", why)
        config = _declared(task.space, row.config, board.sm, call.dims)
        assert config is not None, "`find` returns only what is allowed"
        why = f"the nearest row, at distance {row.distance:.2g}" if row.match == "nearest" else "its row has all parts"
        differs = f"; another {' and '.join(row.differs)}" if row.differs else ""
        predicted = f"; {PREDICTED}" if row.label.endswith(PREDICTED) else ""
        return DispatchChoice(config, row.match, f"{why}{differs}{predicted}")

    def _launch(self, call: TaskCall) -> tuple[ProgramLaunch, int]:
        """Returns the launch of a new call. One thread builds at a time."""
        with self._building:
            program = self._program(call)
        self._make_current(call.device)
        if (current := cuda.current_device()) != call.device:
            raise RequestError(
                f"the arrays are on GPU {call.device}, but GPU {current} is current; "
                f"fix: with torch.cuda.device({call.device}): …"
            )
        addresses = {name: _Address(address) for name, address in call.addresses.items()}
        try:
            return ProgramLaunch(program, addresses, aligned=False), call.device
        except RuntimeError as error:
            raise MachineError(f"task '{self.task.name}': {error}") from None

    def _make_current(self, device: int) -> None:
        cuda.make_current(device)
        self._thread.has_context = True

    def _program(self, call: TaskCall) -> Program:
        """Returns the program of a call: of its configuration, or else of the first shipped one that can be built."""
        dims = tuple((name, type(value), value) for name, value in call.dims.items())
        key = (dims, tuple(call.arrays.items()), call.in_place, call.device)
        if (known := self._programs.get(key)) is not None:
            return known
        failed: dict[Configuration, TilewrightError] = {}
        shipped = self.task.on(self._environment.hardware(call.device).arch).space.every_shipped
        for config in dict.fromkeys((self._choice(call).config, *shipped)):
            built = self._built(call, config)
            if isinstance(built, Program):
                for other, error in failed.items():
                    text = f"task '{self.task.name}': {other} cannot be launched here ({error}); {config} runs"
                    warn_once(text, category=TuningWarning)
                self._programs[key] = built
                return built
            failed[config] = built
        reasons = "; ".join(f"{config}: {error}" for config, error in failed.items())
        kind = RequestError if all(isinstance(error, RequestError) for error in failed.values()) else MachineError
        raise kind(f"task '{self.task.name}': no configuration can be launched here: {reasons}")

    def _built(self, call: TaskCall, config: Configuration) -> Program | TilewrightError:
        """Returns the program of a configuration, or the reason why there is none."""
        unit = Unit(Workload("", call.dims), config, self._environment.hardware(call.device))
        try:
            built = built_here(self.task, unit, call.arrays, self._cubins)
        except TilewrightError as error:
            return error
        if isinstance(built, Failed):
            kind = ToolFailed if built.stage in ("tool", "machine code") else TaskError
            return kind(f"{built.stage}: {built.reason}")
        refused = _refused(*built, call)
        return RequestError(refused) if refused else built[0]


def _declared(
    space: Space, config: Mapping[str, Value], arch: int, dims: Mapping[str, Value]
) -> Configuration | None:  # fmt: skip
    """Returns the configuration of a row; None if the space does not have or allow it."""
    try:
        found = space.restored(config)
        if found is None or found in space.every_shipped:
            return found
        return found if space.allows(found, arch, dims) is None else None
    except TilewrightError:  # it names an implementation that the task no longer has
        return None


def _refused(program: Program, launch: Launch, call: TaskCall) -> str | None:
    """Returns the reason why a program cannot be launched by addresses alone; None if it can."""
    if any(isinstance(parameter, Table) for parameter in program.parameters):
        return "it takes a list of arrays, whose table in memory each launch would have to copy"
    zeros = [each for each in program.parameters if isinstance(each, Pointer) and each.zeros]
    if zeros or any(size for size, _ in program.facts.scratch):
        return "it needs scratch memory of its own for each launch"
    language = language_of(launch.kernel)
    if call.in_place and not language.launched_by_driver:
        return (
            f"'{call.in_place[0]}' shares memory, which code of {language.name} was not compiled for; fix: pass a copy"
        )
    return None


def _seen(value: object) -> tuple[Hashable, ...]:
    """Returns the facts of an argument by which a call is recognised: without its memory, which is not kept."""
    if hasattr(value, "data_ptr"):
        tensor: Any = value
        return tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype
    return facts_of(value) or (type(value), value)  # type: ignore[return-value]


@dataclass(frozen=True)
class _Address:
    address: int

    def data_ptr(self) -> int:
        return self.address


class _Recent(OrderedDict[K, V], Generic[K, V]):
    """A dictionary of the ``most`` entries that were used last. Several threads may use it."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self._most, self._lock = most, threading.Lock()

    def get(self, key: K) -> V | None:  # type: ignore[override]
        with self._lock:
            value = super().get(key)
            if value is not None:
                self.move_to_end(key)
            return value

    def __setitem__(self, key: K, value: V) -> None:
        with self._lock:
            super().__setitem__(key, value)
            if len(self) > self._most:
                self.popitem(last=False)
