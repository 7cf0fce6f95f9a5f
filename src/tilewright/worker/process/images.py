"""Launches on memory images, in the process that touches the GPU: for `verify.on_gpu` and `once`.

An image is a file of raw bytes with the dtype, shape, strides (elements) and offset (bytes) of the
tensor that lies in it. The bytes go to the device as they are and come back as they are: what they
should be is judged elsewhere, by a process that the candidate's code does not run in.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from tilewright.compile.compile import hints_of
from tilewright.errors import first_line
from tilewright.hardware.architectures import Board
from tilewright.languages import language_of
from tilewright.records import Configuration
from tilewright.task.task import Task
from tilewright.task.tensors import Dims, span
from tilewright.worker.messages import ImageFile, ImagesRan, RunImages
from tilewright.worker.process.clock import Runner

Tensors = Mapping[str, torch.Tensor]

ALIGNMENT = 256
"""Bytes. An offset counts from a multiple of this; torch's allocations start at one of 512."""
STEP = 5 * 4096
"""Bytes between the places that an image may take in its allocation; there are two."""
ROOM = 1 << 16
"""Bytes that an allocation is larger than what is first put there, e.g. for an image shifted by a few."""


@dataclass(frozen=True)
class BoundLaunch:
    """A function that launches once on a stream, and the kernel's name."""

    launch: Runner
    kernel: str


def bound(task: Task, config: Configuration, dims: Dims, board: Board, tensors: Tensors) -> BoundLaunch:
    """The launch of ``config`` on ``tensors``."""
    launch = task.launched(config, dims, tensors, board)
    language = language_of(launch.kernel)
    return BoundLaunch(language.runner(launch, hints_of(task, config)), language.kernel_name(launch.kernel))


class Images:
    """Device memory for images. It stays allocated, so that where an image lies is the caller's choice."""

    def __init__(self, device: str = "cuda") -> None:
        self.device = device
        self._held: dict[str, torch.Tensor] = {}
        self._canary = torch.zeros(1, device=device)

    def run(self, step: RunImages, bind: Callable[[Tensors], BoundLaunch]) -> ImagesRan:
        """Places the images, launches ``step.launches`` times, waits, and writes the bytes back to the files."""
        placed = {image.name: self._placed(image, step) for image in step.images}
        tensors = {name: tensor for name, (_, tensor) in placed.items()}
        for output, source in step.alias.items():
            tensors[output] = tensors[source]
        declared, touched = "", []  # type: tuple[str, list[str]]

        def launches() -> None:
            nonlocal declared
            bound_launch = bind(tensors)
            self._wait()
            declared = bound_launch.kernel
            touched.extend(self._touched(step, placed))
            stream = torch.cuda.current_stream().cuda_stream if self.device != "cpu" else None
            for _ in range(step.launches):
                bound_launch.launch(stream)
            self._wait()  # every launch's error is read

        kernels, why = None, "not asked for"  # type: tuple[list[str] | None, str]
        if step.profile:
            kernels, why = self._watched(launches)
        else:
            launches()
        if not step.exact:
            for image in step.images:
                placed[image.name][0].cpu().numpy().tofile(image.file)
        return ImagesRan(tuple(touched), None if kernels is None else tuple(kernels), why, declared)

    def _placed(self, image: ImageFile, step: RunImages) -> tuple[torch.Tensor, torch.Tensor]:
        """The image's bytes on the device, and the tensor in them."""
        raw, dtype = np.fromfile(image.file, np.uint8), getattr(torch, image.dtype)
        first = image.offset
        if step.exact:
            start = first // ALIGNMENT * ALIGNMENT
            raw = raw[start : first + span(image.shape, image.strides) * dtype.itemsize]
            first -= start
            room = base = torch.empty(raw.size, dtype=torch.uint8, device=self.device)
        else:
            base = self._allocation(image.name, raw.size + STEP)
            room = base[STEP * step.place :][: raw.size]
        if image.name not in step.fresh:
            room.copy_(torch.from_numpy(raw))
        element = (room.storage_offset() + first) // dtype.itemsize
        tensor = torch.empty(0, dtype=dtype, device=self.device)
        tensor.set_(base.untyped_storage(), element, image.shape, image.strides)
        return room, tensor

    def _allocation(self, name: str, nbytes: int) -> torch.Tensor:
        """Room for ``nbytes``, the same for whatever fits: it moves only to grow."""
        if name in self._held and self._held[name].numel() < nbytes:
            del self._held[name]  # first, so that the two need not fit side by side
        if name not in self._held:
            self._held[name] = torch.empty(nbytes + ROOM, dtype=torch.uint8, device=self.device)
        return self._held[name]

    def _touched(self, step: RunImages, placed: Mapping[str, tuple[torch.Tensor, torch.Tensor]]) -> list[str]:
        """The outputs that are not as they were uploaded: compared on the host, which starts no kernel."""
        files = {image.name: image.file for image in step.images}
        if step.exact:
            return []
        return [
            name
            for name in step.outputs
            for where in [step.alias.get(name, name)]
            if not np.array_equal(placed[where][0].cpu().numpy(), np.fromfile(files[where], np.uint8))
        ]

    def _wait(self) -> None:
        if self.device != "cpu":
            torch.cuda.synchronize()

    def _watched(self, work: Callable[[], None]) -> tuple[list[str] | None, str]:
        """The names of the kernels that the device ran during ``work``, in order; or None and why not.

        One kernel of our own runs last: if the profiler has not seen even that, it has seen nothing.
        """
        profiler, why = started_profiler()
        names: list[str] = []
        try:
            work()
            self._canary.add_(1)
            self._wait()
        finally:
            if profiler is not None:
                try:
                    profiler.stop()
                    names = kernel_names(profiler.events())
                    why = "" if names else "torch.profiler sees no kernels on this machine"
                except Exception as error:
                    why = f"torch.profiler: {first_line(str(error), type(error).__name__)}"
        return (names[:-1] if names else None), why


def started_profiler() -> tuple[Any, str]:
    """A profiler of the device's work that is running; or None and why not."""
    try:
        profiler = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA])
        profiler.start()
        return profiler, ""
    except Exception as error:  # whatever CUPTI has against this machine
        return None, f"torch.profiler does not start: {first_line(str(error), type(error).__name__)}"


def kernel_names(events: Any) -> list[str]:
    """Of a profile's events those that are kernels on the device, in the order in which they began."""
    on_device = [event for event in events or () if event.device_type == torch.autograd.DeviceType.CUDA]
    on_device.sort(key=lambda event: event.time_range.start)
    return [str(event.name) for event in on_device if not str(event.name).startswith(("Memcpy", "Memset"))]
