"""One rank of a job that measures communication. `program.distributed.ranks` starts this file with the user's Python.

The rank reads orders from standard input, one JSON object in each line, and answers each with one line on standard
output. All ranks of a job get the same orders. An order that fails is answered with the reason. The file imports only
the standard library and torch, since the user's environment need not have Tilewright's packages.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from torch import Tensor

ORDER = "TILEWRIGHT_RANK"
"""The environment variable with the settings as JSON: ``backend``, ``meet`` (a file), and ``seconds``."""
FAMILIES = ("NCCL_", "NVSHMEM_", "TORCH_NCCL_", "TORCH_SYMM_MEM")
"""Beginnings of the names of variables that a rank reports."""
Answer: TypeAlias = "dict[str, Any]"


def main() -> None:
    """Joins the job, then follows orders until standard input ends."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what libraries print goes to standard error
    try:
        rank = Rank(json.loads(os.environ[ORDER]))
        answer: Answer = rank.facts()
    except Exception as error:
        print(json.dumps({"failed": said(error)}), file=answers)
        sys.exit(1)
    print(json.dumps(answer), file=answers)
    for line in sys.stdin:
        order = json.loads(line)
        try:
            answer = getattr(rank, order.pop("do"))(**order)
        except Exception as error:
            answer = {"failed": said(error)}
        print(json.dumps(answer), file=answers)
    os._exit(0)  # tearing down a communicator waits for the other ranks


def said(error: Exception) -> str:
    """Returns an error in one line."""
    return f"{type(error).__name__}: {next(iter(str(error).strip().splitlines()), '')}"[:400]


class Rank:
    """One process of the job, with the device that has its rank as its number."""

    def __init__(self, settings: dict[str, Any]) -> None:
        import torch
        import torch.distributed as dist

        self.torch, self.dist = torch, dist
        self.rank, self.ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        self.backend = settings["backend"]
        self.cuda = self.backend == "nccl"
        self.device = torch.device("cuda", self.rank) if self.cuda else torch.device("cpu")
        if self.cuda:
            torch.cuda.set_device(self.device)
        dist.init_process_group(
            self.backend, init_method=f"file://{settings['meet']}", rank=self.rank, world_size=self.ranks,
            timeout=timedelta(seconds=settings["seconds"]),
        )  # fmt: skip

    def facts(self) -> Answer:
        """Returns the versions, the device, and the variables of NCCL and NVSHMEM that this process has."""
        torch = self.torch
        nccl = ".".join(map(str, torch.cuda.nccl.version())) if self.cuda else ""
        name = torch.cuda.get_device_name(self.device) if self.cuda else "cpu"
        own = {name: value for name, value in os.environ.items() if name.startswith(FAMILIES)}
        return {"torch": torch.__version__, "nccl": nccl, "device": name, "environment": own}

    # Collectives ------------------------------------------------------------------------------------

    def collective(self, collective: str, size: int, samples: int, calls: int) -> Answer:
        """Times a collective of float32 numbers. Returns µs of a call in each sample, and whether its result is right.

        size: bytes of the whole message: of the output of an all-gather, else of the input. A sample is the mean of
        ``calls`` calls one behind the other.
        """
        elements = max(self.ranks, size // 4 // self.ranks * self.ranks)
        call, ask = self._collective(collective, elements)
        call()
        right = ask()  # also the warm-up
        us = [self._timed(call, calls) for _ in range(samples + 1)][1:]
        return {"us": us, "right": right}

    def _collective(self, name: str, elements: int) -> tuple[Callable[[], object], Callable[[], bool]]:
        """Returns a function that makes the call, and one that checks the result of the first call."""
        dist, torch, ranks = self.dist, self.torch, self.ranks
        part, whole = elements // ranks, float(ranks * (ranks + 1) // 2)

        def full(count: int) -> Tensor:
            return torch.full((count,), float(self.rank + 1), device=self.device)

        def checked(out: Tensor, *wanted: float) -> Callable[[], bool]:
            def ask() -> bool:
                chunks = zip(out.chunk(len(wanted)), wanted, strict=True)
                right = all(bool((chunk == value).all()) for chunk, value in chunks)
                given.zero_()  # sums of zeros stay finite
                return right

            return ask

        each = tuple(float(n + 1) for n in range(ranks))
        if name == "all_reduce":
            given = full(elements)
            return lambda: dist.all_reduce(given), checked(given, whole)
        if name == "broadcast":
            given = full(elements)
            return lambda: dist.broadcast(given, 0), checked(given, 1.0)
        if name == "all_gather":
            given, out = full(part), full(elements)
            return lambda: dist.all_gather_into_tensor(out, given), checked(out, *each)
        given, out = full(elements), full(part if name == "reduce_scatter" else elements)
        if name == "reduce_scatter":
            return lambda: dist.reduce_scatter_tensor(out, given), checked(out, whole)
        return lambda: dist.all_to_all_single(out, given), checked(out, *each)

    def _timed(self, call: Callable[[], object], calls: int = 1) -> float:
        """Returns the time of a call in µs, on the device."""
        if not self.cuda:
            began = time.perf_counter()
            for _ in range(calls):
                call()
            return 1e6 * (time.perf_counter() - began) / calls
        torch = self.torch
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize(self.device)
        first.record()
        for _ in range(calls):
            call()
        last.record()
        torch.cuda.synchronize(self.device)
        return 1e3 * float(first.elapsed_time(last)) / calls

    def sums(self, buckets: list[int], seed: int) -> Answer:
        """Sums random float32 numbers over the ranks, in messages of these numbers of elements. Returns a hash of the
        bits of all sums. The numbers do not depend on how they are divided into messages."""
        torch = self.torch
        draw = torch.Generator().manual_seed(1000 * seed + self.rank)
        values = torch.randn(sum(buckets), generator=draw).to(self.device)
        for bucket in values.split(buckets):
            self.dist.all_reduce(bucket)
        return {"digest": hashlib.sha256(values.cpu().numpy().tobytes()).hexdigest()}

    # Training steps ---------------------------------------------------------------------------------

    def overlap(self, width: int, layers: int, batch: int, bucket_mb: float, rounds: int) -> Answer:
        """Times a training step of a perceptron under DistributedDataParallel in three ways, in turn: with
        communication, without it (``no_sync``), and the communication alone. Returns µs of each, by round.
        """
        torch, dist = self.torch, self.dist
        model, x = self._data_parallel(width, layers, bucket_mb), self._inputs(batch, width)
        message = max(1, int(bucket_mb * 1024 * 1024) // x.element_size())
        gradients = torch.zeros(layers * width * width, device=self.device, dtype=x.dtype).split(message)

        def compute() -> None:
            with model.no_sync():
                trained(model, x)

        def communication() -> None:
            for each in [dist.all_reduce(part, async_op=True) for part in gradients]:
                each.wait()

        ways = {"step": lambda: trained(model, x), "compute": compute, "communication": communication}
        us = self._in_turn(ways, rounds)
        size = sum(each.numel() * each.element_size() for each in gradients)
        return {"us": us, "bytes": size, "messages": len(gradients)}

    def buckets(self, width: int, layers: int, batch: int, megabytes: list[float], rounds: int) -> Answer:
        """Times the training step with several bucket sizes, in turn. The key ``view`` has torch's default size and
        ``gradient_as_bucket_view``. Returns µs of each, by round."""
        x = self._inputs(batch, width)
        models = {str(each): self._data_parallel(width, layers, each) for each in megabytes}
        models["view"] = self._data_parallel(width, layers, 0.0, gradient_as_bucket_view=True)
        return {"us": self._in_turn({name: partial(trained, each, x) for name, each in models.items()}, rounds)}

    def prefetch(self, width: int, layers: int, batch: int, rounds: int) -> Answer:
        """Times the training step of a sharded perceptron (FSDP 2) without and with an explicit prefetch in the forward
        pass, in turn. Returns µs of each, by round."""
        from torch.distributed.fsdp import fully_shard

        x, models = self._inputs(batch, width), {}
        for name in ("implicit", "explicit"):
            model = self._perceptron(width, layers)
            parts = [fully_shard(layer) for layer in model]
            fully_shard(model)
            for part, following in pairwise(parts) if name == "explicit" else ():
                part.set_modules_to_forward_prefetch([following])
            models[name] = model
        return {"us": self._in_turn({name: partial(trained, each, x) for name, each in models.items()}, rounds)}

    def _perceptron(self, width: int, layers: int) -> Any:
        torch = self.torch
        torch.manual_seed(0)
        model = torch.nn.Sequential(*(torch.nn.Linear(width, width, bias=False) for _ in range(layers)))
        return model.to(self.device, torch.bfloat16 if self.cuda else torch.float32)

    def _data_parallel(self, width: int, layers: int, bucket_mb: float, **more: object) -> Any:
        """Makes a perceptron under DistributedDataParallel. ``bucket_mb``: 0 is torch's default."""
        given = {"bucket_cap_mb": bucket_mb, **more} if bucket_mb else more
        ids = [self.rank] if self.cuda else None
        wrapper = self.torch.nn.parallel.DistributedDataParallel
        return wrapper(self._perceptron(width, layers), device_ids=ids, **given)

    def _inputs(self, batch: int, width: int) -> Tensor:
        dtype = self.torch.bfloat16 if self.cuda else self.torch.float32
        return self.torch.randn(batch, width, device=self.device, dtype=dtype)

    def _in_turn(self, ways: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, list[float]]:
        """Times each way in each round, and begins each round with another one. The first two rounds warm up: DDP makes
        its buckets anew after its first step."""
        found: dict[str, list[float]] = {name: [] for name in ways}
        for number in range(rounds + 2):
            for name in turned(tuple(ways), number):
                us = self._timed(ways[name], 2)
                if number >= 2:
                    found[name].append(us)
        return found


def trained(model: Any, x: Tensor) -> None:
    """Computes the gradients of one step."""
    model(x).square().mean().backward()


def turned(names: tuple[str, ...], by: int) -> Iterator[str]:
    """Yields the names, beginning at another one in each round."""
    yield from (names[(at + by) % len(names)] for at in range(len(names)))


if __name__ == "__main__":
    main()
