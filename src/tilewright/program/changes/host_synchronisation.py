"""Values that the host reads in each step → read once, after the loop.

    total += loss.item()            total += loss.detach().double()
    losses.append(loss.item())      losses.append(loss.detach().clone())
    mean = 0.9 * mean + 0.1 * loss.item()       … + 0.1 * loss.detach().double()
    torch.cuda.synchronize()        (deleted)

A sum of floats is kept in float64, like Python's floats, so its value does not change. A value that decides a branch,
or that each step prints, is not changed.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tilewright.program.changes.base import ChangeSite, NearMiss, ProgramChange
from tilewright.program.reading.flow import block_of
from tilewright.program.reading.host_reads import HostRead, host_read, in_loop, kind_of
from tilewright.program.reading.later import accumulated, appended, appended_elsewhere, averaged
from tilewright.program.reading.module import NotSure, ReadModule

CLOCKS = ("time.time", "time.perf_counter", "time.perf_counter_ns", "time.monotonic", "torch.cuda.Event")
STREAMS = ("torch.cuda.Stream", "torch.cuda.stream", "torch.cuda.ExternalStream")
REPLAYED = ("torch.cuda.CUDAGraph", "torch.cuda.make_graphed_callables")


class HostSynchronisation(ProgramChange):
    name = "host_synchronisation"
    about = "keeps values on the GPU and reads them once after the loop, so that the host does not wait in each step"
    words = ("host sync*", "synchroni* loop", ".item()", "item() call*", "item call*", "remove* synchroni*",
             "sync point", "cpu gpu sync*", "wait* host", "blocking read*")  # fmt: skip
    findings = ("host-sync", "host-late", "idle")
    gone = (r"aten::item|_local_scalar_dense|cudaStreamSynchronize|cudaDeviceSynchronize",)
    order = 20
    absent = "no loop of the program waits for a value of the GPU"

    def look(self, module: ReadModule) -> Iterator[ChangeSite | NearMiss]:
        if graph := next(module.calls(*REPLAYED), None):
            yield NearMiss(graph.lineno, "a CUDA graph writes its results to the same tensors in each replay")
            return
        for call in module.file.every(ast.Call):
            loop = in_loop(module, call)
            if loop is None:
                continue
            try:
                if module.full(call.func) == "torch.cuda.synchronize":
                    yield _synchronisation(module, call, loop)
                elif (read := host_read(module, call)) is not None:
                    yield _site(module, read, loop)
            except NotSure as reason:
                yield NearMiss(reason.line, reason.reason)


def _synchronisation(module: ReadModule, call: ast.Call, loop: ast.stmt) -> ChangeSite:
    statement = module.statement(call)
    if any(module.full(node) in CLOCKS for node in module.file.nodes):
        raise NotSure("the program measures times, and needs the wait for them", call)
    if any(each.arg == "non_blocking" for each in module.file.every(ast.keyword)) or any(
        module.full(node) in STREAMS for node in module.file.nodes
    ):
        raise NotSure("a non-blocking copy or a stream may need the call", call)
    if not isinstance(statement, ast.Expr) or len(block_of(module, statement)) < 2:
        raise NotSure("the call is not a statement of its own in a block with others", call)
    return ChangeSite(call.lineno, "synchronize", (module.delete(statement),))


def _site(module: ReadModule, read: HostRead, loop: ast.stmt) -> ChangeSite:
    statement = module.statement(read.call)
    match statement:
        case ast.AugAssign(target=ast.Name() as name, op=ast.Add()) if read.tail != "tolist()":
            kind = kind_of(module, read.tensor, loop)
            return ChangeSite(read.call.lineno, f"sum {name.id}", accumulated(module, read, statement, loop, kind))
        case ast.Assign(targets=[ast.Name() as name]) if any(
            isinstance(node, ast.Name) and node.id == name.id for node in ast.walk(statement.value)
        ):
            edits = averaged(module, read, statement, name, loop)
            return ChangeSite(read.call.lineno, f"mean {name.id}", edits)
        case ast.Expr(value=ast.Call(func=ast.Attribute(value=ast.Name() as name, attr="append"), args=[value])) if (
            value is read.call
        ):
            return ChangeSite(read.call.lineno, f"list {name.id}", appended(module, read, name, loop))
        case ast.Expr(
            value=ast.Call(
                func=ast.Attribute(value=(ast.Attribute() | ast.Subscript()) as kept, attr="append"), args=[value]
            )
        ) if value is read.call:
            edits = appended_elsewhere(module, read, kept, loop)
            return ChangeSite(read.call.lineno, f"list {module.code(kept)}", edits)
    if read.tail != "item()":
        raise NotSure(f"{module.code(read.call)} is used at once, not collected", read.call)
    tests = (each.test for each in module.above(read.call) if isinstance(each, (ast.If, ast.While)))
    if any(_inside(module, read.call, test) for test in tests):
        raise NotSure(f"{module.code(read.call)} decides a branch in each step", read.call)
    raise NotSure(f"{module.code(read.call)} is used at once, not summed or collected", read.call)


def _inside(module: ReadModule, node: ast.AST, whole: ast.AST) -> bool:
    return node is whole or any(each is whole for each in module.above(node))


CHANGE = HostSynchronisation()
