"""Changes of DDP and FSDP: what they write, what they leave, and which of them are lossy."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from tilewright.program.changes.base import ProgramChange
from tilewright.program.distributed.changes import DISTRIBUTED_CHANGES
from tilewright.program.reading.reach import reached_modules
from tilewright.specialists.changing import proposal_of
from tilewright.testing.changes import ChangeContract, module_of

BY_NAME = {each.name: each for each in DISTRIBUTED_CHANGES}
EXAMPLE = Path(__file__).parents[3] / "examples" / "data_parallel" / "train.py"
DDP = """import torch
from torch.nn.parallel import DistributedDataParallel as DDP

model = DDP(torch.nn.Linear(4, 4), device_ids=[0])
"""
FSDP = """from torch.distributed.fsdp import BackwardPrefetch, FullyShardedDataParallel

model = FullyShardedDataParallel(make(), backward_prefetch=BackwardPrefetch.BACKWARD_POST)
"""
FSDP2 = """from torch.distributed.fsdp import fully_shard

layer = 3
for block in model.blocks:
    fully_shard(block, mesh=mesh)
fully_shard(model, mesh=mesh)
train(model)
"""
PREFETCHED = FSDP2.replace(
    "train(",
    "for layer_, next_layer in zip(model.blocks, list(model.blocks)[1:]):\n"
    "    layer_.set_modules_to_forward_prefetch([next_layer])\ntrain(",
)
OTHER = {
    "another class of this name": DDP.replace("torch.nn.parallel", "mine"),
    "arguments in a dictionary": DDP.replace("device_ids=[0]", "**given"),
}


class TestBucketSize(ChangeContract):
    change: ClassVar[ProgramChange] = BY_NAME["ddp_bucket_100_mb"]
    changed: ClassVar = {"a wrapped model": (DDP, DDP.replace("[0])", "[0], bucket_cap_mb=100)"))}
    left: ClassVar = {**OTHER, "a size": DDP.replace("device_ids=[0]", "bucket_cap_mb=50")}


class TestGradientView(ChangeContract):
    change: ClassVar[ProgramChange] = BY_NAME["ddp_gradient_as_bucket_view"]
    changed: ClassVar = {"a wrapped model": (DDP, DDP.replace("[0])", "[0], gradient_as_bucket_view=True)"))}
    left: ClassVar = {**OTHER, "gradients are replaced": f"{DDP}for p in model.parameters():\n    p.grad = None\n"}


class TestForwardPrefetch(ChangeContract):
    change: ClassVar[ProgramChange] = BY_NAME["fsdp_forward_prefetch"]
    changed: ClassVar = {"a sharded model": (FSDP, FSDP.replace("_POST)", "_POST, forward_prefetch=True)"))}
    left: ClassVar = {"FSDP 2": FSDP2, "DDP": DDP}


class TestBackwardPrefetch(ChangeContract):
    change: ClassVar[ProgramChange] = BY_NAME["fsdp_backward_prefetch"]
    changed: ClassVar = {
        "after the gradients": (FSDP, FSDP.replace("_POST", "_PRE")),
        "switched off": (FSDP.replace("BackwardPrefetch.BACKWARD_POST", "None"), FSDP.replace("_POST", "_PRE")),
    }
    left: ClassVar = {"the default": FSDP.replace(", backward_prefetch=BackwardPrefetch.BACKWARD_POST", "")}


class TestFullyShardPrefetch(ChangeContract):
    change: ClassVar[ProgramChange] = BY_NAME["fully_shard_forward_prefetch"]
    changed: ClassVar = {"each layer, then the model": (FSDP2, PREFETCHED)}
    left: ClassVar = {
        "the model alone": FSDP2.replace("    fully_shard(block, mesh=mesh)", "    print(block)"),
        "no model after it": FSDP2.replace("fully_shard(model, mesh=mesh)\n", ""),
        "a generator": FSDP2.replace("model.blocks:", "blocks():"),
        "some layers": FSDP2.replace("    fully_shard(", "    if block:\n        fully_shard("),
    }


def test_only_other_buckets_are_lossy() -> None:
    lossy = {each.name for each in DISTRIBUTED_CHANGES if each.risk == "lossy"}
    assert lossy == {name for name in BY_NAME if name.startswith("ddp_bucket_")} and len(lossy) == 3


def test_a_place_that_is_not_changed_is_named() -> None:
    change = BY_NAME["ddp_gradient_as_bucket_view"]
    (miss,) = change.near_misses(module_of(f"{DDP}for p in model.parameters():\n    p.grad = None\n"))
    assert miss.line == 4 and miss.reason == (
        "program.py:6 replaces or detaches gradients, which must stay views of the buckets"
    )


def test_the_example_has_a_place_for_each_change_of_ddp() -> None:
    found = {each.name: proposal_of(each, reached_modules(EXAMPLE)) for each in DISTRIBUTED_CHANGES}
    assert {name for name, proposal in found.items() if proposal} == {name for name in BY_NAME if "ddp" in name}
