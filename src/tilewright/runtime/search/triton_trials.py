"""Trials of an autotuned Triton kernel, on the tensors of the user's call.

Triton itself launches them, as the program does afterwards. Before each launch, the ``pre_hook`` of the configuration
runs, and then that of the autotuner, which sets the tensors of ``reset_to_zero`` to zero. The search restores written
arrays itself, so that of ``restore_value`` there is nothing left to do.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from tilewright.errors import RequestError, in_one_line
from tilewright.languages.triton.kernels import PASSED_BY_TRITON, heuristics_of, jit_function, without_descriptor
from tilewright.languages.triton.live import LIVE
from tilewright.records import Failed
from tilewright.runtime.arrays import CallValue, is_array
from tilewright.runtime.search.scratch import NoRoom, arrays_of, have_overlaps, keeping
from tilewright.runtime.search.trials import FailedTrial, SpecifiedTrial, Trial, array_spec, label
from tilewright.task.task import Launch
from tilewright.task.tensors import Descriptor

if TYPE_CHECKING:
    from triton import Config
    from triton.runtime.autotuner import Autotuner


@dataclass(frozen=True)
class AutotunedCall:
    """A call of an autotuner. ``args``, ``keywords``: as `Autotuner.run` gets them, with ``grid`` and ``warmup``."""

    autotuner: Autotuner
    args: tuple[Any, ...]
    keywords: Mapping[str, Any]

    @property
    def given(self) -> dict[str, Any]:
        """The arguments by name."""
        return {**dict(zip(self.autotuner.arg_names, self.args, strict=False)), **self.keywords}

    def trials(self, configs: Sequence[Config]) -> list[Trial | FailedTrial]:
        """Returns a trial for each configuration. Hooks run once each, because they may change the arguments. The
        arrays then get their contents back, unless a copy of them does not fit into memory."""
        with ExitStack() as stack:
            if any(map(self.has_hook, configs)):
                with suppress(NoRoom):
                    stack.enter_context(keeping(list(self.arrays().values())))
            return [self._trial(config) for config in configs]

    def has_hook(self, config: Config) -> bool:
        return config.pre_hook is not None or bool(self.autotuner.user_defined_pre_hook)

    def arrays(self) -> dict[str, Any]:
        named = {name: without_descriptor(value) for name, value in self.given.items()}
        return {name: value for name, value in named.items() if is_array(value)}

    def _trial(self, config: Config) -> Trial | FailedTrial:
        try:
            return _made(self, config)
        except RequestError as error:
            return FailedTrial("launch", str(error), label(config.all_kwargs()), TypeError)
        except Exception as error:  # the program's own code, for this configuration
            return FailedTrial("launch", in_one_line(error), label(config.all_kwargs()), type(error))

    def prepare(self, config: Config) -> None:
        """Runs the hooks that precede a launch."""
        given = {**self.given, **config.all_kwargs()}
        if config.pre_hook is not None:
            config.pre_hook(given)
        if self.autotuner.user_defined_pre_hook:
            self.autotuner.pre_hook(given)
        else:
            self.autotuner.pre_hook(given, reset_only=True)  # without a copy of `restore_value`

    def launch(self, config: Config) -> None:
        self.autotuner.fn.run(*self.args, **self.keywords, **config.all_kwargs())


@dataclass(frozen=True)
class TritonTrial(Trial):
    """A configuration of an autotuned kernel. ``kernel``: the `JITFunction`."""

    call: AutotunedCall
    names: tuple[str, ...]
    spec: tuple[CallValue, ...] = field(repr=False)
    hooked: frozenset[str]
    """The arrays that hooks change."""

    is_predicted = False
    raced_stack = 511
    """In the recorded races of Triton kernels, those with 512 bytes or more take at least 4.7 times as long as the
    fastest. None has fewer."""

    @property
    def changed_before(self) -> frozenset[str]:
        return self.hooked | frozenset(self.call.autotuner.reset_to_zero) & frozenset(self.names)

    def specified(self) -> SpecifiedTrial:
        launch, arrays = Launch(self.kernel, self.grid, self.spec), arrays_of(self.arguments(), self.names)
        names = frozenset(arrays)
        return SpecifiedTrial(self, LIVE, launch, launch, self.names, names, have_overlaps(arrays), self.hints)

    def failed(self, failure: Failed) -> FailedTrial:
        return FailedTrial(failure.stage, failure.reason, error=RuntimeError)

    def before(self) -> None:
        self.call.prepare(self.config)

    def launch(self, args: tuple[CallValue, ...]) -> None:
        self.call.launch(self.config)  # the arguments are always the caller's own


def _made(call: AutotunedCall, config: Config) -> TritonTrial:
    hooked: set[str] = set()
    if call.has_hook(config):  # it may set the block shape of a descriptor
        arrays = call.arrays()
        before = {name: _version(array) for name, array in arrays.items()}
        call.prepare(config)
        hooked = {name for name, array in arrays.items() if _version(array) != before[name]}
    function = jit_function(call.autotuner)
    given = {**call.given, **config.all_kwargs()}
    for name, heuristic in heuristics_of(call.autotuner).items():
        given[name] = heuristic(given)
    values = []
    for parameter in function.params:
        if parameter.name not in given and not parameter.has_default:
            raise RequestError(f"the launch passes no value for '{parameter.name}'")
        values.append(given.get(parameter.name, parameter.default))
    names = tuple(parameter.name for parameter in function.params)
    grid = given["grid"](dict(zip(names, values, strict=True))) if callable(given["grid"]) else given["grid"]
    options = {name: value for name, value in given.items() if name not in (*names, *PASSED_BY_TRITON)}
    arguments = tuple(map(without_descriptor, values))
    return TritonTrial(
        config, label(config.all_kwargs()), function, tuple(map(operator.index, grid)), lambda: arguments, options,
        call, names, tuple(_spec(value, name) for name, value in zip(names, values, strict=True)), frozenset(hooked),
    )  # fmt: skip


def _version(array: Any) -> object:
    """Returns torch's count of an array's changes. If torch does not count them, no two results are equal."""
    try:
        return array._version
    except (AttributeError, RuntimeError):  # torch raises for tensors of inference mode
        return object()


def _spec(value: Any, name: str) -> Any:
    if without_descriptor(value) is not value:
        if getattr(value, "round_f32_to_tf32", False):
            raise RequestError(f"the tensor descriptor '{name}' rounds to TF32, which is not supported")
        shape, strides = tuple(map(int, value.shape)), tuple(map(int, value.strides))
        base = replace(array_spec(value.base, name), shape=shape, strides_=strides)
        return Descriptor(base, list(value.block_shape), value.padding)
    if type(value) is tuple:
        return tuple(_spec(part, f"{name}[{at}]") for at, part in enumerate(value))
    return array_spec(value, name) if is_array(value) else value
