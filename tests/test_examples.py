"""The examples: what they ship compiles everywhere, and their references are right."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from tilewright.compile.compile import Unit, compile_all
from tilewright.hardware.architectures import default_board
from tilewright.records import Built, MachineCode
from tilewright.task.loading import load_task
from tilewright.task.task import Task
from tilewright.task.tensors import Dims, Distribution
from tilewright.verify import tolerance as verify
from tilewright.verify.check import check_on
from tilewright.verify.interpreted import InterpreterEngine
from tilewright.verify.planning import Scope
from tilewright.verify.schedule import Equipment

EXAMPLES = Path(__file__).parent.parent / "examples"
NAMES = ("matmul", "rms_norm", "rope", "fmha", "swiglu")
PLAIN = tuple(
    f"naive/{name}"
    for name in ("rms_norm", "matmul", "matmul_fp32", "softmax", "attention", "rope", "layer_norm", "dual_gemm")
)
"""Kernels as a newcomer writes them: what `tilewright optimize` starts from."""
ARCHITECTURES = ("sm_80", "sm_90", "sm_100", "sm_120")
TENSOR_PATH = {"sm_80": "HMMA", "sm_90": "HGMMA", "sm_100": "UTCMMA", "sm_120": "HMMA"}
"""Of bf16 products: mma.sync, wgmma and tcgen05; consumer Blackwell has only the first."""
PRODUCTS = ("matmul", "fmha", "naive/matmul", "naive/attention", "naive/dual_gemm")

Arrays = Mapping[str, np.ndarray]
Formula = Callable[[Arrays, Dims], np.ndarray]


@cache
def example(name: str) -> Task:
    return load_task(str(EXAMPLES / f"{name}.py"))


def drawn(task: Task, dims: Dims, seed: int) -> dict[str, np.ndarray]:
    """Inputs as the task describes them, in float64."""
    rng = np.random.default_rng(seed)

    def draw(shape: tuple[int, ...], how: Distribution) -> np.ndarray:
        return rng.normal(how.a, how.b, shape) if how.kind == "normal" else rng.uniform(how.a, how.b, shape)

    shapes = task.arrays(dims)
    return {name: draw(shapes[name].shape, spec.distribution) for name, spec in task.inputs.items()}


def test_these_are_all_the_examples() -> None:
    assert {path.stem for path in EXAMPLES.glob("*.py")} == {*NAMES, "several_languages", "cute_gemm"}
    assert {f"naive/{path.stem}" for path in EXAMPLES.glob("naive/*.py")} == set(PLAIN)


@pytest.mark.parametrize("name", NAMES)
def test_the_space_is_worth_a_search(name: str) -> None:
    task = example(name)
    assert task.name == name
    assert task.edit == (f"{name}.py",)
    assert len(task.workloads) >= 4
    for workload, dims in task.workloads.items():
        tried = task.space.configurations(90, dims)
        assert len(tried) >= 20, workload
        assert tried[0] == task.space.shipped


@pytest.mark.parametrize("name", PLAIN)
def test_a_plain_kernel_has_no_space_yet(name: str) -> None:
    """Only what it ships: finding more is the optimiser's work."""
    task = example(name)
    assert task.name == name.replace("/", "_")
    assert task.edit == (f"{Path(name).name}.py",)
    assert not task.space.hints
    for dims in task.workloads.values():
        assert task.space.configurations(90, dims) == (task.space.shipped,)


@pytest.mark.parametrize("name", [*NAMES, *PLAIN])
def test_every_configuration_launches_on_specifications(name: str) -> None:
    """On every architecture and workload: the grid is legal, and so are the arguments' names."""
    task = example(name)
    for arch in ARCHITECTURES:
        board = default_board(arch)
        for dims in task.workloads.values():
            arrays = task.arrays(dims)
            for config in task.space.configurations(int(arch.removeprefix("sm_")), dims):
                assert task.launched(config, dims, arrays, board).args


# References -------------------------------------------------------------------------------------------


def matmul(arrays: Arrays, dims: Dims) -> np.ndarray:
    a, b = arrays["a"], arrays["b"]
    return np.array([[sum(x * y for x, y in zip(row, column, strict=True)) for column in b.T] for row in a])


def rms_norm(arrays: Arrays, dims: Dims) -> np.ndarray:
    rows = [row / np.sqrt(np.dot(row, row) / row.size + 1e-6) for row in arrays["x"]]
    return np.stack(rows) * arrays["weight"]


def rope(arrays: Arrays, dims: Dims) -> np.ndarray:
    """As a product of complex numbers."""
    half = int(dims["D"]) // 2  # type: ignore[arg-type]
    x = arrays["x"][..., :half] + 1j * arrays["x"][..., half:]
    turned = x * (arrays["cosine"] + 1j * arrays["sine"])
    return np.concatenate([turned.real, turned.imag], axis=-1)


def fmha(arrays: Arrays, dims: Dims) -> np.ndarray:
    """One query at a time."""
    q, k, v = arrays["q"], arrays["k"], arrays["v"]
    out = np.zeros_like(q)
    for b, h, s in np.ndindex(q.shape[:3]):
        last = s + 1 if dims["causal"] else q.shape[2]
        score = [q[b, h, s] @ key / q.shape[3] ** 0.5 for key in k[b, h, :last]]
        weight = np.exp(score) / np.exp(score).sum()
        out[b, h, s] = sum(w * value for w, value in zip(weight, v[b, h, :last], strict=True))
    return out


def swiglu(arrays: Arrays, dims: Dims) -> np.ndarray:
    """With the other formula of the sigmoid."""
    gate = arrays["gate"]
    return gate * (1 + np.tanh(gate / 2)) / 2 * arrays["up"]


def softmax(arrays: Arrays, dims: Dims) -> np.ndarray:
    """As one over the sum of the other weights relative to this one."""
    x = arrays["x"]
    return 1 / np.exp(x[:, None, :] - x[:, :, None]).sum(axis=2)


def layer_norm(arrays: Arrays, dims: Dims) -> np.ndarray:
    rows = [(row - np.average(row)) / np.sqrt(np.var(row) + 1e-5) for row in arrays["x"]]
    return np.stack(rows) * arrays["weight"] + arrays["bias"]


def dual_gemm(arrays: Arrays, dims: Dims) -> np.ndarray:
    gated, raised = (np.einsum("mk,kn->mn", arrays["x"], arrays[name]) for name in ("gate", "up"))
    return swiglu({"gate": gated, "up": raised}, dims)


ATTENTION = ({"B": 2, "H": 2, "S": 9, "D": 4, "causal": True}, {"B": 1, "H": 2, "S": 6, "D": 8, "causal": False})
SMALL = [
    ("matmul", matmul, {"M": 5, "N": 7, "K": 11}),
    ("rms_norm", rms_norm, {"M": 3, "N": 17}),
    ("rope", rope, {"B": 2, "H": 3, "S": 5, "D": 8}),
    *(("fmha", fmha, dims) for dims in ATTENTION),
    ("swiglu", swiglu, {"M": 4, "N": 9}),
    ("naive/rms_norm", rms_norm, {"M": 3, "N": 17}),
    ("naive/matmul", matmul, {"M": 5, "N": 7, "K": 11}),
    ("naive/matmul_fp32", matmul, {"M": 5, "N": 7, "K": 11}),
    ("naive/softmax", softmax, {"M": 3, "N": 13}),
    *(("naive/attention", fmha, dims) for dims in ATTENTION),
    ("naive/rope", rope, {"B": 2, "H": 3, "S": 5, "D": 8}),
    ("naive/layer_norm", layer_norm, {"M": 3, "N": 17}),
    ("naive/dual_gemm", dual_gemm, {"M": 5, "N": 7, "K": 11}),
]


def test_every_example_has_a_formula() -> None:
    assert {name for name, _, _ in SMALL} == {*NAMES, *PLAIN}


@pytest.mark.parametrize(("name", "formula", "dims"), SMALL, ids=lambda value: value if isinstance(value, str) else "")
def test_the_reference_is_right(name: str, formula: Formula, dims: Dims) -> None:
    task = example(name)
    outputs = []
    for seed in (0, 1):
        inputs = drawn(task, dims, seed)
        outputs.append(verify.reference_outputs(task, dims, inputs))  # checks the shapes
        (output,) = outputs[-1].values()
        np.testing.assert_allclose(output, formula(inputs, dims), rtol=1e-12, atol=1e-12)
    assert verify.degenerate(*outputs) is None


@pytest.mark.parametrize("name", [*NAMES, *PLAIN])
def test_independent_dimensions_are_independent(name: str) -> None:
    """A slice of the inputs gives the slice of the output: large outputs are checked slice by slice."""
    task = example(name)
    dims = next(dims for given, _, dims in SMALL if given == name)
    inputs = drawn(task, dims, 2)
    (whole,) = verify.reference_outputs(task, dims, inputs).values()
    (output,) = task.outputs.values()
    for dimension in task.independent:
        part = verify.Slice({dimension: (0, int(dims[dimension]) - 1)})  # type: ignore[arg-type]
        cut = {n: taken(array, task.tensors[n].shape, part) for n, array in inputs.items()}
        (got,) = verify.reference_outputs(task, verify.sliced_dims(dims, part), cut).values()
        np.testing.assert_allclose(got, taken(whole, output.shape, part), rtol=1e-12, atol=1e-12)


def taken(array: np.ndarray, shape: tuple[str | int, ...], part: verify.Slice) -> np.ndarray:
    """The slice of one array."""
    for axis, indices in verify.axes_of(shape, part).items():
        array = array.take(indices, axis)
    return array


# On the interpreter -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PLAIN)
def test_a_plain_kernel_is_right(name: str) -> None:
    """On two tiles an axis and on ragged ones; `tilewright check` tries more."""
    task = example(name)
    verdict = check_on(task, Equipment(InterpreterEngine(task, default_board("sm_90"))), Scope(quick=True))
    assert verdict.verdict.startswith("correct"), verdict.reason


# Machine code -----------------------------------------------------------------------------------------


DATA_CENTER = ("sm_90", "sm_100")


@pytest.mark.parametrize(
    ("name", "archs"),
    [
        ("matmul", ARCHITECTURES),
        *((name, DATA_CENTER) for name in (*NAMES[1:], *PLAIN)),
        *(pytest.param(name, ("sm_80", "sm_120"), marks=pytest.mark.long) for name in NAMES[1:]),
    ],
)
def test_the_shipped_configuration_compiles_everywhere(name: str, archs: tuple[str, ...]) -> None:
    task = example(name)
    units = [Unit(task.selected(None)[0], task.space.shipped, default_board(arch)) for arch in archs]
    for arch, compiled in zip(archs, compile_all(task, units, seconds=60), strict=True):
        assert isinstance(compiled.built, Built), compiled.built
        assert isinstance(compiled.code, MachineCode), compiled.code
        assert f"sm_{compiled.code.sm}" == arch
        assert compiled.code.tensor_path == (TENSOR_PATH[arch] if name in PRODUCTS else "none"), arch
