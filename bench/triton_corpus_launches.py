"""Runs the Triton launches of a library on the CPU: through TTIR and Tile IR, on the interpreter.

`Launches` takes the place of Triton's own launcher. The library's code runs as it is, on torch tensors in memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import torch
from triton.runtime.autotuner import Autotuner
from triton.runtime.jit import JITFunction

from tilewright.errors import ToolFailed
from tilewright.languages.tileir_from_triton.translate import Bytecode, translate
from tilewright.languages.tileir_from_triton.ttir import Untranslated
from tilewright.languages.triton import private
from tilewright.tileir.read.reader import read_bytecode
from tilewright.tileir.run.interpreter import run
from tilewright.tileir.run.memory import Memory

ARCH = 90
private._original = lambda value: value  # the tensors of a launch stay torch's
NUMPY = {torch.bfloat16: ml_dtypes.bfloat16}


class NotRun(Exception):
    """A launch could not be run. The kernel's row says why."""


@dataclass
class KernelRow:
    """What happened to one kernel."""

    file: str
    name: str
    launched: bool = False
    translated: bool = False
    reason: str = ""
    operation: str = ""
    """The operation of TTIR that is refused."""
    codes: list[Bytecode] = field(default_factory=list)
    compiled: list[str] = field(default_factory=list)
    findings: list[str] = field(default_factory=list)
    right: bool | None = None
    """None if no reference was reached."""


class Launches:
    """Runs launches and keeps a row for each kernel. ``current``: the kernels of the operation that runs now."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.rows: dict[tuple[str, str], KernelRow] = {}
        self.current: list[KernelRow] = []

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Inside, Triton's launches come here; an autotuner takes its first configuration."""
        plain, tuned = JITFunction.run, Autotuner.run

        Autotuner.run = first
        JITFunction.run = launching(self)
        try:
            yield
        finally:
            JITFunction.run, Autotuner.run = plain, tuned

    def row(self, kernel: Any) -> KernelRow:
        file = str(Path(kernel.fn.__code__.co_filename).relative_to(self.root))
        return self.rows.setdefault((file, kernel.fn.__name__), KernelRow(file, kernel.fn.__name__))

    def launch(self, kernel: Any, args: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        row = self.row(kernel)
        row.launched = True
        self.current.append(row)
        grid = keywords.pop("grid")
        keywords.pop("warmup", None)
        try:
            bound = private.bind(kernel, args, keywords, ARCH)
            _, text, _ = private.lower(kernel, bound, ARCH)
        except Exception as error:
            row.reason = row.reason or f"Triton's front end: {type(error).__name__}: {str(error)[:200]}"
            raise NotRun(row.reason) from error
        try:
            code = translate(text, f"sm_{ARCH}")
        except (Untranslated, ToolFailed) as error:
            row.reason, row.operation = str(error), getattr(error, "operation", "")
            raise NotRun(row.reason) from error
        row.translated = True
        if code.code not in [one.code for one in row.codes]:
            row.codes.append(code)
        blocks = grid(dict(bound.values)) if callable(grid) else grid
        memory, arguments = Memory(), []
        held: dict[int, int] = {}
        for name, kind in bound.types.items():
            if kind != "constexpr":
                arguments += passed(bound.values[name], memory, held)
        try:
            done = run(read_bytecode(code.code), arguments, tuple(int(size) for size in blocks), memory)
        except Exception as error:
            row.reason = f"the interpreter: {type(error).__name__}: {str(error)[:200]}"
            raise NotRun(row.reason) from error
        row.findings += [f"{one.kind}: {one.message}"[:200] for one in done.findings]


def launching(launches: Launches) -> Any:
    """The new `JITFunction.run`. Its parameters are those of triton's, which capture looks at."""

    def run(self: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> None:
        launches.launch(self, args, {"grid": grid, "warmup": warmup, **kwargs})

    return run


def first(self: Any, *args: Any, **keywords: Any) -> Any:
    """The new `Autotuner.run`. Its first parameter has the name of triton's, by which capture finds an autotuner."""
    self.best_config = None
    self.nargs = dict(zip(self.arg_names, args, strict=False))
    config = self.prune_configs(keywords)[0] if len(self.configs) > 1 else self.configs[0]
    self.best_config = config
    if config.pre_hook:
        config.pre_hook({**self.nargs, **keywords, **config.all_kwargs()})
    return self.fn.run(*args, **keywords, **config.all_kwargs())


def passed(value: Any, memory: Memory, held: dict[int, int]) -> list[Any]:
    """The arguments of the entry for one of the kernel: itself, its address, or the parts of a descriptor."""
    if isinstance(value, torch.Tensor):
        return [address_of(value, memory, held)]
    if hasattr(value, "block_shape"):
        return [address_of(value.base, memory, held), *value.shape, *value.strides]
    return [value]


def address_of(tensor: torch.Tensor, memory: Memory, held: dict[int, int]) -> int:
    """Tensors that share memory do so here, too."""
    storage = tensor.untyped_storage()
    if storage.data_ptr() not in held:
        whole = torch.empty(0, dtype=tensor.dtype).set_(storage)
        array = whole.view(torch.uint16).numpy() if tensor.dtype in NUMPY else whole.numpy()
        array = array.view(NUMPY[tensor.dtype]) if tensor.dtype in NUMPY else array
        held[storage.data_ptr()] = memory.allocate(f"t{len(held)}", np.atleast_1d(array)).address
    return held[storage.data_ptr()] + tensor.storage_offset() * tensor.element_size()
