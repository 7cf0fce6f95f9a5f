"""What TileGym's wrappers launch, asked of the wrappers themselves.

Nothing of a wrapper is written down here a second time. The public function runs on tensors without
data ("meta"), with the few calls that need a GPU answered from the board: `ct.launch` is recorded instead of
made, and `exhaustive_search` answers at once. So grid, arguments and hints are what this very source would
launch, also after it was edited; a change of configuration is real when the recorded launch shows it.

Which configuration TileGym's search takes on an H200 depends on its clock. `shipped.json` holds what it took
(written by `shipped.py`); without a record, the first of its list. A list that was edited since starts with
what the edit put there: a race led to it, and `confirm.py` runs the real search.
"""

from __future__ import annotations

import contextlib
import math
import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest import mock

import cuda.tile as ct
import torch
from torch.overrides import TorchFunctionMode

import tilewright as tw
from tilewright.hardware.architectures import Board, default_board
from tilewright.task.task import call_by_name
from tilewright.task.tensors import ArraySpec

HOPPER = "sm_90"
_PATCHED = threading.RLock()
"""The stand-ins replace names of torch and cuda.tile for the time of one call."""


@dataclass(frozen=True)
class Recorded:
    """What a wrapper passed to `ct.launch`, with a `View` (or a list of them) for each tensor."""

    kernel: Any
    grid: tuple[int, ...]
    args: tuple[Any, ...]
    constants: Mapping[str, Any]
    """The kernel's parameters that are not tensors, by name."""

    @property
    def hints(self) -> dict[str, int | None]:
        return tw.decorated_hints(self.kernel)

    def changed(self, grid: tuple[int, ...], constants: Mapping[str, Any]) -> Recorded:
        """The launch with another grid and other values of some of the constants."""
        parameters = self.kernel._pyfunc.__code__.co_varnames
        args = tuple(constants.get(name, arg) for name, arg in zip(parameters, self.args, strict=False))
        return replace(self, grid=grid, args=args, constants={**self.constants, **constants})

    def on(self, tensors: Mapping[str, Any]) -> tw.Launch:
        return tw.Launch(self.kernel, self.grid, tuple(_filled(arg, tensors) for arg in self.args))


@dataclass(frozen=True)
class View:
    """A tensor of the task by name, in the shape that the wrapper passes on; contiguous in both."""

    name: str
    shape: tuple[int, ...]

    def of(self, tensors: Mapping[str, Any]) -> Any:
        tensor = tensors[self.name]
        if tuple(tensor.shape) == self.shape:
            return tensor
        return replace(tensor, shape=self.shape) if isinstance(tensor, ArraySpec) else tensor.view(self.shape)


def _filled(arg: Any, tensors: Mapping[str, Any]) -> Any:
    if isinstance(arg, list):
        return [one.of(tensors) for one in arg]
    return arg.of(tensors) if isinstance(arg, View) else arg


class Operation:
    """One public operation of a TileGym module.

    call: ``ops``, inputs and dimensions by name → what the operation gives. ``ops`` has the implementations that
        the module registers, by the names of the public operations; or it is `tilegym.ops` itself.
    arrays: the task's names of the kernel's tensor arguments, in the kernel's order; a tuple for a list of them.
    kernel: the name of the kernel, where ``call`` launches several.
    listed: the name of the module's generator or tuple of configurations, where there is one.
    named: knob → the name of the module's constant that holds it.
    """

    def __init__(
        self,
        module: ModuleType,
        call: Callable[..., Any],
        arrays: Sequence[str | tuple[str, ...]],
        *,
        kernel: str | None = None,
        listed: str | None = None,
        named: Mapping[str, str] | None = None,
        recorded: Mapping[str, Any] | None = None,
    ) -> None:
        self.module, self.call, self.arrays = module, call, tuple(arrays)
        self.kernel, self.listed, self.named, self.recorded = kernel, listed, named or {}, recorded
        self.ops = _registered_by(module)
        self._launches: dict[Any, Recorded] = {}

    def launched(
        self,
        dims: Mapping[str, Any],
        arrays: Mapping[str, ArraySpec],
        board: Board,
        wanted: Mapping[str, Any] | None = None,
    ) -> Recorded:
        """What the wrapper launches; with ``wanted`` as if a configuration with these values led its list."""
        key = (tuple(sorted(dims.items())), board.arch, board.sms, tuple((wanted or {}).items()))
        if key not in self._launches:
            self._launches[key] = self._record(dims, arrays, board, wanted)
        return self._launches[key]

    def called(self, ops: Any, dims: Mapping[str, Any], inputs: Mapping[str, torch.Tensor]) -> Any:
        """The operation itself, by ``ops``, on these inputs."""
        return call_by_name(self.call, {**dims, **inputs, "ops": ops}, f"call of {self.module.__name__}")

    def candidates(self) -> list[dict[str, Any]]:
        """The module's list of configurations on Hopper."""
        if self.listed is None:
            return []
        with _stand_ins(default_board(HOPPER)):
            return [dict(vars(one)) for one in _values(getattr(self.module, self.listed))]

    def _record(
        self, dims: Mapping[str, Any], arrays: Mapping[str, ArraySpec], board: Board, wanted: Mapping[str, Any] | None
    ) -> Recorded:
        launches: list[tuple[Any, ...]] = []
        with _stand_ins(board), contextlib.ExitStack() as stack:
            stack.enter_context(mock.patch.object(ct, "launch", lambda *given: launches.append(given)))
            for module in {self.module, *_searching_modules()}:
                stack.enter_context(mock.patch.object(module, "exhaustive_search", self._found(wanted), create=True))
            if wanted is not None and self.listed is not None:
                leading = _led_by(getattr(self.module, self.listed), wanted)
                stack.enter_context(mock.patch.object(self.module, self.listed, leading))
            for knob, constant in self.named.items() if wanted is not None else ():
                stack.enter_context(mock.patch.object(self.module, constant, wanted[knob]))
            for name, held in vars(self.module).items():
                if "tune_cache" in name.lower() and isinstance(held, dict):
                    stack.enter_context(mock.patch.dict(held, clear=True))
            self.called(self.ops, dims, self._on_meta(arrays))
        named = [given for given in launches if self.kernel in (None, given[2]._pyfunc.__name__)]
        if not named:
            raise tw.TilewrightError(f"{self.module.__name__} launched no kernel {self.kernel or ''}")
        _, grid, kernel, args = named[0]
        return self._named(kernel, tuple(grid), args, arrays)

    def _on_meta(self, arrays: Mapping[str, ArraySpec]) -> dict[str, torch.Tensor]:
        return {
            name: torch.empty(one.shape, dtype=getattr(torch, one.dtype), device="meta") for name, one in arrays.items()
        }

    def _named(
        self, kernel: Any, grid: tuple[int, ...], args: Sequence[Any], arrays: Mapping[str, ArraySpec]
    ) -> Recorded:
        """The launch with the task's names for tensors."""
        names = iter(self.arrays)
        filled: list[Any] = []
        for arg in args:
            if isinstance(arg, torch.Tensor):
                filled.append(_view(kernel, arg, next(names), arrays))
            elif isinstance(arg, (list, tuple)):
                each = zip(arg, next(names), strict=True)
                filled.append([_view(kernel, one, name, arrays) for one, name in each])
            else:
                filled.append(arg)
        parameters = kernel._pyfunc.__code__.co_varnames[: len(args)]
        constants = {
            called: arg for called, arg in zip(parameters, filled, strict=True) if not isinstance(arg, (View, list))
        }
        return Recorded(kernel, grid, tuple(filled), constants)

    def _found(self, wanted: Mapping[str, Any] | None) -> Callable[..., Any]:
        """`exhaustive_search` as far as the wrappers use it, without a GPU."""

        def search(configurations: Sequence[Any], *_: Any, **__: Any) -> Any:
            listed = list(configurations)
            best = listed[0] if wanted is not None else listed[self._chosen([dict(vars(c)) for c in listed])]
            return SimpleNamespace(best=SimpleNamespace(config=best))

        return search

    def _chosen(self, listed: list[dict[str, Any]]) -> int:
        if self.recorded is None:
            return 0
        before = self.recorded["list"]
        edited = [place for place, one in enumerate(listed) if one not in before]
        if edited:
            return edited[0]
        return listed.index(self.recorded["pick"]) if self.recorded["pick"] in listed else 0


def _registered_by(module: ModuleType) -> SimpleNamespace:
    """The cuTile implementations that this very module, a copy perhaps, has registered."""
    from tilegym.backend import dispatcher

    registered = {name: by.get("cutile") for name, by in dispatcher._REGISTRY.items()}
    mine = {
        name: function
        for name, function in registered.items()
        if getattr(function, "__globals__", None) is vars(module)
    }
    return SimpleNamespace(**mine)


def _searching_modules() -> list[ModuleType]:
    """TileGym's modules that search: an operation may call another one."""
    loaded = [module for name, module in sys.modules.items() if name.startswith("tilegym.ops.cutile.")]
    return [module for module in loaded if hasattr(module, "exhaustive_search")]


def _view(kernel: Any, tensor: torch.Tensor, name: Any, arrays: Mapping[str, ArraySpec]) -> View:
    """The tensor by the task's name for it, which must have as many elements, and both no gaps."""
    declared = arrays[name]
    if tensor.numel() != math.prod(declared.shape) or not tensor.is_contiguous():
        raise tw.TilewrightError(
            f"{kernel._pyfunc.__name__}: tensor '{name}' is launched as {tuple(tensor.shape)} with strides "
            f"{tensor.stride()}, declared as {declared.shape}"
        )
    return View(name, tuple(tensor.shape))


def _values(listed: Any) -> list[Any]:
    """The entries of a tuple, or what a generator function yields for any argument."""
    if not callable(listed):
        return list(listed)
    wants = listed.__code__.co_argcount - len(listed.__defaults__ or ())
    return list(listed(*[128] * wants))


def _led_by(listed: Any, wanted: Mapping[str, Any]) -> Any:
    """The list with a configuration in front that differs from its first by ``wanted``."""

    def led(*args: Any, **kwargs: Any) -> list[Any]:
        entries = list(listed(*args, **kwargs) if callable(listed) else listed)
        first = vars(entries[0])
        changed = {**first, **{name: value for name, value in wanted.items() if name in first}}
        return [SimpleNamespace(**changed), *entries]

    return led if callable(listed) else tuple(led())


class _OnMeta(TorchFunctionMode):
    """Tensors that a wrapper makes have no data either, whatever device it names."""

    def __torch_function__(
        self, function: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        if kwargs.get("device") is not None:
            kwargs["device"] = "meta"
        return function(*args, **kwargs)


@contextlib.contextmanager
def _stand_ins(board: Board) -> Iterator[None]:
    properties = SimpleNamespace(multi_processor_count=board.sms, name=board.name)
    answers = {
        "get_device_capability": lambda *_: divmod(board.sm, 10),
        "get_device_properties": lambda *_: properties,
        "current_stream": lambda *_: None,
        "current_device": lambda: 0,
    }
    with _PATCHED, contextlib.ExitStack() as stack:
        for name, answer in answers.items():
            stack.enter_context(mock.patch.object(torch.cuda, name, answer))
        stack.enter_context(mock.patch.dict(os.environ))
        os.environ.pop("TILEGYM_DISABLE_AUTOTUNE", None)
        stack.enter_context(_OnMeta())
        yield
