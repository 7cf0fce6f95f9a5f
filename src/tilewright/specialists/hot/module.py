"""Generates a new module for a user's program: a kernel, its launch, and a test whether the kernel supports a call."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from textwrap import indent

from tilewright.records import Value
from tilewright.specialists.hot.reference import HotReference
from tilewright.specialists.writing.expression import Operand, Shape
from tilewright.specialists.writing.writing import WrittenTask

MODULE = '''"""{about}

`takes` tells which calls the kernel computes. The function itself computes all others, as before. Written by
tilewright.
"""

{imports}

{constants}


{kernels}

def takes({parameters}):
    """Whether the kernel computes this call: contiguous tensors of these dtypes and shapes on the current GPU, at
    addresses that are multiples of 16, without gradients, autocast and torch.compile."""
    tensors = {tuple}
    if {numbers}not all(type(each) in (torch.Tensor, torch.nn.Parameter) and each.is_cuda for each in tensors):
        return False
    if torch.compiler.is_compiling() or torch.is_autocast_enabled():
        return False
    if torch.is_grad_enabled() and any(each.requires_grad for each in tensors):
        return False
    if any(each.get_device() != torch.cuda.current_device() or not each.is_contiguous() for each in tensors):
        return False
    if any(each.data_ptr() % 16 for each in tensors):
        return False
    if tuple(each.dtype for each in tensors) != {dtypes}:
        return False
    if tuple(each.ndim for each in tensors) != {ranks}:
        return False
{shapes}


def {name}({tensors}):
    """Computes one call that `takes` allows."""
{sizes}
{outputs}
    _launch({launched})
    return {results}


def _launch({launched}):
{launch}


{make}
'''

MAKE = {
    "triton": "def _launched(kernel, grid, args):\n    kernel[grid](*args{options})",
    "cutile": "def _launched(kernel, grid, args):\n    ct.launch(torch.cuda.current_stream(), grid, kernel, args)",
}
CALLS = {
    "tw.Launch(": "_launched(",
    "tw.descriptor(": "TensorDescriptor.from_tensor(",
    "hardware.sms": "_gpu().multi_processor_count",
    "hardware.sm ": "10 * _gpu().major ",
}
"""What a launch of a task calls, and what the module calls instead."""
DESCRIPTOR = "from triton.tools.tensor_descriptor import TensorDescriptor"
GPU = """


def _gpu():
    return torch.cuda.get_device_properties(torch.cuda.current_device())"""
HINTS = {
    "triton": ("num_warps", "num_stages", "num_ctas", "maxnreg"),
    "cutile": ("occupancy", "num_ctas", "num_worker_warps"),
}


def module_text(task: WrittenTask, reference: HotReference, language: str, shipped: Mapping[str, Value]) -> str:
    """Returns the text of the module. It needs torch and the kernel's language, but not Tilewright.

    shipped: the configuration with which the kernel is compiled.
    """
    computation = task.form.computation
    outputs = [operand for operand, _ in computation.outputs]
    named = [each.name for each in (*computation.inputs, *outputs)]
    sizes, first = _sizes(reference.shapes), next(iter(reference.tensors))
    hints = {each: shipped[each] for each in HINTS[language] if shipped.get(each) is not None}
    constants = {each: value for each, value in shipped.items() if f"config.{each}" in task.kernel.launch}
    launch = re.sub(r"\bconfig\.(\w+)", r"\1", task.kernel.launch).rstrip()
    for ours, theirs in CALLS.items():
        launch = launch.replace(ours, theirs)
    imports = ["import torch", *task.kernel.imports]
    imports += [DESCRIPTOR] if "TensorDescriptor" in launch else []
    needed = [each for each in reference.dims if re.search(rf"\b{each}\b", launch)]
    options = f", {', '.join(f'{each}={value!r}' for each, value in hints.items())}" if hints else ""
    tests = [f"{name} != {text}" for name, text in reference.numbers.items()]
    tensors = ", ".join(reference.tensors)
    return MODULE.format(
        about=f"{reference.source.origin} as one {language} kernel.", name=task.name,
        imports="\n".join(sorted(imports, key=_import_order)),
        constants="\n".join(f"{each} = {value!r}" for each, value in constants.items()),
        kernels=_with_hints(task.kernel.kernels, hints if language == "cutile" else {}).rstrip() + "\n",
        parameters=", ".join([*reference.tensors, *reference.values]), tensors=tensors,
        numbers="".join(f"{each} or " for each in tests),
        tuple=_tuple(reference.tensors), dtypes=_tuple(f"torch.{reference.dtypes[each]}" for each in reference.tensors),
        ranks=_tuple(str(len(reference.shapes[each])) for each in reference.tensors),
        shapes=indent(_shape_tests(reference.shapes, sizes), "    "), sizes=indent("\n".join(sizes.values()), "    "),
        outputs=indent("\n".join(_empty(each, first) for each in outputs), "    "),
        launched=", ".join([*named, *needed]), results=", ".join(each.name for each in outputs), launch=launch,
        make=MAKE[language].format(options=options) + (GPU if "_gpu()" in launch else ""),
    )  # fmt: skip


def _import_order(line: str) -> tuple[bool, str]:
    return line.startswith("from"), line


def _sizes(shapes: Mapping[str, Shape]) -> dict[str, str]:
    """Maps each dimension to the line that reads its size. Dimensions of the same tensor share a line."""
    lines: dict[str, str] = {}
    for tensor, shape in shapes.items():
        for axis, name in enumerate(shape):
            if isinstance(name, str) and name not in lines:
                lines[name] = f"{name} = {tensor}.shape[{axis}]"
    return lines


def _shape_tests(shapes: Mapping[str, Shape], sizes: Mapping[str, str]) -> str:
    """Returns the last lines of `takes`: they test that equal names have equal sizes, and that no tensor is empty."""
    tests = []
    for tensor, shape in shapes.items():
        if any(sizes.get(str(name)) != f"{name} = {tensor}.shape[{axis}]" for axis, name in enumerate(shape)):
            tests.append(f"tuple({tensor}.shape) == {_tuple(map(str, shape))}")
    tests.append(f"{' * '.join(sizes)} > 0" if sizes else "True")
    return "\n".join([*sizes.values(), f"return {' and '.join(tests)}"])


def _empty(operand: Operand, first: str) -> str:
    shape = _tuple(map(str, operand.shape))
    return f"{operand.name} = torch.empty({shape}, dtype=torch.{operand.dtype}, device={first}.device)"


def _tuple(parts: Iterable[str]) -> str:
    text = ", ".join(parts)
    return f"({text})" if ", " in text else f"({text},)"


def _with_hints(kernels: str, hints: Mapping[str, Value]) -> str:
    given = ", ".join(f"{name}={value!r}" for name, value in hints.items())
    return kernels.replace("@ct.kernel\n", f"@ct.kernel({given})\n") if given else kernels
