"""The engine that needs no GPU: it runs launches in the Tile IR interpreter.

The launch function gets only specifications of arrays, without data. So only the kernel can compute the outputs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from tilewright.compile.compile import hints_of
from tilewright.hardware.architectures import Board
from tilewright.languages import language_of
from tilewright.records import Configuration, Failed
from tilewright.task.task import Launch, Task
from tilewright.task.tensors import Dims, scratch_of
from tilewright.tileir.read.tree import KernelEntry, Location
from tilewright.tileir.run import interpreter, launching
from tilewright.tileir.run.memory import Memory
from tilewright.tileir.run.registry import Unsupported
from tilewright.tileir.watch.exchanges import Exchange, Exchanges
from tilewright.tileir.watch.findings import Finding
from tilewright.verify.engine import ONCE, Ran, RunOptions
from tilewright.verify.images import Image, held_before

FEW_SMS = 3
"""The number of SMs that a launch function sees. A check runs on small shapes. With few SMs, each block of a persistent
kernel still has several tiles."""


class InterpreterEngine:
    """Runs the launches of one task, compiled for one GPU model. Each bytecode is read only once."""

    name = "interpreter"
    stand_in = ""

    def __init__(self, task: Task, board: Board) -> None:
        self.task = task
        self.launcher = launching.Launcher(task, replace(board, sms=FEW_SMS))

    def run(
        self, configuration: Configuration, dims: Dims, images: Mapping[str, Image], options: RunOptions = ONCE
    ) -> Ran:
        """Implements `engine.Engine.run`. Each launch draws a new order of the blocks from the seed."""
        arrays = {name: images[options.alias.get(name, name)].spec for name in images}
        runnable = self.launcher.runnable(configuration, dims, arrays)
        if isinstance(runnable, Failed):
            return Ran(failed=runnable)
        self.stand_in = runnable.stand_in
        memory, addresses = Memory(poison=options.poison), {}
        if runnable.stand_in and _reads_what_it_writes(runnable.module.entry()):
            memory.exchanges = Exchanges()
        for name, image in images.items():
            if name not in options.alias:
                written = held_before(self.task, name) is not None
                addresses[name] = memory.allocate(name, image.array, within=image.raw, written=written).address
        scratch = {each.name: launching.zeros_of(each) for each in scratch_of(runnable.arguments)}
        addresses |= {name: memory.allocate(name, zeros).address for name, zeros in scratch.items()}
        arguments, grid = runnable.bound(addresses, memory), runnable.launch.grid
        undefined: dict[Location, None] = {}
        exchanges: list[Exchanges] = []
        findings: tuple[Finding, ...] = ()
        try:
            for number in range(options.launches):
                if number:
                    memory.next_launch()
                    for zeros in scratch.values():
                        zeros[...] = 0
                    exchanges += [memory.exchanges] if memory.exchanges else []
                    memory.exchanges = memory.exchanges and Exchanges()
                seed = options.seed + number
                done = interpreter.run(
                    runnable.module, arguments, grid, memory, seed=seed, poison=options.poison,
                    changed_padding=options.changed_padding,
                )  # fmt: skip
                undefined |= dict.fromkeys(done.undefined)
                if findings := done.findings:
                    break
        except Unsupported as refused:
            return Ran(refused=f"the interpreter does not run this: {refused}")
        name = runnable.module.entry().name
        exchanges += [memory.exchanges] if memory.exchanges else []
        exchanged = self._unordered(
            runnable.launch, configuration, [each for one in exchanges for each in one.found.values()]
        )
        return Ran(
            findings, kernels=(name,) * options.launches, declared=name, undefined=tuple(undefined), exchanged=exchanged
        )

    def _unordered(self, launch: Launch, configuration: Configuration, found: Sequence[Exchange]) -> str | None:
        """Returns the first exchange between threads without a barrier in the compiled code; None if there is none."""
        if not found:
            return None
        language, hints = language_of(launch.kernel), hints_of(self.task, configuration)
        lowered = language.lower(launch, hints, configuration, self.launcher.board.arch)
        waits = None if isinstance(lowered, Failed) else language.waits(lowered)
        for each in found:
            earlier, later = ((side.how, side.place) for side in (each.earlier, each.later))
            if waits is None or not waits.between(earlier, later):
                return each.said
        return None

    def close(self) -> None:
        pass  # the engine has no process


def _reads_what_it_writes(entry: KernelEntry) -> bool:
    """Returns whether any load may access memory that the kernel writes.

    Such a load has a token, because the translator gives tokens only to such loads.
    """
    return any(op.operands.get("token") for op in entry.walk() if op.name.startswith("load"))
