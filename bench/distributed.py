"""What do collectives, NCCL's settings, DDP's buckets and FSDP's prefetch take on two GPUs of one host?

    python bench/distributed.py OUT.json [--seconds 150] [--backend gloo]

Parts, each written to OUT.json when it ends; a part that OUT.json has already is not measured again:
  sweep      latency and bandwidth of five collectives from 1 KiB to 1 GiB, and the overlap of a small DDP step
  training   bucket sizes, gradients as views of buckets, and the prefetch of FSDP 2, in turn in the same processes
  program    examples/data_parallel traced with two ranks: exposed communication, overlap, waits, messages
  settings   NCCL's algorithms and protocols against its own choice, for messages of 64 KiB to 64 MiB and the program's
  judged     changes of the program, judged as the agent does: operations that ran, outputs, race of whole steps

A part that the time does not allow is named, and left for the next call. Variables of multicast and NVLS are inherited
as they are, and named. With --backend gloo, two processes of the CPU rehearse what needs no GPU.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import cached_property
from pathlib import Path
from typing import Any

from common import EXAMPLES, made_here, write

from tilewright.errors import TilewrightError
from tilewright.hardware.gpu import count
from tilewright.ledger.agent_records import AgentChange
from tilewright.ledger.codec import to_json
from tilewright.profile.collectives import ProgramMessage, communication
from tilewright.program.command import ProgramCommand
from tilewright.program.copies import program_copy
from tilewright.program.distributed.changes import DISTRIBUTED_CHANGES
from tilewright.program.distributed.collectives import COLLECTIVES, SIZES, in_bytes, measured_by
from tilewright.program.distributed.ranks import Backend, Ranks, started_ranks
from tilewright.program.distributed.settings import SETTINGS, launch_lines, main_messages, race_settings, recommended
from tilewright.program.distributed.training import measure_overlap, race_buckets, race_prefetch
from tilewright.program.profiling import traces_of
from tilewright.program.reading.reach import reached_modules
from tilewright.program.trying import ProgramTrials
from tilewright.runtime.started import STEPS
from tilewright.specialists.changing import proposal_of

NEEDED_S = {"sweep": 30.0, "training": 15.0, "program": 20.0, "settings": 30.0, "judged": 50.0}
SWEEP_S = 20.0
"""Seconds that a part takes about. A part begins if so many are left."""
RUN_S = 60.0
FIXED = tuple(
    ProgramMessage(*each, 1)
    for each in (("all_reduce", 64 << 10), ("all_reduce", 1 << 20), ("all_reduce", 64 << 20), ("all_gather", 1 << 20),
                 ("reduce_scatter", 1 << 20), ("broadcast", 1 << 20))
)  # fmt: skip
JUDGED = ("ddp_bucket_100_mb", "ddp_gradient_as_bucket_view")
LAUNCH = (
    sys.executable, "-m", "torch.distributed.run", "--standalone", "--local-addr", "127.0.0.1",
    "--nproc-per-node", "2", "train.py",
)  # fmt: skip


class Bench:
    """The parts. ``until``: when to end, by `time.monotonic`."""

    def __init__(self, backend: Backend, folder: Path, record: dict[str, Any], until: float) -> None:
        self.backend, self.record, self.until = backend, record, until
        place = folder / "data_parallel"
        shutil.copytree(EXAMPLES / "data_parallel", place, ignore=shutil.ignore_patterns("__pycache__"))
        self.ending = ExitStack()
        small = ("--width", "64", "--layers", "2", "--batch", "32") if backend == "gloo" else ()
        self.command = ProgramCommand.of([*LAUNCH, *small, "--steps", "2000"], place)

    @property
    def left(self) -> float:
        return self.until - time.monotonic()

    @cached_property
    def job(self) -> Ranks:
        """The ranks of the first two parts. They end before the program starts."""
        job = self.ending.enter_context(started_ranks(self.backend))
        job.begin(RUN_S)
        return job

    def sweep(self) -> dict[str, Any]:
        job, sizes = self.job, SIZES if self.backend == "nccl" else SIZES[:6]
        measured = measured_by(job, sizes, COLLECTIVES, time.monotonic() + SWEEP_S)
        return {"collectives": to_json(measured), "overlap": to_json(measure_overlap(job))}

    def training(self) -> dict[str, Any]:
        raced = {"buckets": race_buckets(self.job), "prefetch": race_prefetch(self.job)}
        return {name: [to_json(each) for each in rows] for name, rows in raced.items()}

    def program(self) -> dict[str, Any]:
        self.ending.close()
        with program_copy(self.command, {}) as copy:
            traces, times = traces_of(copy, max(RUN_S, self.left))
        return {"communication": to_json(communication(traces, steps=STEPS)), "steps_us": times}

    def settings(self) -> dict[str, Any]:
        self.ending.close()
        rows = self.record.get("program", {}).get("communication", {}).get("messages", ())
        own = [ProgramMessage(**each) for each in rows]
        chosen = {(each.collective, each.bytes): each for each in (*FIXED, *main_messages(own))}
        some = SETTINGS if self.backend == "nccl" else SETTINGS[:2]  # gloo ignores them: a race of equals
        cells = list(chosen) if self.backend == "nccl" else list(chosen)[:2]
        race = race_settings(self.backend, cells, settings=some, seconds=max(NEEDED_S["settings"], 0.5 * self.left))
        best = recommended(race, own)
        lines = launch_lines(race.facts, best)
        return {"race": to_json(race), "recommended": [to_json(each) for each in best], "lines": lines}

    def judged(self) -> dict[str, Any]:
        script = self.command.script
        texts = {script: script.read_text()}
        trials = ProgramTrials(self.command, run_seconds=RUN_S, race_seconds=max(60.0, self.left))
        baseline = trials.baseline(texts, texts)
        found: dict[str, Any] = {"baseline": baseline.values}
        for name in JUDGED:
            if found.keys() != {"baseline"} and self.left < trials.needed().change:
                found[name] = {"left out": f"{self.left:.0f} s were left"}
                continue
            change = next(each for each in DISTRIBUTED_CHANGES if each.name == name)
            proposal = proposal_of(change, reached_modules(script, self.command.root))
            assert proposal is not None
            made = AgentChange(
                id="c1", item="Q1", specialist="distributed", name=name, rationale=proposal.rationale,
                site=proposal.site, risk=proposal.risk, delegation="", before={str(script): texts[script]}, diff="",
                texts={str(path): text for path, text in proposal.texts.items()}, ran=proposal.ran, gone=proposal.gone,
            )  # fmt: skip
            done = trials.judge(made, texts, True, max(10.0, self.left))
            row: dict[str, Any] = {"kept": done.kept, "reason": done.reason, "ran": done.run.reason}
            if done.outputs is not None:
                row["outputs"] = f"{done.outputs.verdict}: {done.outputs.reason}"
            if done.race is not None:
                row |= {"verdict": done.race.verdict, "values": dict(done.race.values),
                        "samples_us": {name: list(us) for name, us in done.race.samples_us.items()}}  # fmt: skip
            found[name] = row
        return found


def shown(part: str, row: dict[str, Any]) -> None:
    """Prints the main figures of a part."""
    if part == "sweep":
        for each in row["collectives"]["times"]:
            print(f"  {each['collective']:15} {in_bytes(each['bytes']):>8} {each['median_us']:>10.1f} µs "
                  f"{each['bus_gb_s']:>8.2f} GB/s bus{'' if each['right'] else '  WRONG'}")  # fmt: skip
        print(f"  hidden share of communication: {row['overlap']['hidden']}")
    for each in (*row.get("buckets", ()), *row.get("prefetch", ())):
        low, high = each["ratio"]["low"], each["ratio"]["high"]
        print(f"  {each['name']}: {low:.3f} to {high:.3f} of the time with {each['against']}")
    if part == "program":
        for each in row["communication"]["ranks"]:
            print(f"  rank {each['rank']}: {each['communication_us']:.0f} µs of communication, "
                  f"{each['exposed_us']:.0f} µs exposed")  # fmt: skip
    if part == "settings":
        for each in row["race"]["raced"]:
            low, high = each["ratio"]["low"], each["ratio"]["high"]
            name = f"{each['setting']['algorithm']} {each['setting']['protocol']}"
            print(f"  {each['collective']:15} {in_bytes(each['bytes']):>8} {name:12} {low:.3f} to {high:.3f} "
                  f"same bits: {each['same_bits']}")  # fmt: skip
        print(f"  failed: {row['race']['failed']}; for the launch: {row['lines']}")
    if part == "judged":
        print(f"  {json.dumps({name: each.get('reason', each) for name, each in row.items()})}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", metavar="OUT.json")
    parser.add_argument("--seconds", type=float, default=150.0)
    parser.add_argument("--backend", choices=("nccl", "gloo"), default="nccl")
    parser.add_argument("--only", choices=tuple(NEEDED_S), action="append", help="only these parts")
    args = parser.parse_args()
    if args.backend == "nccl" and count() < 2:
        sys.exit("this benchmark needs two GPUs of one host; --backend gloo rehearses it on the CPU")
    until, path = time.monotonic() + args.seconds, Path(args.out)
    record: dict[str, Any] = json.loads(path.read_text()) if path.is_file() else {"left out": {}}
    record |= made_here()
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        bench = Bench(args.backend, Path(folder), record, until)
        stack.callback(bench.ending.close)
        for part in args.only or NEEDED_S:
            act: Callable[[], dict[str, Any]] = getattr(bench, part)
            if part in record and "failed" not in record[part]:
                continue
            if args.backend == "gloo" and part == "program":
                record["left out"][part] = "tracing needs a GPU"
            elif bench.left < NEEDED_S[part]:
                record["left out"][part] = f"{bench.left:.0f} s were left, and it takes about {NEEDED_S[part]:.0f}"
            else:
                record["left out"].pop(part, None)
                try:
                    record[part] = act()
                    print(f"{part}: {bench.left:.0f} s are left", flush=True)
                    shown(part, record[part])
                except TilewrightError as error:
                    record[part] = {"failed": str(error)}
                    print(f"{part}: failed: {error}", flush=True)
            write(args.out, record)
    for part, why in record["left out"].items():
        print(f"{part}: left out: {why}")
    return int(any("failed" in record.get(part, {}) for part in NEEDED_S))


if __name__ == "__main__":
    sys.exit(main())
