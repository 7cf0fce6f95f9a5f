"""The task files that `tilewright new` writes: complete tasks for kinds of kernels, and tasks for existing kernels."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from textwrap import fill

from tilewright.cli.kernel_parameters import DIMENSIONS, Parameters, kernels_in
from tilewright.errors import RequestError, UnknownChoice
from tilewright.languages import language_named
from tilewright.records import Value
from tilewright.source.configurations import read
from tilewright.source.source_file import SourceFile
from tilewright.space.kinds import advise, find, template_for
from tilewright.space.knobs import is_tile

ELEMENTWISE = '''
@ct.kernel
def scale(x, y, BLOCK: ct.Constant[int]):
    """One block computes BLOCK elements."""
    tile = ct.load(x, (ct.bid(0),), (BLOCK,), padding_mode=ct.PaddingMode.ZERO)
    ct.store(y, (ct.bid(0),), tile * 2 + 1)


def launch(x, y, N, config):
    return tw.Launch(scale, (-(-N // config.BLOCK),), (x, y, config.BLOCK))


def reference(x):
    """The outputs in float64 NumPy: the kernel is correct where it agrees with this."""
    return x * 2 + 1


task = tw.Task(
    name="scale",
    tensors={"x": tw.Tensor(("N",), "float32"), "y": tw.Output(("N",), "float32")},
    reference=reference,
    launch=launch,
    flops=lambda N: 2 * N,
    space={space},
    workloads={"large": {"N": 1 << 24}, "odd": {"N": 100_003}},
)
'''

NORM = '''
@ct.kernel
def norm(x, y, BLOCK: ct.Constant[int]):
    """One block computes one row, BLOCK columns at a time: y = x / sqrt(mean(x²) + 1e-6)."""
    row, total = ct.bid(0), ct.zeros((1, BLOCK), ct.float32)
    for k in range(ct.cdiv(x.shape[1], BLOCK)):
        tile = ct.load(x, (row, k), (1, BLOCK), padding_mode=ct.PaddingMode.ZERO).astype(ct.float32)
        total = total + tile * tile
    factor = ct.rsqrt(ct.sum(total, axis=1, keepdims=True) / x.shape[1] + 1e-6)
    for k in range(ct.cdiv(x.shape[1], BLOCK)):
        tile = ct.load(x, (row, k), (1, BLOCK), padding_mode=ct.PaddingMode.ZERO).astype(ct.float32)
        ct.store(y, (row, k), (tile * factor).astype(y.dtype))


def launch(x, y, M, config):
    return tw.Launch(norm, (M,), (x, y, config.BLOCK))


def reference(x):
    """The outputs in float64 NumPy: the kernel is correct where it agrees with this."""
    return x / np.sqrt((x * x).mean(axis=1, keepdims=True) + 1e-6)


task = tw.Task(
    name="norm",
    tensors={"x": tw.Tensor(("M", "N"), "bfloat16"), "y": tw.Output(("M", "N"), "bfloat16")},
    reference=reference,
    launch=launch,
    flops=lambda M, N: 4 * M * N,
    space={space},
    workloads={"16384x4096": {"M": 16384, "N": 4096}, "odd": {"M": 1000, "N": 3000}},
)
'''

MATMUL = '''
@ct.kernel
def matmul(a, b, c, TILE_M: ct.Constant[int], TILE_N: ct.Constant[int], TILE_K: ct.Constant[int]):
    """One block computes one tile of c = a @ b."""
    total = ct.zeros((TILE_M, TILE_N), ct.float32)
    for k in range(ct.cdiv(a.shape[1], TILE_K)):
        left = ct.load(a, (ct.bid(0), k), (TILE_M, TILE_K), padding_mode=ct.PaddingMode.ZERO)
        right = ct.load(b, (k, ct.bid(1)), (TILE_K, TILE_N), padding_mode=ct.PaddingMode.ZERO)
        total = ct.mma(left, right, total)
    ct.store(c, (ct.bid(0), ct.bid(1)), total.astype(c.dtype))


def launch(a, b, c, M, N, config):
    grid = (-(-M // config.TILE_M), -(-N // config.TILE_N))
    return tw.Launch(matmul, grid, (a, b, c, config.TILE_M, config.TILE_N, config.TILE_K))


def reference(a, b):
    """The outputs in float64 NumPy: the kernel is correct where it agrees with this."""
    return a @ b


task = tw.Task(
    name="matmul",
    tensors={
        "a": tw.Tensor(("M", "K"), "bfloat16"),
        "b": tw.Tensor(("K", "N"), "bfloat16"),
        "c": tw.Output(("M", "N"), "bfloat16"),
    },
    reference=reference,
    launch=launch,
    flops=lambda M, N, K: 2 * M * N * K,
    space={space},
    workloads={"4096": {"M": 4096, "N": 4096, "K": 4096}, "odd": {"M": 1000, "N": 520, "K": 3000}},
)
'''

KERNELS = {"elementwise": ELEMENTWISE, "in place": ELEMENTWISE, "norm": NORM, "cross entropy": NORM}
"""Maps a kind of task to the kernel to start from. All other kinds start from a matrix product."""

HEADING = '''"""A task to start from, for a kernel of the kind "{kind}".

{about}

tilewright check {file}     is it correct? Needs no GPU
tilewright tune {file}      the best configuration for each workload; predicted where there is no GPU
"""

import cuda.tile as ct
{numpy}import tilewright as tw

'''


def of_kind(kind: str, arch: int, file: str) -> str:
    """Returns the text of a complete task file for ``sm_<arch>``. Raises UnknownChoice for an unknown kind."""
    name, advice = find(kind).name, advise(kind)
    text, space = KERNELS.get(name, MATMUL), advice.space(arch)
    taken = re.findall(r"(\w+): ct\.Constant", text)
    shipped = {knob: space.shipped.get(knob, 64) for knob in (*taken, *space.hints)}
    constants = {knob: space.constants.get(knob, (64,)) for knob in taken}
    lacking = [knob for knob in space.constants if knob not in taken]
    about = "Put your own kernel, reference and workloads in place of these. The space has the values of the template "
    about += f'"{template_for(kind)}", which others tuned for this kind on sm_{arch}. It is {advice.reason}.'
    if lacking:
        about += f" Others also tune {', '.join(lacking)}, which this kernel does not have."
    if name not in KERNELS and "matmul" not in name:
        about += " The kernel is a plain matmul; `tilewright example` lists kernels of other kinds."
    numpy = "import numpy as np\n\n" if "np." in text else "\n"
    heading = HEADING.format(kind=name, about=fill(about, 116), file=file, numpy=numpy)
    return heading + text.replace("{space}", _space(constants, space.hints, shipped))


def _space(
    constants: Mapping[str, Sequence[Value]], hints: Mapping[str, Sequence[Value]], shipped: Mapping[str, Value]
) -> str:
    given = {"constants": constants, "hints": hints, "shipped": shipped}
    lines = (f"        {name}={dict(values)!r},\n".replace("'", '"') for name, values in given.items() if values)
    return f"tw.Space(\n{''.join(lines)}    )"


# A task for a kernel that exists ------------------------------------------------------------------

FILL_IN = "FILL IN"
ROUTES: dict[str, tuple[Value, ...]] = {"route": ("ptx", "tileir")}
"""The hints that every task with a Triton kernel lists."""

BESIDE = '''"""A task for the kernel `{kernel}` of {file}.

Complete the lines that say FILL IN, then: tilewright check {task}
"""

import tilewright as tw

{module} = tw.editable("{file}")


def launch({arrays}, {dims}, config):
    grid = ({grid},)  # FILL IN: the grid as your program launches it
    return tw.Launch({module}.{kernel}, grid, ({arguments},)){numbers}


def reference({inputs}):
    raise NotImplementedError("FILL IN: the outputs in float64 NumPy, computed from the inputs")


task = tw.Task(
    name="{kernel}",
    tensors={{  # FILL IN: shapes and dtypes
{tensors}
    }},
    reference=reference,
    launch=launch,
    flops=lambda {dims}: {elements},  # FILL IN: the operations of one launch
    space={space},{unknown}
    workloads={{"first": {{{workload}}}}},  # FILL IN: the sizes that matter
    edit=("{file}", __file__),  # optimize may change the kernel, and the launch and the space here
)
'''


def for_kernel(file: SourceFile, wanted: str | None, task: Path) -> str:
    """Returns the text of a task file for the kernel ``wanted`` of ``file``. For None, uses the first kernel.

    task: path of the task file.
    Raises RequestError if ``file`` has no such kernel, or if ``wanted`` is None and the kernels are in two languages.
    """
    language, parameters = _chosen(file, wanted)
    listed = _listed(file.path, parameters.kernel, language)
    known = [hint.name for hint in language_named(language).hints]
    hints = dict(ROUTES) if language == "triton" else {}
    hints |= {name: values for name, values in listed.items() if name in known}
    constants = {name: listed.get(name) or ((128, 64, 256) if is_tile(name) else (1,)) for name in parameters.constants}
    unknown = [name for name in constants if name not in listed]
    shapes = {name: DIMENSIONS[-rank:] for name, rank in parameters.arrays.items()}
    dims = [name for name in DIMENSIONS if any(name in shape for shape in shapes.values())] or ["N"]
    tensors = []
    for name, shape in shapes.items():
        sizes = ", ".join(f'"{size}"' for size in shape) + ("," if len(shape) == 1 else "")
        kind = "Output" if name in parameters.outputs else "Tensor"
        tensors.append(f'        "{name}": tw.{kind}(({sizes}), "float32"),')
    tile = next(filter(is_tile, constants), None)
    values = {**{name: f"config.{name}" for name in constants}, **parameters.numbers}
    return BESIDE.format(
        kernel=parameters.kernel, file=file.path.name, task=task.name, module=re.sub(r"\W", "_", file.path.stem),
        arrays=", ".join(shapes), dims=", ".join(dims), elements=" * ".join(dims),
        inputs=", ".join(name for name in shapes if name not in parameters.outputs),
        grid=f"-(-{tile[-1] if tile[-1] in dims else dims[0]} // config.{tile})" if tile else "1",
        arguments=", ".join(values.get(name, name) for name in parameters.order),
        numbers=f"  # {FILL_IN}: {', '.join(parameters.numbers)}" if parameters.numbers else "",
        tensors="\n".join(tensors),
        space=_space(constants, hints, {name: values[0] for name, values in (constants | hints).items()}),
        unknown=f"  # {FILL_IN}: the values of {', '.join(unknown)}" if unknown else "",
        workload=", ".join(f'"{name}": 1024' for name in dims),
    )  # fmt: skip


def _chosen(file: SourceFile, wanted: str | None) -> tuple[str, Parameters]:
    by_name = kernels_in(file)
    if not by_name:
        raise RequestError(
            f"{file.path} holds neither a task nor a cuTile or Triton kernel; name a file that does not exist yet"
        )
    if wanted is not None and wanted not in by_name:
        raise UnknownChoice(f"kernel in {file.path}", wanted, by_name)
    if wanted is None and len({language for language, _ in by_name.values()}) > 1:
        listed = ", ".join(f"{name} ({language})" for name, (language, _) in by_name.items())
        raise RequestError(f"{file.path} holds kernels of two languages: {listed}; name one with --kernel")
    return by_name[wanted] if wanted else next(iter(by_name.values()))


def _listed(path: Path, kernel: str, language: str) -> dict[str, tuple[Value, ...]]:
    """Returns the values that the file lists for each knob of the kernel. The file is not executed."""
    try:
        lists = read(path, "triton" if language == "triton" else "cutile")
    except RequestError:
        return {}
    named = [listed for listed in lists if listed.name == kernel]
    chosen = named or (() if language == "triton" else lists)  # a list in cuTile does not name its kernel
    values: dict[str, dict[Value, None]] = {}
    for written in chosen[0].configurations if chosen else ():
        for name, value in written.fields:
            if isinstance(value, int | float | bool | str | None):
                values.setdefault(name, {})[value] = None
    return {name: tuple(listed) for name, listed in values.items()}
