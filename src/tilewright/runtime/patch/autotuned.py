"""The question of a call of a kernel under `triton.autotune` (`answering`).

The key of the search has what Triton's own key has: the values of the arguments named in ``key``, and the dtypes of all
tensors. It also has the configurations that are left after pruning, the constants of the call, and the source of the
kernel, of its hooks and of its heuristics. It has no shapes that ``key`` does not name, because Triton does not search
again for another shape, either.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, TypeAlias

from triton import __version__ as VERSION

from tilewright.errors import RequestError
from tilewright.languages.triton.kernels import (
    PASSED_BY_TRITON,
    heuristics_of,
    is_triton,
    jit_function,
    without_descriptor,
)
from tilewright.languages.triton.versions import untested
from tilewright.records import Json
from tilewright.runtime.environment import Environment
from tilewright.runtime.key import flag_part
from tilewright.runtime.modes import Mode, mode, takes_first
from tilewright.runtime.patch import answering
from tilewright.runtime.patch.answering import Problem, Question
from tilewright.runtime.search.scratch import DeviceLost
from tilewright.runtime.search.trials import TrialOutcome, label
from tilewright.runtime.store.warn_once import warn_once
from tilewright.runtime.store.winners import Winner
from tilewright.source.digest import has_source, source_of

if TYPE_CHECKING:
    from triton import Config
    from triton.runtime.autotuner import Autotuner

    from tilewright.runtime.search.searching import SearchResult

FORMAT = 1
"""The format of the key. Increase it when the meaning of a part changes: winners of another format are not found."""
TIE_BAND = 0.005
"""Triton takes the fastest, so a tie must be closer than in other searches, where one configuration is in use today."""
NOT_TIMED = [math.inf] * 3
"""What Triton's own search returns for a configuration that does not work."""
Timings: TypeAlias = list[list[float]]
"""For each configuration the median and two quantiles of its time in ms, as `Autotuner._bench` returns them."""


def answer(
    autotuner: Autotuner, args: tuple[Any, ...], keywords: Mapping[str, Any], configs: Sequence[Config]
) -> Timings | None:
    """Returns the times of all configurations, of which the winner's is the shortest; None if Triton's own search has
    to find them."""
    now = mode(Mode.NOW)
    if now is Mode.OFF and not takes_first():
        return None
    if now is Mode.OFF or len(configs) == 1:
        return [NOT_TIMED for _ in configs]  # of equal times, Triton takes the first
    return answering.answer(AutotuneQuestion(autotuner, args, keywords, configs), now, Environment())


class AutotuneQuestion(Question[Timings | None]):
    """A call of an autotuned kernel with a new key."""

    owner = "Triton"
    raised = (DeviceLost,)

    def __init__(
        self, autotuner: Autotuner, args: tuple[Any, ...], keywords: Mapping[str, Any], configs: Sequence[Config]
    ) -> None:
        self.autotuner, self.args, self.keywords, self.configs = autotuner, args, keywords, configs
        self.kernel = str(getattr(autotuner.base_fn, "__name__", "the kernel"))

    def problem(self, environment: Environment) -> Problem:
        """Raises RequestError for an autotuner that Tilewright cannot search for."""
        self._refuse_unknown()
        labels = tuple(label(config.all_kwargs()) for config in self.configs)
        parts: dict[str, Json] = {
            "format": FORMAT,
            "search": "triton.autotune",
            "board": environment.board(_current_device()),
            "toolkit": f"triton {VERSION}",
            "source": source_of(jit_function(self.autotuner), *filter(has_source, self._functions())),
            **self._key(),
            "candidates": list(labels),
        }

        @cache
        def trials() -> Any:
            from tilewright.runtime.search.triton_trials import AutotunedCall

            return AutotunedCall(self.autotuner, self.args, self.keywords).trials(self.configs)

        return Problem(self.kernel, parts, labels, lambda index: self.configs[index].all_kwargs(), trials)

    def result(self, problem: Problem, winner: Winner) -> Timings:
        best = winner.index
        assert best is not None
        fastest = _ms(winner.outcomes[best])
        later = math.nextafter(fastest, math.inf)  # so that a configuration within the tie band does not win
        return [
            [fastest if index == best else max(_ms(outcome), later)] * 3
            for index, outcome in enumerate(winner.outcomes)
        ]

    def first(self) -> Timings:
        return [NOT_TIMED for _ in self.configs]

    def original(self) -> None:
        return None

    def searched(self, problem: Problem, environment: Environment) -> SearchResult:
        """Takes the first configuration as the reference. If most others differ from it, takes another one, because in
        Triton no configuration is known to be right. Raises RequestError if outputs tell nothing."""
        from tilewright.languages.triton.live import LIVE
        from tilewright.runtime.search.searching import NothingWorks

        def search(reference: int) -> SearchResult:
            found = environment.search(trials, stream=None, shipped=reference, launch_mode="graph", tie_band=TIE_BAND)
            if not found.comparable:
                raise RequestError(f"{self.kernel}: its outputs differ too much from run to run to be compared")
            return found

        LIVE.begin()
        trials = problem.trials()
        try:
            found = search(0)
            agree, differ = _agreement(found)
            if differ <= agree:
                return found
            other = search(_wrong(found.outcomes)[0])  # perhaps the first configuration is the wrong one
        except NothingWorks as nothing:
            raise RequestError(f"{self.kernel}: {nothing}") from nothing
        if _agreement(other)[0] > agree:
            return other
        if agree == 1 and differ > 1:
            raise RequestError(f"{self.kernel}: each configuration has other outputs, so none is known to be right")
        return found

    def tell(self, problem: Problem, search: SearchResult, result: Timings | None) -> None:
        left_out = [each for each in search.outcomes if each.status in ("failed", "wrong") and not _too_large(each)]
        said = []
        if left_out:
            one = next((each for each in left_out if each.status == "wrong"), left_out[0])
            said.append(f"{len(left_out)} of {len(search.outcomes)} configurations are left out, such as {one.label}: "
                        f"{'wrong output: ' * (one.status == 'wrong')}{one.reason}")  # fmt: skip
        if "not deterministic" in search.note:
            said.append(search.note)
        if said:
            warn_once(f"{self.kernel}: {'; '.join(said)}")

    def untimed(self, problem: Problem, search: SearchResult) -> Timings | None:
        raise RequestError(f"{self.kernel}: {search.note}")  # Triton's own search needs less memory

    def _refuse_unknown(self) -> None:
        """Raises RequestError if the trials cannot be made."""
        if caution := untested(VERSION):
            raise RequestError(caution.partition(";")[0])
        if not is_triton(self.autotuner) or jit_function(self.autotuner).is_gluon():
            raise RequestError(f"{self.kernel} is not compiled from a @triton.jit function")
        if self.autotuner.user_defined_post_hook:
            raise RequestError(f"{self.kernel} has a post_hook of its own")
        if any(config.ir_override for config in self.configs):
            raise RequestError(f"{self.kernel} has a configuration with ir_override")
        names = [name for name in self.keywords if any(name in config.kwargs for config in self.configs)]
        if names:
            raise RequestError(f"{self.kernel} gets '{names[0]}' from its caller and from its configurations")

    def _functions(self) -> Iterator[Callable[..., Any]]:
        """Yields the hooks and heuristics."""
        yield from dict.fromkeys(config.pre_hook for config in self.configs if config.pre_hook is not None)
        if self.autotuner.user_defined_pre_hook:
            yield self.autotuner.pre_hook
        yield from heuristics_of(self.autotuner).values()

    def _key(self) -> dict[str, Json]:
        named = {**dict(zip(self.autotuner.arg_names, self.args, strict=False)), **self.keywords}
        given = {name: value for name, value in named.items() if name in self.autotuner.arg_names}
        tensors = {name: without_descriptor(value) for name, value in given.items()}
        constants = [each.name for each in jit_function(self.autotuner).params if each.is_constexpr]
        return {
            "key": {name: _part(given[name]) for name in self.autotuner.keys if name in given},
            "dtypes": {name: str(value.dtype) for name, value in tensors.items() if hasattr(value, "dtype")},
            "constants": {name: _part(given[name]) for name in constants if name in given},
            "options": {name: _part(value) for name, value in named.items() if name not in (*given, *PASSED_BY_TRITON)},
            "reset_to_zero": list(self.autotuner.reset_to_zero),
        }


def _part(value: Any) -> Json:
    """Returns a value of Triton's key as data. A float counts by value, as in Triton's key, and a function by its
    source."""
    if type(value).__name__ == "constexpr":
        value = value.value
    if is_triton(value):
        return source_of(value)
    return repr(value) if isinstance(value, float) else flag_part(value)


def _current_device() -> int:
    torch = sys.modules.get("torch")
    return int(torch.cuda.current_device()) if torch is not None and torch.cuda.is_available() else 0


def _ms(outcome: Mapping[str, Any]) -> float:
    us = outcome.get("us") if outcome.get("status") in ("timed", "duplicate") else None
    return math.inf if us is None else us / 1e3


def _too_large(outcome: TrialOutcome) -> bool:
    """Returns whether a configuration needs more than the GPU has. Such are usual in lists, and Triton skips them."""
    return outcome.error is not None and outcome.error.__name__ == "OutOfResources"


def _wrong(outcomes: Sequence[TrialOutcome]) -> list[int]:
    return [index for index, outcome in enumerate(outcomes) if outcome.status == "wrong"]


def _agreement(search: SearchResult) -> tuple[int, int]:
    """Returns how many configurations have the outputs of the reference, with the reference, and how many others."""
    agree = sum(outcome.status in ("timed", "duplicate") for outcome in search.outcomes)
    return agree, len(_wrong(search.outcomes))
