"""The base class of kernel languages. A language recognises, lowers and assembles kernels; other methods have defaults.

`lower` runs the language's front end in the parent process. `assemble` starts the compiler as a child process, often in
many threads at the same time. Only `runner` uses a GPU.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal, Protocol, TypeAlias

from tilewright.errors import MachineError
from tilewright.records import Built, Configuration, Failed, Value
from tilewright.space.knobs import Hint
from tilewright.task.task import Launch
from tilewright.task.tensors import ArraySpec

TILE_IR = b"\x7fTileIR\x00"
"""The first bytes of Tile IR bytecode."""
BARRIER = "a barrier of the block's threads"
"""The message of an assertion that marks a barrier. It occurs in Tile IR that replaces other code
(`Language.stand_in`)."""
Identity: TypeAlias = tuple[str, tuple[tuple[str, Value], ...], bytes]


def digest_of(code: bytes) -> bytes:
    """Returns the digest of lowered code that `Lowered.identity` compares."""
    return hashlib.sha256(code).digest()


def with_key(built: Built, key: str | None) -> Built:
    """Returns a cubin under the key of other code that compiles to it; under its own key if ``key`` is None."""
    return replace(built, cache_key=key or built.cache_key)


@dataclass(frozen=True)
class DescriptorParameter:
    """A tensor descriptor that the host makes. Its arguments are the tensor's address, extents and strides.

    The compiled entry gets a tensor map of 128 bytes, then the extents (int32) and the strides (int64). If the compiler
    replaced descriptors by pointers, the entry gets address, extents, strides and ``flags`` instead of the tensor map.
    """

    axes: int
    flags: tuple[bool, ...]
    """The first flag tells whether elements outside the tensor are NaN instead of 0."""


@dataclass(frozen=True)
class Lowered:
    """The compiler's input for one configuration, made by the front end."""

    configuration: Configuration
    arch: str
    symbol: str
    """Name of the kernel's entry point in the machine code."""
    code: bytes
    options: tuple[tuple[str, Value], ...] = ()
    """Options of the compiler, as pairs of name and value."""
    parameters: tuple[str | DescriptorParameter, ...] | None = None
    """The dtype of each parameter of the entry, ``pointer`` for an address. None: the dtypes are read from the Tile
    IR."""
    same_as: bytes = b""
    """Digest of other code that gives the same cubin; empty if no other code is known to."""
    cache_key: str | None = field(default=None, compare=False)
    """Key of the cubin in the language's own disk cache, if the front end knows it before the compilation."""

    @property
    def is_tile_ir(self) -> bool:
        return self.code.startswith(TILE_IR)

    @cached_property
    def identity(self) -> Identity:
        """A key of the code. Two `Lowered` with the same key give the same cubin, so only one of them is compiled."""
        return (self.arch, self.options, self.same_as or digest_of(self.code))


@dataclass(frozen=True)
class ListArgument:
    """A list of arrays as one argument of a kernel: the address of a table of 64-bit integers in memory.

    The launch fills the table before the kernel runs. An `ArraySpec` in a row is replaced by the array's address.
    """

    rows: tuple[tuple[int | ArraySpec, ...], ...]


Hints: TypeAlias = Mapping[str, Value]
"""Maps a compiler hint to its value. None lets the compiler choose."""
Argument: TypeAlias = int | float | ArraySpec | ListArgument
"""An argument of the compiled entry: a number, or an array or list, which is passed as its address."""


How: TypeAlias = Literal["reads", "writes", "updates"]
Place: TypeAlias = tuple[str, int]
"""A source line: the name of the file without its folder, and the line number."""


class Waits(Protocol):
    """Tells at which places the threads of a block wait for each other."""

    def between(self, first: tuple[How, Place], second: tuple[How, Place]) -> bool:
        """Returns whether all threads wait between an access of ``first`` and any later access of ``second``."""


class Language(ABC):
    """One kernel language. Its folder or entry point sets ``LANGUAGE`` to an instance.

    Every language must implement `recognises`, `lower` and `assemble`. `lower` and `assemble` return an error in one
    candidate as a `Failed` with a stage and one line, and raise `CompilerMissing` if the compiler is not installed.
    """

    name: str
    """The language's name in messages."""
    hints: tuple[Hint, ...] = ()
    """The compiler hints that a space may list for kernels of this language."""

    on_gpu_only = False
    """Whether kernels can run on a GPU only, so that nothing checks them on a machine without one."""
    launched_by_driver = False
    """Whether the worker launches the cubin through the CUDA driver. If not, it launches with `runner`."""

    @abstractmethod
    def recognises(self, kernel: Any) -> bool:
        """Returns whether a launch's kernel is written in this language."""

    @abstractmethod
    def lower(self, launch: Launch, hints: Hints, config: Configuration, arch: str) -> Lowered | Failed:
        """Runs the front end and returns the compiler's input.

        Without a GPU the launch's arrays are `ArraySpec`s. The code must be the same as for a launch on real arrays
        with these shapes, strides and alignment.
        """

    def tile_ir_of(self, launch: Launch, hints: Hints, config: Configuration, arch: str) -> Lowered | Failed:
        """Returns the launch as Tile IR bytecode, for the interpreter and for the count of work. Default: `Failed`."""
        return Failed("tool", f"the interpreter needs Tile IR, which language '{self.name}' does not produce")

    def stand_in(self, hints: Hints) -> str:
        """Returns, in words, how the code of `tile_ir_of` differs from the compiled code; "" if there is no difference.

        Default: "".
        """
        return ""

    def waits(self, lowered: Lowered) -> Waits | None:
        """Returns the places in the compiled code where the threads of a block wait. Default: None (unknown)."""
        return None

    @abstractmethod
    def assemble(self, lowered: Lowered, seconds: float) -> Built | Failed:
        """Compiles in a child process within ``seconds`` of processor time. Returns a crash or a time-out as a
        `Failed`."""

    def kernel_name(self, kernel: Any) -> str:
        """Returns the start of the compiled kernel's name, which is the same for all architectures and
        configurations."""
        return str(getattr(kernel, "__name__", ""))

    def entry_name(self, launch: Launch, hints: Hints, config: Configuration, arch: str) -> str:
        """Returns the exact name of the compiled entry of a launch, whose arrays may be on a device.

        Default: lowers the launch to find the name.
        """
        lowered = self.lower(launch, hints, config, arch)
        return lowered.symbol if isinstance(lowered, Lowered) else ""

    def arguments(self, launch: Launch) -> tuple[Argument, ...]:
        """Returns the arguments of the compiled entry. Default: the launch's arguments."""
        return launch.args

    def decorated_hints(self, kernel: Any, arch: str) -> Hints:
        """Returns the compiler hints of the kernel's decorator. Default: none."""
        return {}

    def touched(self, lowered: Lowered, arguments: Sequence[Argument]) -> tuple[frozenset[str], frozenset[str]] | None:
        """Returns the names of the arrays that code other than Tile IR reads, and of those that it writes.

        arguments: the result of `arguments`. Default: None (unknown).
        """
        return None

    def constant_parameters(self, kernel: Any) -> tuple[bool, ...]:
        """Returns, for each parameter, whether it is a constant of the compiled code. Default: empty (unknown)."""
        return ()

    def cache_key(self, lowered: Lowered) -> str | None:
        """Returns the key of the code in the language's own disk cache; None if it is not known before compiling."""
        return lowered.cache_key

    def remember(self, built: Sequence[Built]) -> int:
        """Stores cubins where the language's own launch finds them, in this process and in others. Returns the number
        stored. Default: stores none."""
        return 0

    def ignored(self, hints: Hints) -> Mapping[str, str]:
        """Returns the hints whose values have no effect, each with the reason, such as ``route=ptx``. Default: none."""
        return {}

    def found(self, lowered: Lowered) -> Built | None:
        """Returns the cubin that `remember` stored for this code. Default: None."""
        return None

    def runner(self, launch: Launch, hints: Hints) -> Callable[[int | None], None]:
        """Returns a function that launches once on the CUDA stream with the given handle.

        Default: raises MachineError. Kernels of such a language can be compiled, inspected and predicted, but not run.
        """
        raise MachineError(f"language '{self.name}' does not say how to launch a kernel: add a `runner` method to it")

    def expect(self, source: str) -> None:  # noqa: B027
        """Starts slow compiler processes early, if a task file with this ``source`` may need them.

        Returns at once. Default: does nothing.
        """

    def load_front_end(self) -> None:  # noqa: B027
        """Loads the modules that `lower` imports, so that forks of this process have them. Default: does nothing."""

    def toolkit(self) -> str:
        """Returns the versions of the language and its compilers, which change the speed of a configuration, such as
        ``triton 3.9.0``. Default: ""."""
        return ""

    def caution(self) -> str | None:
        """Returns a warning about this language on this machine in one line, or None. Default: None."""
        return None

    def keep_torch_out(self) -> None:  # noqa: B027
        """Loads the front end without torch, in a process that never launches. Default: does nothing."""
