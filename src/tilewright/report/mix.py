"""The chart of a report that shows instructions by class, before and after, as SVG bars on one scale.

Workloads with the same machine code share their bars.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tilewright.machine_code.instruction_mix import CLASSES
from tilewright.report.evidence import OptimizeEvidence
from tilewright.report.markup import Markup, joined, tag
from tilewright.report.svg import LEFT, NARROW, RIGHT, Axis, drawing

MIX_COLOURS = 8
"""Classes with a colour of their own, the last for all others; the style sheet has as many."""
OTHERS = "everything else"
BAR, GAP = 20, 5
MOST_LETTERS = 60
"""Of a line above the bars."""
ORDER = (*(name for name, _ in CLASSES), "other")


def mix(report: OptimizeEvidence) -> Markup | None:
    """None where the instructions of one side are not known."""
    groups = mixes(report)
    classes = mix_classes(report)
    if not groups:
        return None
    longest = max(sum(counts.values()) for before, after, _ in groups for counts in (before, after))
    x = Axis(0, longest, LEFT, NARROW - RIGHT - 44)
    bars: list[Markup] = []
    top = 6.0
    for before, after, workloads in groups:
        bars.append(tag("text", _named(workloads, report), class_="axis", x=LEFT, y=top + 12))
        for name, counts in (("before", before), ("after", after)):
            top += BAR + GAP if name == "after" else BAR
            bars.append(_bar(name, counts, classes, x, top))
        top += BAR + 3 * GAP
    return drawing("instructions by class, before and after", (NARROW, top), bars)


def mixes(report: OptimizeEvidence) -> list[tuple[Mapping[str, int], Mapping[str, int], list[int]]]:
    """The mix before, the mix after, and the places of the workloads that have both."""
    groups: list[tuple[Mapping[str, int], Mapping[str, int], list[int]]] = []
    for n, change in enumerate(report.workloads):
        before, after = change.before.mix, change.after.mix
        alike = next((members for b, a, members in groups if (b, a) == (before, after)), None)
        if alike is not None:
            alike.append(n)
        elif before and after:
            groups.append((before, after, [n]))
    return groups


def in_order(*mixes: Mapping[str, int]) -> list[str]:
    """The classes of the mixes, in the order of `CLASSES`."""
    names = dict.fromkeys(name for mix in mixes for name in mix)
    return sorted(names, key=lambda name: ORDER.index(name) if name in ORDER else len(ORDER))


def mix_classes(report: OptimizeEvidence) -> list[str]:
    """The classes that have a colour of their own, in the order of `CLASSES`; `OTHERS` where some have none."""
    most: dict[str, int] = {}
    for before, after, _ in mixes(report):
        for counts in (before, after):
            for name, count in counts.items():
                most[name] = max(most.get(name, 0), count)
    known = in_order(most)
    if len(known) <= MIX_COLOURS:
        return known
    largest = set(sorted(known, key=lambda name: -most[name])[: MIX_COLOURS - 1])
    return [name for name in known if name in largest] + [OTHERS]


def _bar(name: str, counts: Mapping[str, int], classes: Sequence[str], x: Axis, top: float) -> Markup:
    total = sum(counts.values())
    shown = {kind: counts.get(kind, 0) for kind in classes if kind != OTHERS}
    if OTHERS in classes:
        shown[OTHERS] = total - sum(shown.values())
    pieces, done = [], 0
    for colour, (kind, count) in enumerate(shown.items()):
        if count:
            title = tag("title", f"{name}: {count} {kind} of {total} instructions")
            width = x(done + count) - x(done)
            pieces.append(tag("rect", title, class_=f"mix{colour}", x=x(done), y=top, width=width, height=BAR))
            done += count
    middle = top + BAR / 2 + 4
    return joined(
        tag("text", name, class_="tick", x=LEFT - 8, y=middle, text_anchor="end"),
        pieces,
        tag("text", f"{total:,}", class_="tick", x=x(total) + 6, y=middle),
    )


def _named(workloads: Sequence[int], report: OptimizeEvidence) -> str:
    """Their names, or where these are too long their numbers in the table of workloads."""
    names = ", ".join(report.workloads[n].workload for n in workloads)
    if len(names) <= MOST_LETTERS:
        return names
    return f"workload {', '.join(str(n + 1) for n in workloads)}"
