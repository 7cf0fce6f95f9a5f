"""A process that runs a task's trusted implementation, so that the checking process need not import torch.

`verify.trusted` is the parent's side. A step has the dimensions, and the names of the files with the raw, row-major
bytes of the inputs. The outputs are written to files of the same form, in their declared dtypes.
"""

from __future__ import annotations

import gc
import signal
import sys
from collections.abc import Mapping
from functools import partial
from typing import IO

from tilewright.worker.process.preload import postpone, with_all_of_torch

if __name__ == "__main__":
    gc.disable()  # an eighth of the time of imports goes into collections that free nothing
    postpone()

import numpy as np
import torch

from tilewright.errors import TaskError, TilewrightError, first_line, in_one_line
from tilewright.task.loading import load_task
from tilewright.task.task import Task, call_by_name
from tilewright.task.tensors import Dims
from tilewright.tools.child import remove_with_parent
from tilewright.worker import messages as ask
from tilewright.worker.messages import private_stdout, receive, send


def computed(task: Task, dims: Dims, inputs: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Runs the trusted implementation of a task that has one. Returns the outputs by name, in any dtype.

    Raises TaskError if the results are not tensors of the declared shapes. Exceptions of the task's own code are not
    caught.
    """
    assert task.trusted is not None
    what = f"trusted of task '{task.name}'"
    with torch.no_grad():
        result = with_all_of_torch(partial(call_by_name, task.trusted, {**dims, **inputs}, what))
    results = result if isinstance(result, tuple) else (result,)
    if len(results) != len(task.outputs) or not all(isinstance(result, torch.Tensor) for result in results):
        kinds = ", ".join(type(result).__name__ for result in results)
        raise TaskError(f"{what} returned {kinds} for the outputs {', '.join(task.outputs)}")
    outputs, expected = dict(zip(task.outputs, results, strict=True)), task.arrays(dims)
    for name, tensor in outputs.items():
        if (shape := tuple(tensor.shape)) != expected[name].shape:
            raise TaskError(f"{what} has shape {shape} for '{name}'; the task declares {expected[name].shape}")
    return outputs


def write_outputs(task: Task, step: ask.ComputeTrusted) -> ask.TrustedWritten:
    """Computes the trusted outputs and writes them to the files of the step. Raises the errors of `computed`."""
    inputs = {tensor.name: read(tensor).to(step.device) for tensor in step.inputs}
    for name, tensor in computed(task, step.dims, inputs).items():
        write(tensor.to(getattr(torch, task.outputs[name].dtype)), step.files[name])
    return ask.TrustedWritten(tuple(task.outputs))


def read(tensor: ask.TensorFile) -> torch.Tensor:
    """Reads a tensor from raw bytes. torch converts the bytes, because NumPy lacks some of the dtypes."""
    raw = torch.from_numpy(np.fromfile(tensor.file, np.uint8))
    return raw.view(getattr(torch, tensor.dtype)).reshape(tensor.shape)


def write(tensor: torch.Tensor, file: str) -> None:
    tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tofile(file)


def serve(requests: IO[str], out: IO[str]) -> None:
    """Answers requests until the input ends. The first request names the task."""
    first = receive(requests)
    if not isinstance(first, ask.OpenTask):
        return
    try:
        task = with_all_of_torch(partial(load_task, first.where))
    except TilewrightError as error:
        send(out, ask.Refused(str(error)))
        return
    send(out, ask.Started())
    while isinstance(step := receive(requests), ask.ComputeTrusted):
        try:
            send(out, write_outputs(task, step))
        except Exception as error:  # the task's own code
            reason = first_line(str(error)) if isinstance(error, TilewrightError) else in_one_line(error)
            send(out, ask.Broken(reason, dead=False))


def main() -> None:
    for number in (
        signal.SIGINT,
        signal.SIGTERM,
    ):  # only the parent handles these signals, even if all processes get them
        signal.signal(number, signal.SIG_IGN)
    remove_with_parent()
    serve(sys.stdin, private_stdout())


if __name__ == "__main__":
    gc.freeze()  # the end of the process frees them without a collection
    gc.enable()
    main()
