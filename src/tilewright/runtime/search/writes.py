"""Which arguments a kernel writes, read from its Tile IR: checks what the author declared as outputs."""

from __future__ import annotations

from tilewright.records import Configuration, Failed
from tilewright.runtime.search.trials import Trial


def written_by(trial: Trial, arch: str) -> frozenset[str] | None:
    """The kernel's parameters whose arrays a launch of ``trial`` stores to; None where that cannot be said."""
    from tilewright.languages import language_of
    from tilewright.runtime.search.building import specified
    from tilewright.tileir.analysis.touched import touched
    from tilewright.tileir.read.reader import read_bytecode

    one = specified(trial)
    if isinstance(one, Failed):
        return None
    language = language_of(one.launch.kernel)
    lowered = language.lower(one.launch, {}, Configuration(()), arch)
    if isinstance(lowered, Failed):
        return None
    found = touched(read_bytecode(lowered.code).entry(), language.arguments(one.launch)).written
    return frozenset(name.partition("[")[0] for name in found)
