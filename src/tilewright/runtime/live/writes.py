"""Which arguments a kernel writes, read from its Tile IR: checks what the author declared as outputs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tilewright.records import Configuration, Failed
from tilewright.runtime.live.trials import Trial, array_spec, is_array


def written_by(trial: Trial, arch: str) -> frozenset[str] | None:
    """The kernel's parameters whose arrays a launch of ``trial`` stores to; None where that cannot be said."""
    from tilewright.languages.cutile import CuTile
    from tilewright.languages.cutile_private import python_function
    from tilewright.task import Launch
    from tilewright.tileir.reader import read_bytecode
    from tilewright.tileir.touched import touched

    language, code = CuTile(), python_function(trial.kernel).__code__
    arguments = tuple(
        _spec(value, name) for name, value in zip(code.co_varnames, trial.arguments(), strict=False)
    )
    launch = Launch(trial.kernel, trial.grid, arguments)
    lowered = language.lower(launch, {}, Configuration.of(_plain(trial.config)), arch)
    if isinstance(lowered, Failed):
        return None
    found = touched(read_bytecode(lowered.code).entry(), language.arguments(launch)).written
    return frozenset(name.partition("[")[0] for name in found)


def _plain(config: Any) -> Mapping[str, Any]:
    return config if isinstance(config, Mapping) else {}


def _spec(value: Any, name: str) -> Any:
    if isinstance(value, (list, tuple)):
        return [_spec(one, f"{name}[{place}]") for place, one in enumerate(value)]
    return array_spec(value, name) if is_array(value) else value
