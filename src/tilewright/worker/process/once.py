"""Runs one case once in a separate process, for a tool that watches a whole process, such as compute-sanitizer.

    python -m tilewright.worker.process.once REQUEST.json

The request is a `messages.RunOnce`. The allocation of every tensor ends with the tensor's last element. The tool
reports only addresses, so the addresses of the tensors are written to the request's ``addresses`` file before the
launch.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

os.environ.setdefault("PYTORCH_NO_CUDA_MEMORY_CACHING", "1")  # otherwise tensors share allocations

from tilewright.errors import NoGpu, TilewrightError
from tilewright.hardware.gpu import detect
from tilewright.task.loading import load_task
from tilewright.worker.messages import RunOnce, decode
from tilewright.worker.process.bound import BoundLaunch, Tensors, bound
from tilewright.worker.process.images import Images


def run(request: RunOnce) -> None:
    gpu = detect()
    if gpu is None:
        raise NoGpu("there is no GPU to run the case on")
    board = gpu.board
    task, step = load_task(request.task), request.images

    def bind(tensors: Tensors) -> BoundLaunch:
        Path(request.addresses).write_text(json.dumps(places(tensors)))
        return bound(task, step.configuration, step.dims, board, tensors)

    Images().run(step, bind)


def places(tensors: Tensors) -> dict[str, tuple[int, int]]:
    """Returns the address of each tensor's first element, and the bytes from there to the end of its allocation."""
    return {
        name: (tensor.data_ptr(), tensor.untyped_storage().nbytes() - tensor.storage_offset() * tensor.itemsize)
        for name, tensor in tensors.items()
    }


def main() -> int:
    try:
        request = decode(Path(sys.argv[1]).read_text())
        assert isinstance(request, RunOnce)
        run(request)
    except TilewrightError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
