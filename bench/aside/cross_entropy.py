"""loss = log(Σ exp(logits)) − logits[target] of each row, in bf16: a block reads a long row in chunks."""

import cuda.tile as ct
import numpy as np

import tilewright as tw


@ct.kernel
def cross_entropy(logits, targets, loss, TILE_N: ct.Constant[int]):
    row = ct.bid(0)
    highest = ct.full((1, TILE_N), -1e30, ct.float32)
    weight = ct.zeros((1, TILE_N), ct.float32)
    for chunk in range(ct.cdiv(logits.shape[1], TILE_N)):
        values = ct.load(logits, (row, chunk), (1, TILE_N), padding_mode=ct.PaddingMode.NEG_INF).astype(ct.float32)
        higher = ct.maximum(highest, values)
        weight = weight * ct.exp(highest - higher) + ct.exp(values - higher)
        highest = higher
    top = ct.max(highest, axis=1, keepdims=True)
    total = ct.sum(weight * ct.exp(highest - top), axis=1, keepdims=True)
    target = ct.load(targets, (row,), (1,))
    chosen = ct.gather(logits, (ct.full((1,), 0, ct.int32) + row, target)).astype(ct.float32)
    ct.store(loss, (row,), (ct.log(total) + top).reshape((1,)) - chosen)


def reference(logits, targets):
    top = logits.max(axis=1)
    chosen = logits[np.arange(len(logits)), targets.astype(np.int64)]
    return np.log(np.exp(logits - top[:, None]).sum(axis=1)) + top - chosen


def trusted(logits, targets):
    import torch

    return torch.nn.functional.cross_entropy(logits.float(), targets.long(), reduction="none")


def launch(logits, targets, loss, M, config):
    return tw.Launch(cross_entropy, (M,), (logits, targets, loss, config.TILE_N))


task = tw.Task(
    name="cross_entropy",
    tensors={
        "logits": tw.Tensor(("M", "N"), "bfloat16"),
        "targets": tw.Tensor(("M",), "int32", tw.integers(0, "N")),
        "loss": tw.Output(("M",), "float32"),
    },
    reference=reference,
    trusted=trusted,
    launch=launch,
    flops=lambda M, N: 5 * M * N,
    independent=("M",),
    space=tw.Space(
        constants={"TILE_N": (512, 1024, 2048, 4096)},
        hints={"occupancy": (None, 4), "num_worker_warps": (None, 8)},
        shipped={"TILE_N": 1024, "occupancy": None, "num_worker_warps": None},
        where=(lambda occupancy, num_worker_warps: occupancy is None or num_worker_warps is None,),
    ),
    workloads={"4096x32000": {"M": 4096, "N": 32000}, "512x32768": {"M": 512, "N": 32768}},
)
