"""Launches kernels on memory images on the device, for `verify.on_gpu` and `once`.

An image is a file of raw bytes that contains a tensor. The request has the tensor's dtype, shape, strides (elements)
and offset (bytes). The bytes are copied to the device and back. Another process judges the bytes, and the candidate's
code does not run there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import numpy as np
import torch

from tilewright.errors import first_line
from tilewright.task.tensors import span
from tilewright.worker.messages import ImageFile, ImagesRan, RunImages
from tilewright.worker.process.bound import ALIGNMENT, BoundLaunch, Tensors

if TYPE_CHECKING:
    from torch.autograd.profiler_util import EventList

STEP = 5 * 4096  # bytes between the two places that an image may take in its allocation
UPLOAD = "Memcpy HtoD"  # how the profiler names a copy from the host
ROOM = 1 << 16  # extra bytes of an allocation, e.g. for an image that is shifted by a few bytes


class Images:
    """Device memory for images. The memory stays allocated, so that a request can choose the addresses of an image."""

    def __init__(self, device: str = "cuda") -> None:
        self.device = device
        self._held: dict[str, torch.Tensor] = {}
        self._canary = torch.zeros(1, device=device)

    def run(self, step: RunImages, bind: Callable[[Tensors], BoundLaunch]) -> ImagesRan:
        """Copies the images to the device, launches ``step.launches`` times, and writes the bytes back to the files."""
        placed = {image.name: self._placed(image, step) for image in step.images}
        tensors = {name: tensor for name, (_, tensor) in placed.items()}
        for output, source in step.alias.items():
            tensors[output] = tensors[source]
        declared, tables, touched = "", 0, []  # type: tuple[str, int, list[str]]

        def launches() -> None:
            nonlocal declared, tables
            bound_launch = bind(tensors)
            self._wait()
            declared, tables = bound_launch.kernel, bound_launch.tables * step.launches
            touched.extend(self._touched(step, placed))
            stream = torch.cuda.current_stream().cuda_stream if self.device != "cpu" else None
            for _ in range(step.launches):
                bound_launch.launch(stream)
            self._wait()  # raises the error of any launch

        ran, why = None, "not asked for"  # type: tuple[list[str] | None, str]
        if step.profile:
            ran, why = self._watched(launches)
        else:
            launches()
        if not step.exact:
            for image in step.images:
                placed[image.name][0].cpu().numpy().tofile(image.file)
        kernels = None if ran is None else tuple(name for name in ran if not name.startswith(UPLOAD))
        uploads = 0 if ran is None or kernels is None else max(0, len(ran) - len(kernels) - tables)
        return ImagesRan(tuple(touched), kernels, why, declared, uploads)

    def _placed(self, image: ImageFile, step: RunImages) -> tuple[torch.Tensor, torch.Tensor]:
        """Copies the image to the device. Returns its bytes, and the tensor in them."""
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
        """Returns the allocation for a tensor. It is replaced only if it is smaller than ``nbytes``."""
        if name in self._held and self._held[name].numel() < nbytes:
            del self._held[name]  # before the new one is made, because memory may not suffice for both
        if name not in self._held:
            self._held[name] = torch.empty(nbytes + ROOM, dtype=torch.uint8, device=self.device)
        return self._held[name]

    def _touched(self, step: RunImages, placed: Mapping[str, tuple[torch.Tensor, torch.Tensor]]) -> list[str]:
        """Returns the names of the outputs that changed since they were uploaded.

        The comparison is on the host, because it must not start a kernel.
        """
        if step.exact:
            return []
        uploaded = {image.name: np.fromfile(image.file, np.uint8) for image in step.images}
        sources = {name: step.alias.get(name, name) for name in step.outputs}
        return [n for n, at in sources.items() if not np.array_equal(placed[at][0].cpu().numpy(), uploaded[at])]

    def _wait(self) -> None:
        if self.device != "cpu":
            torch.cuda.synchronize()

    def _watched(self, work: Callable[[], None]) -> tuple[list[str] | None, str]:
        """Returns the names of the kernels and uploads that the device ran during ``work``, in order.

        Returns None and the reason if the names are not known.

        A kernel of Tilewright runs last, to show whether the profiler works on this machine.
        """
        self._wait()  # for Tilewright's own uploads
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


def started_profiler() -> tuple[torch.profiler.profile | None, str]:
    """Starts a profiler of the device. Returns None and the reason if it does not start."""
    try:
        profiler = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA])
        profiler.start()
        return profiler, ""
    except Exception as error:  # CUPTI does not work on some machines
        return None, f"torch.profiler does not start: {first_line(str(error), type(error).__name__)}"


def kernel_names(events: EventList | None) -> list[str]:
    """Returns the names of the kernels and of the copies from the host in a profile, by start time."""
    on_device = [event for event in events or () if event.device_type == torch.autograd.DeviceType.CUDA]
    on_device.sort(key=lambda event: event.time_range.start)
    names = [str(event.name) for event in on_device]
    return [name for name in names if name.startswith(UPLOAD) or not name.startswith(("Memcpy", "Memset"))]
