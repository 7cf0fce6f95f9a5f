"""A process that computes a task's trusted implementation: torch stays out of the process that checks.

`verify.trusted` is the other side. One step a line: dimensions, and inputs as files of
raw, row-major bytes; the outputs come back as such files, in the dtypes that the task declares.
"""

from __future__ import annotations

import signal
import sys
from typing import IO

import numpy as np
import torch

from tilewright.errors import TaskError, TilewrightError, first_line, in_one_line
from tilewright.task.loading import load_task
from tilewright.task.task import Task, call_by_name
from tilewright.worker import messages as ask
from tilewright.worker.messages import private_stdout, receive, send


def outputs(task: Task, step: ask.ComputeTrusted) -> ask.TrustedWritten:
    """The files of the trusted outputs, named after the outputs.

    Raises TaskError where the implementation returns something else than the declared tensors.
    """
    assert task.trusted is not None
    what = f"trusted of task '{task.name}'"
    inputs = {tensor.name: read(tensor).to(step.device) for tensor in step.inputs}
    with torch.no_grad():
        result = call_by_name(task.trusted, {**step.dims, **inputs}, what)
    results = result if isinstance(result, tuple) else (result,)
    if len(results) != len(task.outputs) or not all(isinstance(result, torch.Tensor) for result in results):
        kinds = ", ".join(type(result).__name__ for result in results)
        raise TaskError(f"{what} returned {kinds} for the outputs {', '.join(task.outputs)}")
    expected = task.arrays(step.dims)
    for (name, spec), tensor in zip(task.outputs.items(), results, strict=True):
        if tuple(tensor.shape) != expected[name].shape:
            raise TaskError(
                f"{what} has shape {tuple(tensor.shape)} for '{name}'; the task declares {expected[name].shape}"
            )
        write(tensor.to(getattr(torch, spec.dtype)), step.files[name])
    return ask.TrustedWritten(tuple(task.outputs))


def read(tensor: ask.TensorFile) -> torch.Tensor:
    """A tensor from raw bytes: NumPy has no name for some of the dtypes, so it never sees them."""
    raw = torch.from_numpy(np.fromfile(tensor.file, np.uint8))
    return raw.view(getattr(torch, tensor.dtype)).reshape(tensor.shape)


def write(tensor: torch.Tensor, file: str) -> None:
    tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tofile(file)


def serve(requests: IO[str], out: IO[str]) -> None:
    """Answers each request until there are no more; the first names the task."""
    first = receive(requests)
    if not isinstance(first, ask.OpenTask):
        return
    try:
        task = load_task(first.where)
    except TilewrightError as error:
        send(out, ask.Refused(str(error)))
        return
    send(out, ask.Started())
    while isinstance(step := receive(requests), ask.ComputeTrusted):
        try:
            send(out, outputs(task, step))
        except Exception as error:  # the task's own code
            reason = first_line(str(error)) if isinstance(error, TilewrightError) else in_one_line(error)
            send(out, ask.Broken(reason, dead=False))


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    serve(sys.stdin, private_stdout())


if __name__ == "__main__":
    main()
