"""Distributed: communication between GPUs, and partitioning of a model. This specialist gets questions, but cannot
answer yet."""

from __future__ import annotations

from tilewright.specialists.base import Need, Specialist
from tilewright.specialists.needs import need_of_gpu, need_of_package


class Distributed(Specialist):
    name = "distributed"
    order = 70
    aliases = ("distributed-specialist",)
    domain = (
        "several GPUs or hosts: collectives and NCCL, overlap of communication with compute, gradient buckets, and the "
        "configuration of data, tensor, pipeline, expert and sharded (FSDP, ZeRO) parallelism"
    )
    returns = "bus bandwidth of the collectives, exposed communication of a step before and after, scaling efficiency"
    names = (
        "nccl", "all reduce", "allreduce", "all gather", "allgather", "reduce scatter", "reducescatter", "all to all",
        "ddp", "fsdp", "hsdp", "distributeddataparallel", "fullyshardeddataparallel", "zero 1", "zero 2", "zero 3",
        "deepspeed", "megatron", "tensor parallel*", "pipeline parallel*", "data parallel*", "expert parallel*",
        "context parallel*", "sequence parallel*", "model parallel*", "=TP", "=PP", "=EP", "=DP", "gradient bucket*",
        "bucket cap mb", "bucket size", "comm overlap", "communication overlap", "overlap communication", "multi gpu",
        "multi node", "multinode", "multigpu", "torchrun", "nvlink", "nvswitch", "infiniband", "nvshmem", "rccl",
        "gradient sync*", "collective", "pipeline bubble", "scaling efficiency", "weak scaling", "strong scaling",
        "interconnect", "inter node", "tensor model parallel*", "distributed training", "distributed inference",
        "torch distributed", "straggler", "slowest rank", "each rank", "per rank", "rank 0", "microbatch*",
        "micro batch*", "gradient all reduce",
    )  # fmt: skip
    near = (
        "distributed", "parallelism", "communication", "comm", "sharding", "sharded", "across gpu", "# gpu", "# node",
        "# host", "one host", "one node", "single node", "nodes", "ranks", "scale out", "parallelize", "parallelise",
        "gpu to gpu", "peer to peer",
    )  # fmt: skip
    examples = (
        "gradient bucketing",
        "NCCL takes a third of my step",
        "TP, PP, FSDP configuration",
        "overlap the all-reduce with the backward pass",
    )

    def needs(self) -> tuple[Need, ...]:
        built = Need("the measurement of collectives in Tilewright", False, "not built yet; use nccl-tests by hand")
        return (need_of_package("torch"), need_of_gpu(2), built)


SPECIALIST = Distributed()
