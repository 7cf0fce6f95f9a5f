"""One launch of each trial: does it write what the shipped configuration writes?

A trial runs on the arguments that the caller's functions return for it. Before the launch, arrays that it only writes
are poisoned, so that elements that it leaves out show. Afterwards everything that it could have written is restored.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from tilewright.runtime.arrays import CallerArray, CallValue, LiveArray
from tilewright.runtime.search.building import Ready
from tilewright.runtime.search.comparing_outputs import Expected, difference
from tilewright.runtime.search.device import Device
from tilewright.runtime.search.scratch import NoRoom, arrays_of, keeping, overlapping, poison, tensor_of


@dataclass(frozen=True)
class BoundTrial:
    """A trial with the arguments of one call of the caller's function."""

    ready: Ready
    args: tuple[CallValue, ...]
    arrays: Mapping[str, CallerArray]

    @classmethod
    def of(cls, ready: Ready) -> BoundTrial:
        args = ready.trial.arguments()
        return cls(ready, args, arrays_of(args, ready.names))

    @property
    def written(self) -> list[str]:
        return [name for name in self.arrays if name in self.ready.touched.written]

    @property
    def read(self) -> frozenset[str]:
        """Also under another name: arrays may share memory."""
        return overlapping(self.arrays, self.ready.touched.read & self.arrays.keys())

    @property
    def in_place(self) -> list[str]:
        """Read and written: each launch reads what the one before it wrote."""
        read = self.read
        return [name for name in self.written if name in read]


class TrialRunner:
    """Launches trials and compares their outputs with those of the baseline. ``note``: about the baseline."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self.expected: dict[str, Expected] = {}
        self.baseline: Ready | None = None
        self.note = ""

    def take_baseline(self, ready: Ready) -> None:
        """The outputs of this trial are right from now on. It runs twice, because it may not be deterministic."""
        with self._run(ready, ()) as written:
            first = {name: _copy(array) for name, array in written.items()}
        expected = {}
        with self._run(ready, ()) as written:
            for name, array in written.items():
                expected[name] = Expected(name, first[name], difference(tensor_of(array), first[name]))
        differing = [name for name, output in expected.items() if output.itself.worst]
        if differing:
            worst = max(expected[name].itself.total for name in differing)
            self.note = (
                f"{ready.trial.label} is not deterministic: in two runs its {', '.join(differing)} differ by "
                f"{worst:.2g} of the norm, and others may differ by as much"
            )
        self.expected, self.baseline = expected, ready

    def wrong(self, ready: Ready) -> str | None:
        """Why the trial's outputs differ from those of the baseline; None if not. Raises what its launch raises."""
        with self._run(ready, self.expected) as written:
            if missing := [name for name in self.expected if name not in written]:
                return f"'{missing[0]}', which the shipped configuration writes, is none of its arguments"
            if more := [name for name in written if name not in self.expected]:
                return f"it writes '{more[0]}', which the shipped configuration does not"
            reasons = (self.expected[name].wrong(array) for name, array in written.items())
            return next((reason for reason in reasons if reason is not None), None)

    @contextmanager
    def _run(self, ready: Ready, also: Collection[str]) -> Iterator[dict[str, CallerArray]]:
        """Launches once. Inside, the arrays that it wrote can be read, and those in ``also``; then all are restored."""
        bound = BoundTrial.of(ready)
        written = {name: bound.arrays[name] for name in bound.arrays if name in {*bound.written, *also}}
        with keeping(list(written.values())):
            read = bound.read
            for name in written:
                if name not in read:
                    poison(written[name])
            self.device.run(ready.trial, bound.args)
            yield written


def _copy(array: CallerArray) -> LiveArray:
    import torch

    try:
        return tensor_of(array).clone(memory_format=torch.contiguous_format)
    except torch.OutOfMemoryError:
        raise NoRoom("a second copy of the written arrays does not fit into memory") from None
