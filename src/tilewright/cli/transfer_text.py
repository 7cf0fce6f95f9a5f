"""The output of `tilewright transfer`: Python that can be pasted, with comments about what was dropped, and JSON."""

from __future__ import annotations

import re
from collections.abc import Iterator

from tilewright.errors import RequestError
from tilewright.printable import plural
from tilewright.records import Json
from tilewright.source.configurations import Listed
from tilewright.space.knobs import hints
from tilewright.transfer.triton import SPELLED, Dropped, Transferred

LONGEST = 110
"""The most characters in a line; longer comments wrap."""


def python(listed: Listed, done: Transferred) -> str:
    """Returns code: ``NAME_space = tw.Space(…)`` for cuTile, ``NAME_configs = [triton.Config(…), …]`` for Triton."""
    lines = [line for text in _remarks(listed, done) for line in _comment(text)]
    variable = re.sub(r"\W", "_", listed.name)
    if not done.configurations:
        return "\n".join(lines)
    written = _space if done.to == "cutile" else _configs
    return "\n".join([*lines, *written(variable, done)])


def to_json(listed: Listed, done: Transferred) -> dict[str, Json]:
    """Returns one element of the value of `transfer --json`; scripts rely on these names."""
    return {
        "name": listed.name, "line": listed.line, "to": done.to, "read": len(listed.configurations),
        "configurations": [
            {"values": dict(configuration), "lines": [*sorted({listed.configurations[i].line for i in origins})]}
            for configuration, origins in zip(done.configurations, done.origins, strict=True)
        ],
        "renamed": dict(done.renamed),
        "dropped": [
            {"line": listed.configurations[lost.configuration].line, "field": lost.field or None,
             "value": lost.value, "reason": lost.reason}
            for lost in done.dropped
        ],
        "notes": [*listed.notes, *done.notes],
        "suggested": {name: list(values) for name, values in done.suggested.items()},
    }  # fmt: skip


def _remarks(listed: Listed, done: Transferred) -> Iterator[str]:
    yield (
        f"{listed.name}, line {listed.line}: {plural(len(listed.configurations), 'configuration')} read, "
        f"{len(done.configurations)} for {SPELLED[done.to]}"
    )
    if done.renamed:
        yield "renamed: " + ", ".join(f"{old} → {new}" for old, new in done.renamed.items())
    grouped: dict[tuple[str, str], list[Dropped]] = {}
    for lost in done.dropped:
        grouped.setdefault((lost.field, lost.reason), []).append(lost)
    for (field, reason), same in grouped.items():
        values = ", ".join(dict.fromkeys(lost.value for lost in same))
        if field:
            yield f"dropped: {field} = {values} ({plural(len(same), 'configuration')}): {reason}"
        else:
            yield f"dropped whole: {plural(len(same), 'configuration')}, the first of them {same[0].value}: {reason}"
    yield from (*listed.notes, *done.notes)
    tried = "; ".join(f"{name} {', '.join(map(str, values))}" for name, values in done.suggested.items())
    yield f"also try these hints, which have no equivalent to transfer: {tried}"


def _comment(text: str) -> Iterator[str]:
    line = "#"
    for word in text.split():
        if len(line) + 1 + len(word) > LONGEST:
            yield line
            line = "#  "
        line += f" {word}"
    yield line


def _space(variable: str, done: Transferred) -> Iterator[str]:
    try:
        space = done.space()
    except RequestError as error:  # the configurations are then printed as a plain list
        yield from _comment(f"no space: {error}")
        yield f"{variable}_configurations = ["
        yield from (f"    {dict(point)!r}," for point in done.configurations)
        yield "]"
        return
    yield f"{variable}_space = tw.Space("
    yield f"    constants={dict(space.constants)!r},"
    if space.hints:
        yield f"    hints={dict(space.hints)!r},"
    yield f"    shipped={dict(space.shipped)!r},  # replace it by the configuration that you use today"
    yield "    only=["
    yield from (f"        {dict(point)!r}," for point in done.configurations)
    yield "    ],"
    yield ")"


def _configs(variable: str, done: Transferred) -> Iterator[str]:
    yield f"{variable}_configs = ["
    for point in done.configurations:  # the kernel's parameters go into one dictionary, the compiler's are keywords
        meta = {name: value for name, value in point.items() if name not in hints()}
        options = [f"{name}={value!r}" for name, value in point.items() if name in hints()]
        yield f"    triton.Config({', '.join([repr(meta), *options])}),"
    yield "]"
