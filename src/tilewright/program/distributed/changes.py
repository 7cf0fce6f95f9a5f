"""Changes of data-parallel and sharded programs: how gradients are put into messages, and when parameters are gathered.

Other buckets put a gradient into another message, at another place. A ring reduces each part of a message in another
order of the ranks. So with three or more ranks, another bucket size can change bits: the change is lossy. With two
ranks each sum has two terms, and addition is commutative: the bits stay. Prefetching and views change no sum.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tilewright.program.changes.base import ChangeSite, NearMiss, ProgramChange
from tilewright.program.reading.module import Edit, NotSure, ReadModule
from tilewright.source.source_file import keywords

DDP = tuple(f"torch.nn.parallel.{name}DistributedDataParallel" for name in ("", "distributed."))
FSDP = tuple(f"torch.distributed.fsdp.{name}FullyShardedDataParallel" for name in ("", "fully_sharded_data_parallel."))
FULLY_SHARD = ("torch.distributed.fsdp.fully_shard", "torch.distributed._composable.fsdp.fully_shard")
BUCKETS_MB = (100, 50, 10)
"""Bucket sizes that are tried, the first first. torch's default is 25 MiB, after a first bucket of 1 MiB."""
FINDINGS = ("communication", "exposed-communication")
SEVERAL = (*FINDINGS, "small-messages")
REDUCED = r"(?i)all_?reduce"


class WrapperChange(ProgramChange):
    """Adds an argument to each call of a wrapper of models, unless the call has it already."""

    wrappers: tuple[str, ...]
    argument: str
    value: str

    def look(self, module: ReadModule) -> Iterator[ChangeSite | NearMiss]:
        for call in module.calls(*self.wrappers):
            if self.argument in keywords(call):
                continue
            try:
                if any(keyword.arg is None for keyword in call.keywords):
                    what = f"the arguments are in a dictionary, which may already set {self.argument}"
                    raise NotSure(what, call)
                self.check(module, call)
                edit = module.add_argument(call, f"{self.argument}={self.value}")
                yield ChangeSite(call.lineno, module.full(call.func).rpartition(".")[2], (edit,))
            except NotSure as reason:
                yield NearMiss(reason.line, reason.reason)

    def check(self, module: ReadModule, call: ast.Call) -> None:
        """Raises NotSure if the argument may be wrong for this program."""

    def present(self, module: ReadModule) -> str:
        call = next((call for call in module.calls(*self.wrappers) if self.argument in keywords(call)), None)
        return f"{module.place(call)} sets {self.argument}" if call is not None else ""


class BucketSize(WrapperChange):
    """Sets the size of the messages in which gradients are reduced."""

    wrappers, argument = DDP, "bucket_cap_mb"
    risk, findings = "lossy", SEVERAL
    absent = "the program wraps no model in DistributedDataParallel"

    def __init__(self, megabytes: int) -> None:
        self.name, self.value = f"ddp_bucket_{megabytes}_mb", str(megabytes)
        self.order = 30 + BUCKETS_MB.index(megabytes)
        how = "fewer, larger" if megabytes > 25 else "more, smaller"
        self.about = f"reduces gradients in {how} messages of {megabytes} MiB, while the backward pass goes on"
        self.ran, self.gone = ((), (REDUCED,)) if megabytes > 25 else ((REDUCED,), ())


class GradientView(WrapperChange):
    """Lets gradients be views of the messages, so that they are not copied."""

    name = "ddp_gradient_as_bucket_view"
    about = "lets gradients be views of DDP's buckets, which saves a copy of all gradients and their memory"
    wrappers, argument, value = DDP, "gradient_as_bucket_view", "True"
    findings, order, impact = FINDINGS, 20, "Low"
    gone = (r"^aten::copy_$|Memcpy DtoD|direct_copy_kernel",)
    absent = BucketSize.absent

    def check(self, module: ReadModule, call: ast.Call) -> None:
        for file in module.program:
            for node in file.file.every(ast.Attribute):
                assigned = node.attr == "grad" and isinstance(node.ctx, ast.Store)
                if assigned or node.attr == "detach_":
                    what = "replaces or detaches gradients, which must stay views of the buckets"
                    raise NotSure(f"{file.place(node)} {what}", call)


class ForwardPrefetch(WrapperChange):
    """Gathers the next layer's parameters during the forward pass of a layer (FSDP 1)."""

    name = "fsdp_forward_prefetch"
    about = "gathers the parameters of the next layer while this one computes in the forward pass"
    wrappers, argument, value = FSDP, "forward_prefetch", "True"
    findings, order = FINDINGS, 10
    absent = "the program wraps no model in FullyShardedDataParallel"


class BackwardPrefetch(ProgramChange):
    """Gathers the next layer's parameters before the gradients of a layer (FSDP 1), where this was switched off."""

    name = "fsdp_backward_prefetch"
    about = "gathers the parameters of the next layer before the gradients of this one are computed"
    findings, order = FINDINGS, 11
    absent = "the program does not switch off the prefetch of FullyShardedDataParallel, which is on by default"

    def look(self, module: ReadModule) -> Iterator[ChangeSite | NearMiss]:
        """Yields the calls that set ``backward_prefetch`` to None or to ``BACKWARD_POST``."""
        for call in module.calls(*FSDP):
            given = next((each.value for each in call.keywords if each.arg == "backward_prefetch"), None)
            if isinstance(given, ast.Constant) and given.value is None:
                prefetch = "torch.distributed.fsdp.BackwardPrefetch"
                try:
                    new = f"{module.spelled(prefetch, call)}.BACKWARD_PRE"
                except NotSure as reason:
                    yield NearMiss(reason.line, reason.reason)
                    continue
            elif isinstance(given, ast.Attribute) and given.attr == "BACKWARD_POST":
                new = f"{module.code(given.value)}.BACKWARD_PRE"
            else:
                continue
            edit = Edit(*module.span(given), new)
            yield ChangeSite(call.lineno, "FullyShardedDataParallel", (edit,), "the peak of the memory may be higher")

    def present(self, module: ReadModule) -> str:
        call = next(module.calls(*FSDP), None)
        return f"{module.place(call)}: the default is BACKWARD_PRE" if call is not None else ""


class FullyShardPrefetch(ProgramChange):
    """Gathers the next layer's parameters during the forward pass of a layer (FSDP 2)."""

    name = "fully_shard_forward_prefetch"
    about = "gathers the parameters of the next layer while this one computes, by set_modules_to_forward_prefetch"
    findings, order = FINDINGS, 12
    absent = "the program has no loop that calls fully_shard for each layer"

    def look(self, module: ReadModule) -> Iterator[ChangeSite | NearMiss]:
        if any(self.present(each) for each in module.program):
            return
        for loop in module.file.every(ast.For):
            sharded = [call for call in module.calls(*FULLY_SHARD) if loop in module.above(call)]
            if not sharded:
                continue
            try:
                yield self._site(module, loop, sharded[0])
            except NotSure as reason:
                yield NearMiss(reason.line, reason.reason)

    def _site(self, module: ReadModule, loop: ast.For, call: ast.Call) -> ChangeSite:
        first = call.args[0] if call.args else None
        if not isinstance(loop.target, ast.Name) or not isinstance(first, ast.Name) or first.id != loop.target.id:
            raise NotSure("the loop does not shard the layers that it goes through", loop)
        if not isinstance(loop.iter, (ast.Name, ast.Attribute)):
            raise NotSure("the layers of the loop are no list that can be gone through again", loop)
        if module.statement(call) not in loop.body:
            raise NotSure("the loop does not shard each layer", call)
        root = self._root(module, loop)
        layers, one, other = module.code(loop.iter), module.unused("layer"), module.unused("next_layer")
        lines = (
            f"for {one}, {other} in zip({layers}, list({layers})[1:]):",
            f"    {one}.set_modules_to_forward_prefetch([{other}])",
        )
        return ChangeSite(loop.lineno, f"layers of {layers}", (module.insert_after(root, *lines),))

    def _root(self, module: ReadModule, loop: ast.For) -> ast.stmt:
        """Returns the statement after the loop that shards the whole model. Raises NotSure if there is none."""
        block = getattr(module.parent(loop), "body", [])
        for each in block[block.index(loop) + 1 :] if loop in block else ():
            if any(module.called(node) in FULLY_SHARD for node in ast.walk(each)):
                if isinstance(each, (ast.Expr, ast.Assign)):
                    return each
                break
        raise NotSure("no fully_shard of the whole model follows the loop", loop)

    def present(self, module: ReadModule) -> str:
        named = (each for each in module.file.every(ast.Attribute) if each.attr == "set_modules_to_forward_prefetch")
        node = next(named, None)
        return f"{module.place(node)} sets the prefetch" if node is not None else ""


DISTRIBUTED_CHANGES: tuple[ProgramChange, ...] = (
    ForwardPrefetch(), BackwardPrefetch(), FullyShardPrefetch(), GradientView(), *map(BucketSize, BUCKETS_MB),
)  # fmt: skip
"""All changes, the first to try first."""
