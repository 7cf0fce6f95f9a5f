"""The process that times public operations of TileGym: what a user of `tilegym.ops` gets, searches included.

It is given a task, ``FILE[:TASK]``, draws inputs on the GPU from a seed, and answers one JSON request a line:

    prepare  workload         → calls the operation once: what its search took, and how long that call was
    measure  rounds           → µs of each round, of the operation and in turns with it of the trusted implementation
    result   file, element    → writes the first tensors of both results, for a comparison with another process's

Which TileGym: the first on PYTHONPATH. Cold L2, launched eagerly; the host is ahead of the device, because the L2 is
flushed first. `Session` is the other side.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import IO, Any

SEED = 3
FLUSH_L2_TIMES = 2


class Session:
    """A process of this file, as a context manager; ``tilegym`` is the folder that its TileGym lies in."""

    def __init__(self, where: str, *, tilegym: Path | None = None, gpu: str | None = None) -> None:
        environment = {**os.environ, "DISABLE_FALLBACK": "1"}
        environment.pop("TILEGYM_DISABLE_AUTOTUNE", None)
        if tilegym is not None:
            environment["PYTHONPATH"] = os.pathsep.join(filter(None, (str(tilegym), environment.get("PYTHONPATH"))))
        if gpu is not None:
            environment["CUDA_VISIBLE_DEVICES"] = gpu
        command = [sys.executable, __file__, where]
        self.process = subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.process.kill()
        self.process.wait()

    def ask(self, **request: Any) -> dict[str, Any]:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        if not answer:
            raise SystemExit(f"the process for {self.process.args} ended with {self.process.wait()}")
        found: dict[str, Any] = json.loads(answer)
        return found


class Worker:
    def __init__(self, where: str) -> None:
        import tilegym
        import torch
        from as_launched import operation_of

        from tilewright.task.loading import load_task

        self.torch, self.ops, self.tilegym = torch, tilegym.ops, tilegym
        self.task = load_task(where)
        self.operation = operation_of(self.task)
        l2 = torch.cuda.get_device_properties(0).L2_cache_size
        self.flush = torch.empty(FLUSH_L2_TIMES * l2, dtype=torch.uint8, device="cuda")

    def prepare(self, workload: str) -> dict[str, Any]:
        self.dims = self.task.workload(workload).dims
        self.inputs = self._drawn(self.dims)
        module, found = self.operation.module, []  # type: ignore[var-annotated]
        search = getattr(module, "exhaustive_search", None)

        def watched(*args: Any, **kwargs: Any) -> Any:
            result = search(*args, **{**kwargs, "quiet": True})  # type: ignore[misc]
            found.append((args[0], result))
            return result

        if search is not None:
            module.exhaustive_search = watched  # type: ignore[attr-defined]
        started = time.perf_counter()
        self._ours()
        self.torch.cuda.synchronize()
        seconds = time.perf_counter() - started
        if search is not None:
            module.exhaustive_search = search  # type: ignore[attr-defined]
        self._theirs()
        taken = {}
        if found:
            listed, result = found[0]
            taken = {
                "list": [dict(vars(one)) for one in listed],
                "pick": dict(vars(result.best.config)),
                "search_us": {
                    json.dumps(vars(one.config)): one.mean_us
                    for one in sorted(result.successes, key=lambda one: one.mean_us)
                },
                "failures": [[dict(vars(one[0])), str(one[1]), str(one[2])[:200]] for one in result.failures],
            }
        return {**taken, "first_call_s": seconds, "tilegym": self.tilegym.__file__, "version": self.tilegym.__version__}

    def measure(self, rounds: int) -> dict[str, Any]:
        return {
            "us": self._timed(self._ours, rounds),
            "torch_us": self._timed(self._theirs, rounds) if self.task.trusted else None,
        }

    def result(self, file: str) -> dict[str, Any]:
        """What the operation gives, in full precision, and its largest error against the trusted one's."""
        import numpy as np

        ours, theirs = (_tensors(one) for one in (self._ours(), self._theirs()))
        errors = []
        for one, other in zip(ours, theirs, strict=False):
            one, other = one.double().reshape(-1), other.double().reshape(-1)
            scale = other.square().mean().sqrt().clamp(min=1e-30)
            errors.append(float(((one - other).abs().max() / scale).item()))
        np.save(file, ours[0].float().reshape(-1).cpu().numpy())
        return {"error": errors}

    def _ours(self) -> Any:
        return self.operation.called(self.ops, self.dims, self.inputs)

    def _theirs(self) -> Any:
        from tilewright.task.task import call_by_name

        return call_by_name(self.task.trusted, {**self.dims, **self.inputs}, "trusted")  # type: ignore[arg-type]

    def _timed(self, call: Callable[[], Any], rounds: int) -> list[float]:
        events = [[self.torch.cuda.Event(enable_timing=True) for _ in "ab"] for _ in range(rounds)]
        for before, after in events:
            self.flush.zero_()
            before.record()
            call()
            after.record()
        self.torch.cuda.synchronize()
        return [before.elapsed_time(after) * 1e3 for before, after in events]

    def _drawn(self, dims: Mapping[str, Any]) -> dict[str, Any]:
        torch = self.torch
        generator = torch.Generator("cuda").manual_seed(SEED)
        drawn = {}
        for name, array in self.task.arrays(dims).items():
            if name not in self.task.inputs:
                continue
            how = self.task.inputs[name].distribution
            dtype = getattr(torch, array.dtype)
            if how.kind == "integers":
                drawn[name] = torch.randint(
                    int(how.a), int(how.b), array.shape, dtype=dtype, device="cuda", generator=generator
                )
                continue
            one = torch.empty(array.shape, dtype=torch.float32, device="cuda")
            if how.kind == "normal":
                one.normal_(how.a, how.b, generator=generator)
            else:
                one.uniform_(how.a, how.b, generator=generator)
            drawn[name] = one.to(dtype)
        return drawn


def _tensors(result: Any) -> list[Any]:
    """The tensors of what an operation gives, in order."""
    parts = result if isinstance(result, (tuple, list)) else (result,)
    return [one for one in parts if hasattr(one, "double")]


def main(where: str) -> None:
    from tilewright.worker.messages import private_stdout

    channel: IO[str] = private_stdout()
    worker = Worker(where)
    for line in sys.stdin:
        request = json.loads(line)
        answer = getattr(worker, request.pop("do"))(**request)
        channel.write(json.dumps(answer) + "\n")
        channel.flush()


if __name__ == "__main__":
    main(sys.argv[1])
