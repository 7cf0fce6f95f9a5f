"""Outcomes that a resident process keeps in a file, so that they outlive it and the node on which it runs."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tilewright.hardware.machine import OtherMachine
from tilewright.remote.messages import StepEnded
from tilewright.worker.messages import decode, encode


@dataclass(frozen=True)
class KeptOutcome:
    """``client``: for which it was finished. ``key``: of the step and the inputs before it."""

    client: str
    key: str
    ended: StepEnded


class KeptFile:
    """One line of JSON for the run, and one for each outcome. What cannot be written is left out.

    path: the file; None: nothing is kept.
    """

    def __init__(self, path: Path | None) -> None:
        self.path = path

    def load(self, place: OtherMachine) -> tuple[int, tuple[KeptOutcome, ...]] | None:
        """Returns the run's seed and its outcomes; None if there are none from a GPU of the same model."""
        if self.path is None or not self.path.is_file():
            return None
        lines = [_parsed(line) for line in self.path.read_text(errors="replace").splitlines() if line.strip()]
        if not lines or lines[0].get("gpu") != _gpu(place) or not isinstance(seed := lines[0].get("seed"), int):
            return None
        found = []
        for each in lines[1:]:
            with suppress(ValueError, KeyError, TypeError):
                if isinstance(ended := decode(each["ended"]), StepEnded):
                    found.append(KeptOutcome(str(each["client"]), str(each["key"]), ended))
        return seed, tuple(found)

    def begin(self, place: OtherMachine, seed: int) -> None:
        if self.path is not None:
            with suppress(OSError):
                self.path.write_text(json.dumps({"seed": seed, "gpu": _gpu(place)}))

    def add(self, kept: KeptOutcome) -> None:
        if self.path is not None:
            line = json.dumps({"client": kept.client, "key": kept.key, "ended": encode(kept.ended)})
            with suppress(OSError), self.path.open("a") as file:
                file.write(f"\n{line}")  # a line that was cut off before does not spoil this one

    def remove(self) -> None:
        if self.path is not None:
            self.path.unlink(missing_ok=True)


def _gpu(place: OtherMachine) -> list[str | None]:
    return [place.gpu.name if place.gpu else None, place.driver]


def _parsed(line: str) -> dict[str, Any]:
    """Returns what a line says; nothing for one that was cut off."""
    try:
        said = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return said if isinstance(said, dict) else {}
