"""Removes debugging aids that were left in: anomaly detection, blocking launches, and caches that a loop empties."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tilewright.program.changes.base import ChangeSite, NearMiss, ProgramChange
from tilewright.program.reading.flow import block_of
from tilewright.program.reading.host_reads import in_loop
from tilewright.program.reading.module import NotSure, ReadModule

EMPTIED = ("torch.cuda.empty_cache", "gc.collect")
SWITCHES = ("torch.autograd.set_detect_anomaly",)
BLOCKING = "CUDA_LAUNCH_BLOCKING"


class DebuggingOff(ProgramChange):
    name = "debugging_off"
    about = "removes debugging aids, and calls that free GPU memory in each step although the next step needs it again"
    words = ("empty_cache", "empty cache", "gc.collect", "detect_anomaly", "detect anomal*", "anomaly detection",
             "cuda_launch_blocking", "launch blocking", "debug* mode")  # fmt: skip
    findings = ("host-late", "idle", "host-sync", "launch-calls")
    order = 24
    absent = "the program has no debugging aids, and empties no cache in a loop"

    def look(self, module: ReadModule) -> Iterator[ChangeSite | NearMiss]:
        for statement in module.file.every(ast.stmt):
            what = _left_in(module, statement)
            if not what:
                continue
            try:
                block, gone = block_of(module, statement), statement
                parent = module.parent(statement)
                if len(block) == 1:
                    if (
                        not isinstance(parent, ast.If)
                        or parent.orelse
                        or "is_available" not in module.code(parent.test)
                    ):
                        raise NotSure("the statement is alone in its block", statement)
                    gone = parent
                if len(block_of(module, gone)) == 1:
                    raise NotSure("the statement is alone in its block", statement)
                yield ChangeSite(statement.lineno, what, (module.delete(gone),))
            except NotSure as reason:
                yield NearMiss(reason.line, reason.reason)


def _left_in(module: ReadModule, statement: ast.stmt) -> str:
    """Returns a name for a statement that only helps debugging or frees memory; empty for other statements."""
    match statement:
        case ast.Expr(value=ast.Call(func=func, args=args)):
            if module.full(func) in EMPTIED and in_loop(module, statement) is not None:
                return module.full(func)
            on = not (args and isinstance(args[0], ast.Constant) and args[0].value is False)
            return module.full(func) if module.full(func) in SWITCHES and on else ""
        case ast.Assign(targets=[ast.Subscript(slice=ast.Constant(value=name))], value=ast.Constant(value=value)):
            return BLOCKING if name == BLOCKING and value == "1" else ""
    return ""


CHANGE = DebuggingOff()
