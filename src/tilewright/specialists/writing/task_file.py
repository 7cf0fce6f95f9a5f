"""Generates the text of a task file: the kernels in one language, the launch, the reference, the space and the
workloads.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from textwrap import fill

from tilewright.records import Value
from tilewright.specialists.writing.expression import FLOATS, Operand, Shape, below
from tilewright.specialists.writing.forms import KernelForm


@dataclass(frozen=True)
class KernelText:
    """The text from the writer of a language: imports, kernels, body of the launch, and arguments of the space.

    serves: the condition that the dimensions must meet, or "".
    odd: the extents of a product's odd workload.
    check_needs: the needs of a check, for the heading.
    """

    imports: tuple[str, ...]
    kernels: str
    launch: str
    space: str
    serves: str = ""
    odd: tuple[int, int, int] = (1000, 519, 3001)
    check_needs: str = "no GPU"


@dataclass(frozen=True)
class ReferenceText:
    """The text of the reference in the task file.

    call: the name of the function that the task gets.
    origin: the source of the reference, for the heading.
    """

    text: str
    call: str
    imports: tuple[str, ...]
    origin: str


FILE = '''"""{about}

tilewright check {file}     is it correct? Needs {check_needs}
tilewright tune {file}      the best configuration for each workload; predicted where there is no GPU
"""

{imports}


{kernels}

def launch({parameters}, {given}):
{launch}

{reference}

task = tw.Task(
    name="{name}",
    tensors={{
{tensors}
    }},
    reference={call},
    launch=launch,
    flops=lambda {dims}: {flops},
{promises}    space=tw.Space(
{space}
    ),
    workloads={{
{workloads}
    }},
)
'''

EXTENTS = ((16384, 4096), (8, 2048, 4096), (2, 16, 2048, 4096))
"""Extents of a large workload with two, three and four axes. With one axis, it is `ONE_AXIS`."""
ONE_AXIS = 1 << 24
LONG_ROWS = 100_003
"""Number of columns of the workload whose rows do not fit into one tile."""
PRODUCT = (4096, 4096, 4096)


def literal(value: object) -> str:
    """Returns a value as a task file spells it."""
    return repr(value).replace("'", '"')


def space_text(
    constants: Mapping[str, tuple[Value, ...]], hints: Mapping[str, tuple[Value, ...]], where: Sequence[str] = ()
) -> str:
    """Returns the arguments of a space that ships the first value of each knob. ``where``: the constraints' text."""
    shipped = {name: values[0] for name, values in {**constants, **hints}.items()}
    parts = [f"constants={literal(constants)},", f"hints={literal(hints)},", f"shipped={literal(shipped)},"]
    parts += ["where=[", *(f"    {each}," for each in where), "],"] if where else []
    return "\n".join(f"        {part}" for part in parts)


def text_of(
    form: KernelForm, written: KernelText, reference: ReferenceText, name: str, file: str, dims: Mapping[str, int]
) -> str:
    """Returns the text of the task file.

    dims: the extents of the user's workload, which becomes the first workload.
    """
    computation = form.computation
    names = _dims(form)
    tensors = [*computation.inputs, *(operand for operand, _ in computation.outputs)]
    outputs = {operand.name for operand, _ in computation.outputs}
    about = f"{computation.name}, written by tilewright from {reference.origin}."
    parameters = ", ".join([*(each.name for each in tensors), *_unless_taken(names, tensors)])
    imports = "\n".join(
        (*dict.fromkeys((*sorted({*written.imports, *reference.imports}), "", "import tilewright as tw")),)
    )
    promises = [f"    independent={_tuple(_independent(form))},\n"] if _independent(form) else []
    promises += ["    special_values=True,\n"] if form.name == "element-wise" else []
    promises += [f"    serves=lambda {', '.join(names)}: {written.serves},\n"] if written.serves else []
    return FILE.format(
        about=fill(" ".join((about, *(f"Note: {note}." for note in computation.notes))), 116), file=file,
        imports=imports, kernels=written.kernels, parameters=parameters, launch=written.launch,
        given="config, hardware" if "hardware." in written.launch else "config",
        reference=reference.text, name=name, call=reference.call, dims=", ".join(names),
        tensors="\n".join(f"        {_tensor(each, each.name in outputs, _limits(form))}" for each in tensors),
        flops=_flops(form), promises="".join(promises), space=written.space, check_needs=written.check_needs,
        workloads="\n".join(
            f"        {_quoted(which)}: {{{', '.join(f'{_quoted(axis)}: {size}' for axis, size in sizes.items())}}},"
            for which, sizes in _workloads(form, names, dims, written.odd).items()
        ),
    )  # fmt: skip


def _quoted(text: str) -> str:
    return f'"{text}"'


def _dims(form: KernelForm) -> list[str]:
    shapes = [each.shape for each in form.computation.inputs]
    named = dict.fromkeys(extent for shape in shapes for extent in shape if isinstance(extent, str))
    return [*form.axes, *(axis for axis in named if axis not in form.axes)]


def _unless_taken(names: list[str], tensors: list[Operand]) -> list[str]:
    taken = {each.name for each in tensors}
    return [name for name in names if name not in taken]


def _independent(form: KernelForm) -> tuple[str, ...]:
    """Returns the axes along which the outputs do not depend on one another."""
    extents = {each.value for each in below(form.computation.results) if each.op in ("extent", "index")}
    axes = form.axes[:-1] if form.name == "row reductions" else form.axes
    return tuple(axis for axis in axes if axis not in extents)


def _flops(form: KernelForm) -> str:
    elements = " * ".join(form.axes)
    operations = form.computation.operations
    if form.name != "product of matrices":
        return f"{operations} * {elements}"
    inner = next(axis for axis in _dims(form) if axis not in form.axes)
    product = f"2 * {elements} * {inner}"
    return f"{product} + {operations} * {elements}" if operations else product


def _tuple(shape: Shape) -> str:
    inner = ", ".join(_quoted(each) if isinstance(each, str) else str(each) for each in shape)
    return f"({inner},)" if len(shape) == 1 else f"({inner})"


def _limits(form: KernelForm) -> dict[str, str]:
    """Maps the name of an integer tensor, such as class labels, to the dimension that bounds its values. The tensor is
    compared with the indices along that dimension.
    """
    found = {}
    for each in below(form.computation.results):
        places = [operand for operand in each.operands if operand.op == "index"]
        if each.op == "==" and places:
            for leaf in below(each.operands):
                if leaf.op == "input":
                    found[str(leaf.value)] = _quoted(str(places[0].value))
    return found


def _tensor(operand: Operand, is_output: bool, limits: Mapping[str, str]) -> str:
    drawn = ""
    if operand.dtype not in FLOATS:
        drawn = f", tw.integers(0, {2 if operand.dtype == 'bool' else limits.get(operand.name, 8)})"
    kind = "Output" if is_output else "Tensor"
    return f'"{operand.name}": tw.{kind}({_tuple(operand.shape)}, "{operand.dtype}"{drawn}),'


def _workloads(
    form: KernelForm, names: list[str], given: Mapping[str, int], odd_product: tuple[int, ...]
) -> dict[str, dict[str, int]]:
    """Returns workloads: the user's, with large extents, with odd extents, and with rows that do not fit into a
    tile."""
    rank = len(form.axes)
    large: tuple[int, ...]
    odd: tuple[int, ...]
    if form.name == "product of matrices":
        large, odd = PRODUCT, odd_product
    elif rank == 1:
        large, odd = (ONE_AXIS,), (100_003,)
    else:
        leading = (1,) * max(0, rank - 4)
        large = (*leading, *EXTENTS[min(rank, 4) - 2])
        odd = (*leading, *((3, 5, 7, 1000)[-rank:-2] if rank > 2 else ()), *((333,) if rank > 2 else (1000,)), 3001)
    found = {"given": dict(given)} if set(names) <= set(given) else {}
    found |= {"large": dict(zip(names, large, strict=True)), "odd": dict(zip(names, odd[: len(names)], strict=True))}
    if form.name == "row reductions":
        rows = {axis: 512 if axis == form.axes[-2:-1][0] else 1 for axis in form.axes[:-1]} if rank > 1 else {}
        found["long rows"] = {**rows, form.columns: LONG_ROWS}
    return found
