"""Ships the fastest of the best predicted configurations: tile sizes and compiler hints, raced in one iteration.

The entry first compiles about a hundred configurations and reads their machine code. It skips configurations that
spill, that take a slow tensor path, or whose machine code equals another's. Only a few are raced. On TileGym's kernels
and an H200 the change was kept in 6 of 20 tries (bench/recorded/h200-tilegym-2026-11-21.json). The entry comes first on
the untouched code: a structural change that is compared with badly chosen hints looks better than it is, and hides the
gain of the hints.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from tilewright.hardware.prediction_error import ChangeKind
from tilewright.playbook.analyses.best_predicted import best_predicted
from tilewright.playbook.analyses.configuration_sites import ConfigurationSite, current, places, read_changes
from tilewright.playbook.analyses.ragged_tiles import value_with_padding, written_with_padding
from tilewright.playbook.base import ANY_LANGUAGE, Effect, Entry, EntryDescription, KernelFacts, Site
from tilewright.records import Configuration, Value
from tilewright.source.syntax import Source
from tilewright.space import knobs

OFFERED = 16
REMEMBERED = 32  # results that are kept: optimize asks again after each iteration, mostly for the same text


class TuneSpace(Entry):
    about = EntryDescription(
        id="tune_space",
        name="tune the space",
        what="ships the configuration that races best among the best predicted: tile sizes and compiler hints",
        when="the shipped tiles or hints were chosen for another GPU, or not at all",
        when_not="the space was tuned on this GPU for these workloads: nothing is predicted better",
        priority={"memory": 3, "balanced": 2, "compute": 2},
        eases=("too few blocks", "last wave", "bytes in flight", "residency", "tile size", "spills"),
        order=40,
        first=True,
        language=ANY_LANGUAGE,
        effect=Effect.assumed(1.10, 1.50, kept=6, of=15),
    )

    def __init__(self) -> None:
        self._known: OrderedDict[tuple[object, ...], tuple[Configuration, ...]] = OrderedDict()

    def sites(self, source: Source, facts: KernelFacts) -> list[Site]:
        now = current(facts)

        def best(place: ConfigurationSite) -> tuple[Value, ...]:
            found = self._best(source, facts, place.constants)
            changes = ({name: config[name] for name in config if config[name] != now[name]} for config in found)
            return tuple(value_with_padding(place, change, source, facts) for change in changes)

        return [
            replace(place.site(f"configuration in {place.what}", ()), search=partial(best, place))
            for place in places(source, facts)
        ]

    def apply(self, source: Source, site: Site, value: Value) -> str:
        return written_with_padding(source, site, value)

    def kind(self, value: Value) -> ChangeKind:
        return "hints" if read_changes(str(value)).keys() <= set(knobs.hints()) else "tiles"

    def _best(self, source: Source, facts: KernelFacts, constants: Sequence[str]) -> tuple[Configuration, ...]:
        """Calls `best_predicted`, or returns its earlier result for the same arguments."""
        workloads = tuple(workload.name for workload in facts.workloads)
        key = (source.text, facts.task.name, facts.board.name, current(facts), workloads, tuple(constants))
        if key not in self._known:
            self._known[key] = best_predicted(facts, OFFERED, constants)
            while len(self._known) > REMEMBERED:
                self._known.popitem(last=False)
        self._known.move_to_end(key)
        return self._known[key]


ENTRY = TuneSpace()
