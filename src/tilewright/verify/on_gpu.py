"""The engine that runs kernels on a GPU, in the worker process, because a kernel may crash its process.

The padded buffers (`images`) are passed as files. The worker gets no reference and no expected output; this process
judges the outputs. If a worker crashes or hangs, the result is a `Failed`, and the session starts another worker for
the next run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from tilewright.records import Configuration, Failed
from tilewright.task.loading import where_is
from tilewright.task.task import Task
from tilewright.task.tensors import Dims
from tilewright.tools.child import workplace
from tilewright.verify.engine import ONCE, Ran, RunOptions
from tilewright.verify.images import Image
from tilewright.worker.messages import ImageFile, RunImages
from tilewright.worker.session import Session

SILENCE_SECONDS = 60.0  # time limit of one run, which may have to compile the kernel
PLACES = (0, 0, 1, 1)
"""The set of addresses that each of four successive runs uses. Two runs use the same addresses, and the next two runs
use other addresses. So results that are cached by address are detected. `examining` relies on this order."""


class GpuEngine:
    """Runs one task on a GPU.

    session: the worker to use; None starts one.
    addresses: the index in `PLACES` of the first run.
    kernels_why: why the kernel names of the last run are not known.
    """

    name = "gpu"
    stand_in = ""

    def __init__(
        self, task: Task, session: Session | None = None, *, silence: float = SILENCE_SECONDS, addresses: int = 0
    ) -> None:
        self.task, self.silence = task, silence
        self.session = session or Session(where_is(task))
        self.kernels_why = ""
        self._own_session = session is None
        self._runs = addresses

    def run(
        self, configuration: Configuration, dims: Dims, images: Mapping[str, Image], options: RunOptions = ONCE
    ) -> Ran:
        """Implements `engine.Engine.run`. Ignores ``options.seed``, because the device orders the blocks.

        Ignores ``options.poison``, because the images already contain the poison.
        """
        place, self._runs = PLACES[self._runs % len(PLACES)], self._runs + 1
        with workplace() as directory:
            step = request_of(self.task, configuration, dims, images, options, Path(directory))
            outcome = self.session.run(replace(step, place=place, profile=True), silence=self.silence)
            if (answer := outcome.answer) is None:
                return Ran(failed=Failed("launch", outcome.reason))
            if reason := read_back(step, images):
                return Ran(failed=Failed("launch", reason))
        self.kernels_why = answer.kernels_why
        return Ran(
            kernels=answer.kernels, declared=answer.declared, touched_early=answer.touched_early, uploads=answer.uploads
        )

    def close(self) -> None:
        if self._own_session:
            self.session.close(wait=False)


def request_of(
    task: Task, configuration: Configuration, dims: Dims, images: Mapping[str, Image], options: RunOptions, folder: Path
) -> RunImages:
    """Returns the request for the worker, and writes the bytes of the images to files in ``folder``.

    An output that shares the memory of an input has no file.
    """
    described: list[ImageFile] = []
    for number, (name, image) in enumerate(images.items()):
        if name in options.alias:
            continue
        file = folder / f"{number}.raw"
        image.raw.tofile(file)
        described.append(ImageFile(name, image.dtype, image.shape, str(file), image.strides, image.offset))
    outputs = tuple(name for name in task.outputs if name in images or name in options.alias)
    return RunImages(configuration, dims, tuple(described), options.alias, outputs, options.launches)


def read_back(step: RunImages, images: Mapping[str, Image]) -> str:
    """Copies the files' bytes into the images. If bytes are missing, changes nothing and returns the reason."""
    read = {}
    for described in step.images:
        image, file = images[described.name], Path(described.file)
        raw = np.fromfile(file, np.uint8) if file.is_file() else np.empty(0, np.uint8)
        if raw.size != image.raw.size:
            return f"the worker process left {raw.size} bytes for '{described.name}', not {image.raw.size}"
        read[described.name] = raw
    for name, raw in read.items():
        images[name].raw[:] = raw
    return ""
