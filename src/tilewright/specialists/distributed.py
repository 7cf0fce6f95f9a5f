"""Distributed: communication between GPUs of one host, and the settings and changes that make it shorter."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from tilewright.errors import MachineError, RequestError
from tilewright.hardware.gpu import count
from tilewright.program.changes.base import ProgramChange
from tilewright.program.distributed.changes import DISTRIBUTED_CHANGES
from tilewright.specialists.base import Need, Specialist
from tilewright.specialists.changing import LOSSY_ALLOWED, command_of, proposal_of, refusal
from tilewright.specialists.delegation import Delegation, Measure, SpecialistAnswer
from tilewright.specialists.needs import need_of_gpu, need_of_package
from tilewright.specialists.proposal import NoProposal, ProgramProposal

if TYPE_CHECKING:
    from tilewright.profile.collectives import Communication
    from tilewright.program.distributed.measuring import HostCommunication

SECONDS = 120.0
"""The most seconds of a measurement."""
WORDS = {
    "ddp_bucket": ("bucket",), "ddp_gradient_as_bucket_view": ("gradient_as_bucket_view", "bucket view"),
    "fsdp": ("prefetch", "fsdp"), "fully_shard": ("prefetch", "fsdp", "fully_shard"),
}  # fmt: skip
"""Beginning of the name of a change → words of a task that ask for it."""
TRACES = (".json", ".gz")
STILL = (
    "it still reads traces of ranks (name one, or their folder), and proposes changes of DDP and FSDP from the source"
)


class Distributed(Specialist):
    name = "distributed"
    order = 70
    aliases = ("distributed-specialist",)
    domain = (
        "several GPUs or hosts: collectives and NCCL, overlap of communication with compute, gradient buckets, and the "
        "configuration of data, tensor, pipeline, expert and sharded (FSDP, ZeRO) parallelism"
    )
    returns = (
        "latency and bandwidth of the collectives; exposed communication and its overlap; settings of NCCL that are "
        "faster for the program's messages"
    )
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

    analyses_anywhere = True

    def needs(self) -> tuple[Need, ...]:
        return (need_of_package("torch"), need_of_gpu(2))

    def seen(self, script: Path) -> tuple[str, ...]:
        """Returns where the program wraps models, and which changes apply, a line each."""
        from tilewright.program.reading.reach import reached_modules

        modules = reached_modules(script)
        found = (proposal_of(change, modules) for change in DISTRIBUTED_CHANGES)
        lines = tuple(f"{each.site.rpartition('/')[2]}: {each.name} ({each.risk})" for each in found if each)
        return lines or ("the source shows no DistributedDataParallel or FSDP that a change applies to",)

    def answer(self, delegation: Delegation) -> SpecialistAnswer:
        """Reads the traces of the delegation, or measures on the GPUs of this host. Changes nothing.

        Traces need no GPU. Of a program that a launcher starts in several processes, traces are made first, and
        settings of NCCL are raced for its messages. Raises RequestError if the file is neither a program nor a trace,
        MachineError without two GPUs.
        """
        traces = _traces(delegation.file)
        if traces:
            from tilewright.profile.collectives import communication

            return _of_traces(communication(traces))
        command = command_of(delegation) if delegation.file else None
        if (found := count()) < 2:
            have = "there is 1" if found else "there is none"
            raise MachineError(f"the distributed specialist measures on 2 GPUs of one host, and here {have}; {STILL}")
        from tilewright.program.distributed.measuring import measure_host

        seconds = min(SECONDS, delegation.seconds)
        program = _traced(delegation, 0.3 * seconds) if command is not None and command.launches else None
        host = measure_host("nccl", program.messages if program else (), seconds=(0.7 if program else 1.0) * seconds)
        lossy = any(LOSSY_ALLOWED.search(text) for text in (delegation.task, *delegation.constraints))
        return _of_host(host, program, lossy)

    def propose(self, delegation: Delegation) -> tuple[ProgramProposal, ...] | NoProposal:
        """Proposes the bucket size of DDP, views as gradients, and the prefetch of FSDP. Another bucket size is lossy:
        with three or more ranks it can change the order of summation.
        """
        from tilewright.program.reading.reach import reached_modules

        script = Path(delegation.file)
        if script.suffix != ".py" or not script.is_file():
            return NoProposal("blocked", f"'{delegation.file}' is no Python program that can be read", "the file")
        modules = reached_modules(script, Path.cwd() if Path.cwd() in script.resolve().parents else None)
        changes = _named(delegation.task) or DISTRIBUTED_CHANGES
        found = tuple(each for change in changes if (each := proposal_of(change, modules)) is not None)
        return found or refusal(changes, modules)


def _named(task: str) -> tuple[ProgramChange, ...]:
    """Returns the changes that a task names, by their names or by words."""
    said = task.lower()
    exact = tuple(each for each in DISTRIBUTED_CHANGES if re.search(rf"\b{each.name}\b", said))
    words = {each: [word for name in WORDS if each.name.startswith(name) for word in WORDS[name]]
             for each in DISTRIBUTED_CHANGES}  # fmt: skip
    return exact or tuple(each for each in DISTRIBUTED_CHANGES if any(word in said for word in words[each]))


def _traces(file: str) -> list[Path]:
    """Returns the traces that a file or a folder names; none for a program."""
    path = Path(file)
    if file and path.is_dir():
        found = sorted(each for each in path.glob("*.json*") if not each.name.endswith(".steps.json"))
        if not found:
            raise RequestError(f"no traces (*.json, *.json.gz) in the folder {path}")
        return found
    return [path] if path.suffix in TRACES else []


def _traced(delegation: Delegation, seconds: float) -> Communication:
    """Traces a copy of the program, and reads the traces of its ranks."""
    from tilewright.profile.collectives import communication
    from tilewright.program.copies import program_copy
    from tilewright.program.profiling import traces_of
    from tilewright.runtime.started import STEPS

    with program_copy(command_of(delegation), {}) as copy:
        traces, _ = traces_of(copy, max(30.0, seconds))
    return communication(traces, steps=STEPS)


def _of_traces(found: Communication) -> SpecialistAnswer:
    findings = {each.id: each.text for each in found.findings}
    if not any(each.communication_us for each in found.ranks):
        raise RequestError("the trace has no communication between GPUs; record a step of a program on several GPUs")
    worst = found.findings[0].text if found.findings else "no number of the communication is beyond its limit"
    said = f"{worst}; {found.note}" if found.note else worst
    return SpecialistAnswer("analysed", said, tuple(_trace_measures(found)), findings)


def _trace_measures(found: Communication) -> Iterator[Measure]:
    """Yields the overlap of each rank, and the exposed time of each collective. The evidence is the trace's hash."""
    for each in found.ranks:
        evidence = f"trace {each.digest[:8]}"
        yield Measure(f"communication, rank {each.rank}", "µs", each.communication_us, None, evidence)
        yield Measure(f"exposed communication, rank {each.rank}", "µs", each.exposed_us, None, evidence)
        if each.hidden is not None:
            yield Measure(f"overlap efficiency, rank {each.rank}", "%", 100 * each.hidden, None, evidence)
        if each.waited_us is not None:
            yield Measure(f"waited for other ranks, rank {each.rank}", "µs", each.waited_us, None, evidence)
        for row in found.rows:
            if row.rank == each.rank:
                name = f"exposed {row.operation} ({row.count}), rank {row.rank}"
                yield Measure(name, "µs", row.exposed_us, None, " ".join((evidence, *row.lines[:1])))


def _of_host(host: HostCommunication, program: Communication | None, lossy: bool) -> SpecialistAnswer:
    from tilewright.program.distributed.settings import launch_lines

    facts = host.collectives.facts
    allowed = tuple(each for each in host.recommended if lossy or not each.lossy)
    findings = {each.id: each.text for each in program.findings} if program else {}
    for each in host.recommended:
        name, held = f"nccl-{each.collective}", each not in allowed
        shown = launch_lines(facts, (each,))
        findings[name] = f"{' '.join(shown)}: {each.why}" + ("; lossy: allow it with --allow-lossy" if held else "")
    for variable in facts.protected:
        findings[variable.partition("=")[0]] = f"the environment sets {variable}; it is left as it is"
    findings |= {f"not measured {number + 1}": said for number, said in enumerate(host.failed)}
    lines = launch_lines(facts, allowed)
    peak = host.collectives.peak("all_reduce")
    said = f"{facts}" + (f"; all-reduce up to {peak.bus_gb_s:.3g} GB/s of bus bandwidth" if peak else "")
    said += f"; for the launch: {' '.join(lines)}" if lines else "; no setting of NCCL is recommended"
    measures = (*(_trace_measures(program) if program else ()), *_host_measures(host))
    return SpecialistAnswer("analysed", said, measures, findings)


def _host_measures(host: HostCommunication) -> Iterator[Measure]:
    from tilewright.program.distributed.collectives import COLLECTIVES, in_bytes

    measured, evidence = host.collectives, f"collectives {host.collectives.digest}"
    for name in COLLECTIVES:
        peak, times = measured.peak(name), measured.of(name)
        if peak is not None:
            yield Measure(f"{name} of {in_bytes(times[0].bytes)}", "µs", times[0].median_us, None, evidence)
            yield Measure(f"bus bandwidth of {name}, {in_bytes(peak.bytes)}", "GB/s", peak.bus_gb_s, None, evidence)
    if (overlap := host.overlap) is not None:
        shown = 100 * overlap.hidden.centre
        yield Measure("overlap efficiency of a small DDP step", "%", shown, None, f"overlap {overlap.digest}")
    if host.settings is not None:
        for each in host.recommended:
            name = f"{each.collective}, NCCL's choice and {each.setting}"
            yield Measure(name, "µs", each.default_us, each.us, f"settings {host.settings.digest}")


SPECIALIST = Distributed()
