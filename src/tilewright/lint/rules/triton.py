"""Rules about the code of Triton kernels: block pointers, 32-bit offsets, extents of tiles."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from tilewright.lint.rule import LintFinding, Rule
from tilewright.lint.triton_offsets import Offsets
from tilewright.source.source_file import SourceFile, argument, names, own, parameters
from tilewright.source.triton import TritonKernel, kernels, launches_of, operation

DESCRIPTOR = re.compile("make_tensor_desc|TensorDescriptor|tensor_descriptor")
BLOCK_POINTER = ("make_block_ptr", "advance")
OTHER_TRITON = re.compile("ascend|npu")
"""Finds packages for Ascend by their names. The Triton for Ascend still has block pointers."""


class BlockPointer(Rule):
    """The kernel uses block pointers, which Triton no longer has.

    Triton 3.9 does not compile a kernel with tl.make_block_ptr or tl.advance. There is one finding for each function.
    Files that import packages for Ascend are skipped, because the Triton for Ascend has block pointers. So are calls
    under a constant of the kernel, if the file has descriptors as well: Triton does not compile the other branch.
    Fix: make a tensor descriptor with tl.make_tensor_descriptor, and load with its offsets.
    Sources: Triton 3.9: language/core.py.
    """

    def findings(self, file: SourceFile) -> Iterator[LintFinding]:
        if not any(name in file.text for name in BLOCK_POINTER):
            return
        for kernel in kernels(file).values():
            calls = [call for call in own(kernel.node, ast.Call) if operation(file, call) in BLOCK_POINTER]
            if calls and not _is_one_of_two_ways(file, kernel, calls) and not _is_for_ascend(file):
                several = f" ({len(calls)} calls)" if len(calls) > 1 else ""
                removed = f"{operation(file, calls[0])} was removed in Triton 3.9{several}"
                yield self.at(file, calls[0], f"{removed}; {kernel.node.name} needs tl.make_tensor_descriptor")


def _is_for_ascend(file: SourceFile) -> bool:
    return any(map(OTHER_TRITON.search, file.imports.values()))


def _is_one_of_two_ways(file: SourceFile, kernel: TritonKernel, calls: list[ast.Call]) -> bool:
    """Returns whether a constant chooses between the block pointers and tensor descriptors."""
    if not DESCRIPTOR.search(file.text):
        return False
    arms = ([up.test for up, _ in file.within(call) if isinstance(up, ast.If)] for call in calls)
    return all(any(names(test) and names(test) <= kernel.constants for test in tests) for tests in arms)


class NarrowOffset(Rule):
    """The offset of a row is computed in 32 bits.

    Program ids, and integer arguments of the launch below 2**31, are int32 in Triton 3.9. Their product wraps for
    tensors of more than 2**31 elements (4 GiB in bf16), and the kernel then reads or writes at wrong addresses. There
    is one finding for each function. The text does not show how large a tensor may become: of 50 findings in packages
    from PyPI, two readers found 25 worth mending. So the rule is off unless selected.
    Fix: widen one factor before the product: `row.to(tl.int64) * stride`.
    Sources: Triton 3.9: language/core.py.
    """

    by_default = False

    def findings(self, file: SourceFile) -> Iterator[LintFinding]:
        for kernel in kernels(file).values():
            pointers: dict[ast.BinOp, list[str]] = {}
            for name, product in Offsets(file, kernel).narrow():
                pointers.setdefault(product, []).append(name)
            if pointers:
                product, reached = max(
                    pointers.items(), key=lambda pair: ("stride" in ast.unparse(pair[0]), len(pair[1]))
                )
                others = sum(map(len, pointers.values())) - len(reached)
                also = f", and {others} other offset{'s' * (others > 1)}" if others else ""
                what = f"{ast.unparse(product)}, an offset of {' and '.join(reached)}{also}, is computed in 32 bits"
                yield self.at(file, product, f"{what}; use .to(tl.int64) before the product")


class ExtentNotConstant(Rule):
    """The extent of a tile is a parameter that is not annotated as tl.constexpr.

    Triton 3.9 raises ValueError when it compiles the kernel: arange's arguments must be of type tl.constexpr.
    Fix: annotate the parameter with tl.constexpr.
    Sources: Triton 3.9: language/semantic.py.
    """

    def findings(self, file: SourceFile) -> Iterator[LintFinding]:
        for kernel in kernels(file).values():
            ends = list(self._in(file, kernel))
            if ends and (kernel.tuner is not None or launches_of(file, kernel)):
                yield from ends  # other functions may get constants from their callers

    def _in(self, file: SourceFile, kernel: TritonKernel) -> Iterator[LintFinding]:
        plain = {one.arg for one in parameters(kernel.node) if one.annotation is None}
        for call in own(kernel.node, ast.Call):
            end = argument(call, 1, "end") if operation(file, call) == "arange" else None
            if isinstance(end, ast.Name) and end.id in plain:
                bindings = file.bindings(end.id, end)
                if [binding.kind for binding in bindings] == ["parameter"]:
                    yield self.at(file, end, f"{end.id} is the end of tl.arange; annotate it as {end.id}: tl.constexpr")


RULES = (BlockPointer("TW607"), NarrowOffset("TW608", "warning"), ExtentNotConstant("TW609"))
