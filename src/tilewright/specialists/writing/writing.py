"""Generates the text of a task file from a reference function."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from tilewright.errors import UnknownChoice
from tilewright.specialists.writing import cutedsl, cutedsl_product, cutile, cutile_product, triton, triton_product
from tilewright.specialists.writing.expression import FLOATS, Computation, OutsideForms
from tilewright.specialists.writing.forms import KernelForm, Product, form_of, product_of
from tilewright.specialists.writing.named import OPERATIONS, operation_in
from tilewright.specialists.writing.reading import operands, read
from tilewright.specialists.writing.shipped import with_tiles
from tilewright.specialists.writing.task_file import KernelText, ReferenceText, text_of

Rows = Callable[[KernelForm, str, bool], KernelText]
Products = Callable[[KernelForm, str, Product], KernelText]
WRITERS: Mapping[str, tuple[Rows, Products]] = {
    "cutile": (cutile.write, cutile_product.write_product),
    "triton": (triton.write, triton_product.write_product),
    "cutedsl": (cutedsl.write, cutedsl_product.write_product),
}
"""Two writers for each language: one for element-wise and row computations, one for matrix products."""


@dataclass(frozen=True)
class WritingAttempt:
    """One way to write a kernel.

    smallest: tiles first have the smallest sizes of the space.
    plain: one kernel for all shapes, with small tiles.
    """

    name: str
    smallest: bool = False
    plain: bool = False


ATTEMPTS = (
    WritingAttempt("as usual"),
    WritingAttempt("in the smallest tiles", smallest=True),
    WritingAttempt("as one plain kernel", smallest=True, plain=True),
)
"""The attempts in order. An attempt is made only if the check found the earlier attempts incorrect."""


@dataclass(frozen=True)
class ReferenceSource:
    """A reference: a function in the text of a Python file. ``origin``: its source, in words."""

    text: str
    function: str
    origin: str


@dataclass(frozen=True)
class WrittenTask:
    """The text of a task file, its form, and notes for the author of the reference.

    name: the name of the task.
    kernel, computation: the parts from which the file is made.
    """

    name: str
    text: str
    form: KernelForm
    kernel: KernelText
    notes: tuple[str, ...] = field(default=())


def source_of(question: str) -> ReferenceSource:
    """Returns the reference of the operation that a question names. Raises OutsideForms, which lists the operations."""
    operation = operation_in(question)
    if operation is None:
        known = ", ".join(sorted(each.name for each in OPERATIONS))
        raise OutsideForms(f"'{question}' names no operation of the table; known: {known}; or give FILE.py:FUNCTION")
    return ReferenceSource(
        f"import numpy as np\n\n{operation.source}", operation.name, f"the named operation '{operation.name}'"
    )


def write_task(
    source: ReferenceSource, language: str, file: str, *, dtype: str = "bfloat16",
    dims: Mapping[str, int] | None = None, outputs: Sequence[str] = (), attempt: WritingAttempt = ATTEMPTS[0],
) -> WrittenTask:  # fmt: skip
    """Generates the text of a task file from a reference, with a kernel in one language.

    file: the name of the task file, for its heading.
    dtype: the dtype of float tensors whose annotation has none.
    dims: the extents of the user's workload, if known.
    outputs: the dtypes of the outputs; by default the dtype of the first float tensor.
    Raises OutsideForms for a reference without a supported form, and UnknownChoice for an unknown language.
    """
    if language not in WRITERS:
        raise UnknownChoice("language", language, WRITERS)
    name = source.function if source.function != "reference" else "kernel"
    kernel, (write, write_product) = f"{name}_kernel", WRITERS[language]
    try:
        computation = read(source.text, source.function, dtype, source.origin)
        form = form_of(_with_dtypes(computation, outputs))
        is_product = form.name == "product of matrices"
        written = write_product(form, kernel, product_of(form)) if is_product else write(form, kernel, attempt.plain)
    except OutsideForms as error:
        what = f"'{source.function}' is outside the forms that are written, and needs a proposer"
        raise OutsideForms(f"{what}: {error}") from None
    text = text_of(form, written, reference_of(source, computation), name, file, dims or {})
    if attempt.smallest:
        text = with_tiles(text, _half_of_smallest if is_product and attempt.plain else min)
    return WrittenTask(name, text, form, written, form.computation.notes)


def _half_of_smallest(values: Sequence[int]) -> int:
    return min(values) // 2 if min(values) > 16 else min(values)


def _with_dtypes(computation: Computation, dtypes: Sequence[str]) -> Computation:
    """Returns the computation with other dtypes of its outputs; unchanged if ``dtypes`` is empty."""
    if not dtypes:
        return computation
    if len(dtypes) != len(computation.outputs) or not set(dtypes) <= set(FLOATS):
        wanted = f"{len(computation.outputs)} of {', '.join(FLOATS)}"
        raise OutsideForms(f"outputs of {', '.join(dtypes)}; the kernel has {wanted}")
    pairs = zip(computation.outputs, dtypes, strict=True)
    return replace(
        computation, outputs=tuple((replace(operand, dtype=dtype), each) for (operand, each), dtype in pairs)
    )


def reference_of(source: ReferenceSource, computation: Computation) -> ReferenceText:
    """Returns the user's own function, with the parts of its file that it needs. A function over torch gets float64
    tensors."""
    module = ast.parse(source.text)
    functions = {node.name: node for node in module.body if isinstance(node, ast.FunctionDef)}
    known: dict[str, ast.FunctionDef | ast.Assign] = dict(functions)
    for each in module.body:
        if isinstance(each, ast.Assign) and isinstance(each.targets[0], ast.Name):
            known[each.targets[0].id] = each
    needed, open_ = set[str](), [source.function]
    while open_:
        name = open_.pop()
        if name in known and name not in needed:
            needed.add(name)
            open_ += [each.id for each in ast.walk(known[name]) if isinstance(each, ast.Name)]
    kept = [known[name] for name in needed]
    used = {each.id for node in kept for each in ast.walk(node) if isinstance(each, ast.Name)}
    imports = [
        ast.unparse(node)
        for node in module.body
        if isinstance(node, ast.Import | ast.ImportFrom)
        and {(alias.asname or alias.name).split(".")[0] for alias in node.names} & used
    ]
    parts = [ast.get_source_segment(source.text, node) or "" for node in sorted(kept, key=lambda each: each.lineno)]
    text = "\n\n\n".join(part for part in parts) + "\n"
    text = re.sub(r"(?m)^(\w+ = .*)\n\n\n(?=\w+ = )", r"\1\n", text)
    if not any("torch" in line for line in imports):
        return ReferenceText(text, source.function, tuple(imports), source.origin)
    names = ", ".join(each.name for each in operands(functions[source.function], "bfloat16"))
    text += TORCH.format(names=names, function=source.function)
    return ReferenceText(text, "in_float64", (*imports, "import torch"), source.origin)


TORCH = '''

def in_float64({names}):
    """The reference on NumPy arrays."""
    results = {function}(*(torch.from_numpy(array) for array in ({names},)))
    return tuple(each.numpy() for each in results) if isinstance(results, tuple) else results.numpy()
'''
