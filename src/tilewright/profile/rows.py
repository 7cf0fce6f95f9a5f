"""Makes tables with one row for each name: count, total time, and distribution of the single times."""

from __future__ import annotations

import numpy as np

from tilewright.profile.figures import NameRow
from tilewright.profile.kinds import KINDS
from tilewright.profile.sources import Sources
from tilewright.profile.trace import Events


def by_name(table: Events, sources: Sources, kinds: bool) -> tuple[NameRow, ...]:
    """Returns a row for each name, the longest total time first. ``kinds``: whether rows get the kind of the
    activity."""
    lasted = table.end - table.start
    whole = max(1, int(lasted.sum()))
    order = np.argsort(table.name, kind="stable")
    starts = np.flatnonzero(np.diff(table.name[order], prepend=-1))
    rows = []
    for group in np.split(order, starts[1:]) if len(order) else ():
        times = lasted[group]
        longest = int(group[np.argmax(times)])
        rows.append(
            NameRow(
                name=table.name_of(longest),
                count=len(group),
                total_us=int(times.sum()) / 1e3,
                mean_us=float(times.mean()) / 1e3,
                median_us=float(np.median(times)) / 1e3,
                min_us=int(times.min()) / 1e3,
                max_us=int(times.max()) / 1e3,
                share=int(times.sum()) / whole,
                kind=KINDS[table.kind[longest]] if kinds else None,
                lines=sources.cite(table.place(longest)),
            )
        )
    return tuple(sorted(rows, key=lambda row: (-row.total_us, row.name)))
