"""Translates configurations of a Triton kernel for the same kernel in cuTile, and back.

Tile sizes get new names: BLOCK_SIZE_M becomes TILE_SIZE_M, and BLOCK_M becomes TILE_M. Other constants of the kernel
and ``num_ctas`` are kept: in both languages, one element of the grid is one cluster of ``num_ctas`` CTAs. (Triton
launches gridX * num_ctas CTAs; `ct.bid` in cuTile is the number of the cluster.) Other fields have no equivalent; see
`NO_CUTILE` and `NO_TRITON`. Each field of the input is in the output, or in `Transferred.dropped` with a reason.
Configurations that become equal are merged.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from tilewright.errors import RequestError, UnknownChoice
from tilewright.hardware.architectures import architecture
from tilewright.records import Configuration, Value
from tilewright.source.configurations import TRITON_ARGUMENTS, Written
from tilewright.source.values import Known, Unread
from tilewright.space import knobs
from tilewright.space.space import Space

Target: TypeAlias = Literal["cutile", "triton"]
TARGETS: tuple[Target, ...] = ("cutile", "triton")

_AMD = "an option of AMD's backend"
_WARP_GROUPS = "cuTile's compiler divides the warps between loading and computing itself"
NO_CUTILE: Mapping[str, str] = {
    "num_warps": "cuTile's compiler chooses the warps; num_worker_warps is not their total, so it is not derived",
    "num_stages": "cuTile's compiler pipelines itself; the nearest option is latency= of ct.load, in the kernel's code",
    "maxnreg": "cuTile has no limit on registers; occupancy= sets how many CTAs must fit on an SM",
    "pre_hook": "a function that runs before each launch; call it in args_fn or before the launch",
    "ir_override": "a file of Triton's own intermediate code",
    "num_consumer_groups": _WARP_GROUPS, "num_buffers_warp_spec": _WARP_GROUPS,
    "reg_dec_producer": _WARP_GROUPS, "reg_inc_consumer": _WARP_GROUPS, "warp_specialize": _WARP_GROUPS,
    "enable_warp_specialization": _WARP_GROUPS,
    "enable_persistent": "a cuTile kernel is persistent if its own code is",
    "waves_per_eu": _AMD, "matrix_instr_nonkdim": _AMD, "kpack": _AMD, "schedule_hint": _AMD,
}  # fmt: skip
"""The fields of Triton without an equivalent in cuTile, each with the reason."""
NO_TRITON: Mapping[str, str] = {
    "occupancy": "Triton has no such option; only its Tile IR backend takes it",
    "num_worker_warps": "not the total of warps, so num_warps is not derived from it",
    "opt_level": "an option of cuTile's compiler",
}
"""The fields of cuTile without an equivalent in Triton, each with the reason."""
_WITHOUT: Mapping[Target, Mapping[str, str]] = {"cutile": NO_CUTILE, "triton": NO_TRITON}
SUGGESTED: Mapping[Target, Mapping[str, tuple[int | None, ...]]] = {
    "cutile": {"num_worker_warps": (None, 4, 8), "occupancy": (None, 1, 2, 4)},
    "triton": {"num_warps": (4, 8), "num_stages": (2, 3, 4)},
}
"""Values to try for fields that were not transferred, by target. They are shown, but not added to configurations."""
FieldValue: TypeAlias = "Known | Callable[..., None]"
"""The value of a field. Triton's ``pre_hook`` is a function."""
Fields: TypeAlias = Sequence[tuple[str, FieldValue]]

SPELLED: Mapping[Target, str] = {"cutile": "cuTile", "triton": "Triton"}
_PREFIX: Mapping[Target, str] = {"cutile": "TILE", "triton": "BLOCK"}
_SHORT = {"BM": "TILE_M", "BN": "TILE_N", "BK": "TILE_K"}
_AXIS = re.compile(r"([XYZR])BLOCK")
_PLAIN = re.compile(r"GROUP(_SIZE)?(_[MN])?")


@dataclass(frozen=True)
class Dropped:
    """A field that was not transferred. If ``field`` is "", the whole configuration was not transferred."""

    configuration: int
    """The index of the configuration in the input."""
    field: str
    value: str
    reason: str


@dataclass(frozen=True)
class Transferred:
    """The result of `transfer`. ``origins[i]``: the indices of the input configurations that became
    ``configurations[i]``."""

    to: Target
    configurations: tuple[Configuration, ...]
    origins: tuple[tuple[int, ...], ...]
    renamed: Mapping[str, str]
    dropped: tuple[Dropped, ...]
    notes: tuple[str, ...]

    @property
    def back(self) -> dict[str, str]:
        """Maps each new name to the old name, for a transfer back to the first language."""
        used = self.values()
        return {new: old for old, new in self.renamed.items() if new in used}

    @property
    def suggested(self) -> Mapping[str, tuple[int | None, ...]]:
        return SUGGESTED[self.to]

    def space(self) -> Space:
        """Returns a space of cuTile with the configurations. The first configuration that has every field becomes the
        shipped configuration.

        Raises `RequestError` if no configuration has every field.
        """
        if self.to != "cutile":
            raise RequestError("a space is for cuTile; these configurations are for Triton")
        if not self.configurations:
            why = self.dropped[0].reason if self.dropped else "the input has none"
            raise RequestError(f"no configuration could be transferred: {why}")
        values = self.values()
        shipped = next((whole for whole in self.configurations if len(whole) == len(values)), None)
        if shipped is None:
            raise RequestError(f"no configuration has all of {', '.join(values)}; complete one of them")
        return Space(
            constants={name: listed for name, listed in values.items() if name not in knobs.hints()},
            hints={name: listed for name, listed in values.items() if name in knobs.hints()},
            shipped=shipped, only=self.configurations,
        )  # fmt: skip

    def values(self) -> dict[str, tuple[Value, ...]]:
        """Returns the distinct values of each field."""
        values: dict[str, dict[Value, None]] = {}
        for configuration in self.configurations:
            for name in configuration:
                values.setdefault(name, {})[configuration[name]] = None
        return {name: tuple(distinct) for name, distinct in values.items()}


def transfer(
    configs: Sequence[Any], *, to: str = "cutile", names: Mapping[str, str] | None = None, arch: str | None = None
) -> Transferred:
    """Translates configurations of the other language into the language ``to``.

    configs: ``triton.Config`` objects, mappings, `Written` from a file, or objects such as a ``SimpleNamespace``.
    names: the new names of parameters that should not get the usual name.
    arch: the architecture. Configurations with a ``num_ctas`` that this architecture does not allow are dropped.

    Raises `UnknownChoice` for an unknown target, architecture or parameter, and `RequestError` for two equal new names.
    """
    target = next((known for known in TARGETS if known == to), None)
    if target is None:
        raise UnknownChoice("target", to, TARGETS)
    number = architecture(arch).number if arch is not None else None
    given = [fields_of(config) for config in configs]
    renamed, notes = _renamed(target, given, names or {})
    work = _Transfer(target, renamed, number)
    for place, fields in enumerate(given):
        work.add(place, fields)
    merged, origins = work.merged()
    notes += _notes(merged, origins, work)
    changed = {old: new for old, new in renamed.items() if old != new}
    return Transferred(target, merged, origins, changed, tuple(work.dropped), tuple(notes))


def fields_of(config: Any) -> Fields:
    """Returns the fields of a configuration of either language, without options of Triton that are None."""
    if isinstance(config, Written):
        return config.fields
    if isinstance(config, Mapping):
        return tuple(config.items())
    if isinstance(getattr(config, "kwargs", None), Mapping):
        options = {name: getattr(config, name, None) for name in TRITON_ARGUMENTS[1:]} | vars(config)
        stated = ((n, v) for n, v in options.items() if n != "kwargs" and v is not None)
        return (*config.kwargs.items(), *stated)
    if hasattr(config, "__dict__"):
        return tuple(vars(config).items())
    raise RequestError(f"{config!r} is not a configuration; give triton.Config objects, mappings or namespaces")


@dataclass
class _Transfer:
    """Collects the configurations that are kept and the fields that are dropped."""

    to: Target
    renamed: Mapping[str, str]
    arch: int | None
    kept: list[tuple[int, dict[str, Value]]] = field(default_factory=list)
    dropped: list[Dropped] = field(default_factory=list)
    from_tile_ir: bool = False

    def add(self, place: int, fields: Fields) -> None:
        """Keeps the fields of a configuration that can be transferred, or drops the whole configuration.

        place: the index of the configuration in the input.
        """
        values: dict[str, Value] = {}
        lost: list[Dropped] = []
        reason = f"no field has an equivalent in {SPELLED[self.to]}"
        for name, value in fields:
            if problem := self._ending_problem(name, value):
                values, reason = {}, problem
                break
            if problem := self._field_problem(name, value):
                lost.append(Dropped(place, name, _text(value), problem))
                continue
            if (new := self.renamed[name]) in values:
                lost.append(Dropped(place, name, _text(values[new]), "given twice; the last one counts"))
            values[new] = _plain(value)
        if values:
            self.dropped.extend(lost)
            self.kept.append((place, values))
        else:
            shown = ", ".join(f"{name}={_text(value)}" for name, value in fields)
            self.dropped.append(Dropped(place, "", shown, reason))

    def merged(self) -> tuple[tuple[Configuration, ...], tuple[tuple[int, ...], ...]]:
        """Returns the distinct configurations in the order of the input, with sorted fields, and their origins."""
        order = list(dict.fromkeys(name for _, values in self.kept for name in values))
        hints = [name for name in order if name in knobs.hints()]
        order = [name for name in order if name not in hints] + hints
        origins: dict[Configuration, list[int]] = {}
        for place, values in self.kept:
            if self.to == "cutile":  # each configuration gets all hints; without num_ctas Triton uses one CTA
                values = {**dict.fromkeys(hints), **({"num_ctas": 1} if "num_ctas" in hints else {}), **values}
            whole = Configuration.of({name: values[name] for name in order if name in values})
            origins.setdefault(whole, []).append(place)
        return tuple(origins), tuple(map(tuple, origins.values()))

    def _ending_problem(self, name: str, value: FieldValue) -> str | None:
        """Returns why a field forces the whole configuration to be dropped; None or "" if the field does not."""
        if name in _WITHOUT[self.to]:
            return None
        if isinstance(value, Unread):
            return f"{name} is {value}, whose value is not known without running the file"
        if name in ("num_ctas", "occupancy"):
            problem = knobs.hint_problem(name, _plain(value))
            needs_arch = name == "num_ctas" and self.arch is not None and value is not None
            return problem or (knobs.cluster_problem(_plain(value), self.arch or 0) if needs_arch else None)
        problem = knobs.tile_problem(self.renamed[name], _plain(value))
        return problem and f"{name}: {problem}"

    def _field_problem(self, name: str, value: FieldValue) -> str:
        """Returns why a field cannot be transferred; "" if it can be transferred."""
        if name in (without := _WITHOUT[self.to]):
            return without[name]
        if name in ("num_ctas", "occupancy"):
            self.from_tile_ir |= name == "occupancy"
            unset = self.to == "triton" and value is None
            return "the compiler's choice; Triton takes 1 if nothing is set" if unset else ""
        if isinstance(value, float) and not math.isfinite(value):
            return "not a finite number"
        if self.to == "triton":
            return "" if isinstance(value, (int, float, str)) else "not a constant that Triton takes"
        return "" if isinstance(value, (int, float)) else "constants of cuTile are int, float and bool"


def _plain(value: FieldValue) -> Value:
    """Returns numbers, strings and None unchanged. Formats any other value as a string, which no knob accepts."""
    return value if value is None or isinstance(value, (int, float, str)) else _text(value)


def _renamed(to: Target, given: Sequence[Fields], names: Mapping[str, str]) -> tuple[dict[str, str], list[str]]:
    """Maps old names to new names. The new names are the same for all configurations. Also returns notes about the
    names."""
    every = [n for n in dict.fromkeys(name for fields in given for name, _ in fields) if n not in _WITHOUT[to]]
    for name in names:
        if name not in every:
            raise UnknownChoice("parameter", name, every)
    wanted = {name: names.get(name, _usual(name, to)) for name in every}
    staying = {name for name in every if wanted[name] == name}
    result, notes = {name: name for name in staying}, []
    for name, new in wanted.items():
        if name in staying:
            continue
        if new in result.values() and name in names:
            raise RequestError(f"'{name}' cannot be called '{new}', which is another parameter; choose another name")
        if new in result.values():
            notes.append(f"{name} keeps its name: {new} is another parameter")
            new = name
        result[name] = new
    for name in every:
        known = name in names or result[name] != name or _PLAIN.fullmatch(name) or name in knobs.hints()
        if not (known or knobs.is_tile(name)):
            notes.append(f"{name} is transferred under its own name")
    return {name: result[name] for name in every}, notes


def _usual(name: str, to: Target) -> str:
    """Returns the usual name in the language ``to``. For cuTile, BLOCK_M becomes TILE_M, and XBLOCK becomes TILE_X."""
    if name in knobs.hints():
        return name
    if to == "cutile":
        if name in _SHORT:
            return _SHORT[name]
        if axis := _AXIS.fullmatch(name):
            return f"TILE_{axis[1]}"
    old = _PREFIX["triton" if to == "cutile" else "cutile"]
    return _PREFIX[to] + name[len(old) :] if name.startswith(old) and knobs.is_tile(name) else name


def _notes(merged: Sequence[Configuration], origins: Sequence[Sequence[int]], work: _Transfer) -> Iterator[str]:
    before = sum(map(len, origins))
    if before > len(merged):
        yield f"{before} configurations became {len(merged)}: the others are equal to one of them"
    for name in sorted({name for whole in merged for name in whole if any(name not in other for other in merged)}):
        without = "in a space the others take the shipped value" if work.to == "cutile" else "Triton needs a default"
        yield f"not every configuration names {name}: {without}"
    if any(configuration.get("num_ctas") not in (None, 1) for configuration in merged):
        yield "num_ctas: in both languages one element of the grid is one cluster, so the grid stays as it is"
    if work.to == "cutile" and work.from_tile_ir:
        yield "occupancy is a hint of Triton's Tile IR backend and means the same in cuTile"


def _text(value: FieldValue) -> str:
    if callable(value):
        return str(getattr(value, "__name__", repr(value)))
    return value.text if isinstance(value, Unread) else repr(value)
