"""One case of a check: a record, and its string form, which ``--case`` takes.

    M=100,N=33;data=large;layout=sliced;seed=17

The inputs, the memory and the runs depend only on this string, so equal strings give equal runs. The string omits
fields with default values.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from urllib.parse import quote, unquote

from tilewright.errors import RequestError, UnknownChoice
from tilewright.records import Value
from tilewright.task.task import Task
from tilewright.task.tensors import LAYOUTS
from tilewright.verify.data import KINDS
from tilewright.verify.images import ROW_MAJOR

RUNS: Mapping[str, str] = {
    "plain": "two runs, on differently poisoned memory and in another order of the blocks",
    "relaunched": "launched three times on the same buffers",
    "in place": "in place, as deployed",
    "addresses": "a dry run beyond 2³¹ elements: addresses without data",
    "own shape": "the workload's full size: every address of the grid, and the values that some blocks store",
    "caches": "new contents at the same addresses, the same contents at other addresses, one element changed",
}
"""Maps each way to run a case to its description."""
NOT_BY_THE_ENGINE = ("addresses", "own shape")
"""The ways of `RUNS` that only the interpreter can run, even if the engine is the GPU."""

FIELDS = ("data", "layout", "run", "seed")


@dataclass(frozen=True)
class Case:
    """One case of a check. ``str(case)`` is the string form of all fields except ``why``; `parse` reads this string."""

    dims: tuple[tuple[str, Value], ...]
    data: str = "declared"
    layout: str = ROW_MAJOR
    run: str = "plain"
    seed: int = 0
    why: str = ""
    """Origin of the sizes: a workload, ``edge``, ``many tiles``, ``hidden``, ``huge``, ``smaller``, ``asked for``."""

    @property
    def sizes(self) -> dict[str, Value]:
        return dict(self.dims)

    def __str__(self) -> str:
        parts = [",".join(f"{name}={_written(value)}" for name, value in self.dims)]
        defaults = Case(())
        for name in FIELDS:
            value = getattr(self, name)
            if value != getattr(defaults, name) or name == "seed":
                parts.append(f"{name}={str(value).replace(' ', '-')}")
        return ";".join(parts)

    @property
    def described(self) -> str:
        """Returns a description of the case for messages, in one line."""
        parts = [", ".join(f"{name}={value}" for name, value in self.dims), self.data]
        parts += [self.layout] * (self.layout != ROW_MAJOR) + [self.run] * (self.run != "plain")
        return " · ".join(parts)


def parse(text: str, task: Task) -> Case:
    """Reads a case from its string form. Dimensions that the string omits are taken from the first workload.

    Raises RequestError if the string cannot be read or contains an unknown name.
    """
    if not text.strip(" ,;"):
        raise _malformed(text)
    dims = dict(next(iter(task.workloads.values())))
    fields: dict[str, str] = {}
    for number, part in enumerate(text.split(";")):
        for name, value in (_pair(pair) for pair in part.split(",") if pair.strip()):
            if name in FIELDS and (number or name not in dims):
                fields[name] = value
            elif number:
                raise UnknownChoice("part of a case", name, FIELDS)
            elif name not in dims:
                raise UnknownChoice("dimension", name, dims)
            else:
                dims[name] = _read(value)
    seed = fields.get("seed", "0")
    if not re.fullmatch(r"\d+", seed):
        raise RequestError(f"--case: the seed '{seed}' is not a whole number from 0")
    known = {"data": tuple(KINDS), "layout": (ROW_MAJOR, *LAYOUTS), "run": tuple(RUNS)}
    chosen = {what: _chosen(what, fields.get(what, names[0]), names) for what, names in known.items()}
    return Case(tuple(dims.items()), **chosen, seed=int(seed), why="asked for")


def requested(
    task: Task, workloads: Sequence[str] | None, case: str | None, seed: int | None, quick: bool
) -> tuple[Case | None, int]:
    """Returns the case to check (None for all), and the seed: given, or else the case's, or else random.

    Raises RequestError for an unknown workload, and for a case with arguments that it names itself.
    """
    if case is not None and (quick or workloads or seed is not None):
        raise RequestError("--case names shape, data and seed itself; leave out --workload, --seed and --quick")
    task.selected(workloads)
    only = parse(case, task) if case is not None else None
    if only is not None and not task.promises(only.sizes):
        shape = ", ".join(f"{name}={extent}" for name, extent in only.dims)
        raise RequestError(f"--case: task '{task.name}' does not serve {shape}; choose a shape that it serves")
    if seed is None:
        seed = only.seed if only is not None else secrets.randbelow(1 << 16)
    return only, seed


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = (word.strip() for word in text.partition("="))
    if not equals or not name or not value:
        raise _malformed(text)
    return name, value


def _malformed(text: str) -> RequestError:
    form = "name=value; for example: M=100,N=33;data=large;seed=17"
    return RequestError(f"--case: '{text}' is not of the form {form}")


def _chosen(what: str, given: str, known: tuple[str, ...]) -> str:
    for name in known:
        if given in (name, name.replace(" ", "-")):
            return name
    raise UnknownChoice(what, given, [name.replace(" ", "-") for name in known])


def _written(value: Value) -> str:
    """Formats a dimension's value. A string is quoted if it looks like a number or contains a separator."""
    if isinstance(value, str):
        plain = re.fullmatch(r"[A-Za-z_][\w.-]*", value, re.ASCII) and _read(value) == value
        return value if plain else "'" + quote(value, safe="")
    return repr(value)


def _read(text: str) -> Value:
    if text.startswith("'"):
        return unquote(text[1:])
    if text == "None":
        return None
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    for number in (int, float):
        with suppress(ValueError):
            return number(text)
    return text


def shell_word(text: str) -> str:
    """Quotes a string as one word of a shell command."""
    return text if re.fullmatch(r"[\w@%+=:,./-]+", text) else "'" + text.replace("'", "'\\''") + "'"
