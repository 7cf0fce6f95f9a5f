"""Recording launches of Triton kernels. Without a GPU each fails in Triton's driver, after it was recorded."""

from __future__ import annotations

import random
import re
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

triton = pytest.importorskip("triton")
torch = pytest.importorskip("torch")

from tests.runtime import captured_triton_kernels as kernels  # noqa: E402

from tilewright.errors import RequestError  # noqa: E402
from tilewright.hardware.architectures import default_board  # noqa: E402
from tilewright.optimize.loop import optimize  # noqa: E402
from tilewright.optimize.options import Options  # noqa: E402
from tilewright.runtime.capture import capture, triton_runtime  # noqa: E402
from tilewright.runtime.capture import record as capture_record  # noqa: E402
from tilewright.runtime.capture.of_triton import CapturedTriton  # noqa: E402
from tilewright.runtime.capture.record import Recorded  # noqa: E402
from tilewright.runtime.capture.recorder import Recorder  # noqa: E402
from tilewright.runtime.capture.task_file import task_text  # noqa: E402
from tilewright.runtime.capture.trying import NotAsCaptured, verdicts  # noqa: E402
from tilewright.task.loading import editable, load_task  # noqa: E402
from tilewright.task.task import Task  # noqa: E402
from tilewright.tune.tune import tune  # noqa: E402
from tilewright.verify.check import check  # noqa: E402
from tilewright.verify.data import drawn  # noqa: E402
from tilewright.verify.tolerance import try_reference  # noqa: E402

tl = triton.language
pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="launches on the CPU's tensors end in the driver")
X = torch.zeros(8, 125)


def blocks(meta: dict[str, Any]) -> tuple[int, ...]:
    return (triton.cdiv(meta["n"], meta["BLOCK"]),)


def recorded(folder: Path, launches: Callable[[], object]) -> tuple[Recorded, ...]:
    with capture.capturing(folder / "c.json"):
        launches()
    return capture_record.read(folder / "c.json").launches()


def fails(kernel: Any, grid: Any, *args: Any, **options: Any) -> None:
    with pytest.raises(RuntimeError, match="0 active drivers"):
        kernel[grid](*args, **options)


# What is recorded ---------------------------------------------------------------------------------------


def test_a_launch_is_recorded_before_the_driver_is_needed(tmp_path: Path) -> None:
    before = triton.JITFunction.run

    def launches() -> None:
        for _ in range(3):
            fails(kernels.added, blocks, X, X.t(), torch.empty_like(X), n=1000, num_warps=8, maxnreg=None)

    (one,) = recorded(tmp_path, launches)
    launch = one.launch
    assert (one.count, one.failed, one.error[:30]) == (3, 3, "RuntimeError: 0 active drivers")
    assert (launch.language, launch.kernel, launch.grid, launch.problem) == ("triton", "added", (16,), "")
    assert [argument.kind for argument in launch.arguments] == ["array", "array", "array", "scalar", "constant"]
    assert [array.spec.strides for array in launch.arrays()] == [(125, 1), (1, 125), (125, 1)]
    assert [array.storage for array in launch.arrays()] == [0, 0, 2]
    assert launch.constants == {"BLOCK": 64}, "the parameter's default"
    assert launch.hints == {"num_warps": 8} and launch.autotuned is None
    assert triton.JITFunction.run is before


def test_what_an_autotuner_chose_is_recorded_and_its_trials_are_not(tmp_path: Path) -> None:
    kernels.scaled.cache.clear()

    def launches() -> None:
        for factor in (2.0, 3.0):
            fails(kernels.scaled, blocks, X, torch.empty_like(X), X.numel(), factor)

    (one,) = recorded(tmp_path, launches)
    launch = one.launch
    assert (one.count, launch.grid) == (2, (16,)), "four configurations were tried, twice each, and are not counted"
    assert launch.constants == {"EVEN": False, "BLOCK": 64}
    assert (launch.hints["num_warps"], launch.hints["num_stages"]) == (4, 3)
    assert launch.autotuned is not None
    chosen = [(each["BLOCK"], each["num_warps"]) for each in launch.autotuned.configurations]
    assert chosen == [(64, 4), (64, 8), (128, 4), (128, 8)]
    assert (launch.autotuned.keys, launch.autotuned.restored, launch.autotuned.zeroed) == (("n",), ("y",), ())


def test_kinds_differ_in_grid_options_and_constants(tmp_path: Path) -> None:
    def launches() -> None:
        for grid, more in (((16,), {}), ((16,), {"num_warps": 8}), ((8,), {}), ((16,), {"BLOCK": 128}), ((16,), {})):
            fails(kernels.added, grid, X, X, X, 1000, **more)

    assert sorted(one.count for one in recorded(tmp_path, launches)) == [1, 1, 1, 2]


def test_a_kernel_that_is_only_compiled_is_not_recorded(tmp_path: Path) -> None:
    def launches() -> None:
        with suppress(RuntimeError):
            kernels.added.warmup(X, X, X, 1000, grid=(1,))

    assert recorded(tmp_path, launches) == ()


def test_a_wrong_call_is_left_to_triton(tmp_path: Path) -> None:
    """Neither the missing argument nor a grid that fails is our error."""

    def launches() -> None:
        fails(kernels.added, (1,), X)
        fails(kernels.added, lambda meta: meta["nothing"], X, X, X, 1000)

    assert recorded(tmp_path, launches) == ()


def test_a_descriptor_of_the_host(tmp_path: Path) -> None:
    descriptor = pytest.importorskip("triton.tools.tensor_descriptor").TensorDescriptor
    source, target = (descriptor.from_tensor(torch.zeros(64, 32), [16, 32]) for _ in range(2))
    (one,) = recorded(tmp_path, lambda: fails(kernels.moved, (4, 1), source, target, 16, 32))
    first = one.launch.arguments[0]
    assert (first.kind, first.block_shape, first.padding) == ("descriptor", (16, 32), "zero")
    assert [array.spec.shape for array in one.launch.arrays()] == [(64, 32), (64, 32)]


def test_gluon_is_recorded_and_no_task(tmp_path: Path) -> None:
    gluon = pytest.importorskip("triton.experimental.gluon")
    kernel = gluon.jit(kernels.added.fn)
    (one,) = recorded(tmp_path, lambda: fails(kernel, (16,), X, X, X, 1000))
    assert "gluon" in one.launch.problem and "@triton.jit" in one.launch.problem


# How a launch passes through ----------------------------------------------------------------------------


class Launches:
    """What reaches triton beneath the hook, on a machine where no launch can."""

    def __init__(self) -> None:
        self.seen: list[tuple[Any, ...]] = []

    def run(self, *given: Any, **keywords: Any) -> str:
        self.seen.append((given, keywords))
        return "compiled kernel"


@pytest.mark.parametrize("exact", [1, 10**9])
def test_all_launches_pass_and_are_counted(tmp_path: Path, exact: int) -> None:
    """Whether they are examined or not. A grid that is a function is called once for each examined launch."""
    beneath, grids = Launches(), []
    recorder = Recorder(tmp_path / "c.json", exact=exact, random=random.Random(1))
    run = CapturedTriton().hook(beneath.run, recorder)

    def grid(meta: dict[str, Any]) -> tuple[int, ...]:
        grids.append(meta["n"])
        return blocks(meta)

    for _ in range(3000):
        assert run(kernels.added, X, X, X, n=1000, grid=grid, warmup=False, num_warps=4) == "compiled kernel"
    (one,) = recorder.recorded().launches
    assert (one.count, len(beneath.seen)) == (3000, 3000)
    assert (one.count - one.estimated == 3000) == (exact > 1)
    assert grids == [1000] * (one.count - one.estimated)
    for given, keywords in beneath.seen:
        assert given == (kernels.added, X, X, X) and {"n": 1000, "num_warps": 4}.items() <= keywords.items()


def test_the_methods_of_this_triton_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """If not, a launch is not recorded: look what is new in `JITFunction.run`, then change RUN."""
    assert triton_runtime.unknown_shape() == ""
    monkeypatch.setattr(triton.JITFunction, "run", lambda self, *args, launcher: None)
    with pytest.raises(RequestError, match=r"takes \(self, args, launcher\); known: triton 3.6 to 3.9"):
        CapturedTriton().start(Recorder(Path("c.json")))


PROGRAM = """
import triton, triton.language as tl, torch

@triton.jit
def doubled(x, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x + at, tl.load(x + at, mask=at < n) * 2, mask=at < n)

for _ in range(3):
    try:
        doubled[(4,)](torch.zeros(100), 100, BLOCK=32)
    except RuntimeError:
        pass  # no driver here
import sys
print("cuda.tile" in sys.modules)
"""


def test_a_program_is_recorded_without_importing_cuda_tile(tmp_path: Path) -> None:
    from tilewright.cli.run import environment

    (tmp_path / "program.py").write_text(PROGRAM)
    variables = environment({"PYTHONPATH": str(Path(__file__).parents[3] / "src")})
    variables = {"PYTHONPATH": variables["PYTHONPATH"], "TILEWRIGHT_CAPTURE": str(tmp_path / "c.json"), "HOME": "/tmp"}
    shown = subprocess.run([sys.executable, "program.py"], cwd=tmp_path, env=variables, capture_output=True, text=True)
    assert (shown.stdout, shown.stderr) == ("False\n", "")
    (one,) = capture_record.merged(tmp_path / "c.json").launches()
    assert (one.launch.kernel, one.count, one.launch.module) == ("doubled", 3, "__main__")


# From a record to a task --------------------------------------------------------------------------------


def task_of(folder: Path, launches: Callable[[], object]) -> Task:
    (one,) = recorded(folder, launches)
    (folder / "captured.py").write_text(task_text(one, folder))
    return load_task(str(folder / "captured.py"))


def is_correct(task: Task, **knobs: Any) -> bool:
    (verdict,) = check(task, engine="interpreter", arch="sm_90", configurations=[knobs], quick=True)
    assert verdict.verdict in ("correct", "correct on reduced shapes"), verdict.reason
    return True


def launch_scaled() -> None:
    kernels.scaled.cache.clear()
    fails(kernels.scaled, blocks, X, torch.empty_like(X), X.numel(), 2.0)


def launch_matmul(dtype: Any = torch.bfloat16) -> None:
    a, b, c = torch.zeros(96, 64, dtype=dtype), torch.zeros(80, 64, dtype=dtype).t(), torch.zeros(96, 80, dtype=dtype)
    strides = (*a.stride(), *b.stride(), *c.stride())
    tiles = {"BLOCK_M": 32, "BLOCK_N": 16, "BLOCK_K": 32, "GROUP": 2, "ACC": tl.float32}
    grid = lambda meta: (triton.cdiv(96, meta["BLOCK_M"]) * triton.cdiv(80, meta["BLOCK_N"]),)  # noqa: E731
    fails(kernels.matmul, grid, a, b, c, 96, 80, 64, *strides, **tiles, num_warps=8)


@pytest.mark.long
def test_an_autotuners_configurations_become_the_space(tmp_path: Path) -> None:
    """On both routes: Tile IR ignores ``num_warps``. Heuristics compute their values for each configuration."""
    task = task_of(tmp_path, launch_scaled)
    (workload,) = task.selected(None)
    tried = task.space.configurations(90, workload.dims)
    assert [(each["BLOCK"], each["route"], each["num_warps"]) for each in tried] == [
        (64, "ptx", 4), (64, "tileir", None), (64, "ptx", 8), (128, "ptx", 4), (128, "tileir", None), (128, "ptx", 8),
    ]  # fmt: skip
    launch = task.launched(tried[3], workload.dims, task.arrays(workload.dims), default_board("sm_90"))
    assert (launch.grid, launch.args[2:]) == ((8,), (1000, 2.0))
    assert type(launch.kernel) is type(kernels.scaled), "the autotuner, whose heuristics are called"
    text = (tmp_path / "captured.py").read_text()
    assert "The program's autotuner searches again for other values of n." in text
    assert "Before a trial it restores y." in text
    for config in tried[:2]:
        assert is_correct(task, **config)
    (found,) = tune(task, arch="sm_90", seed=0).workloads
    assert found.best is not None and found.best.configuration in tried


def test_a_configuration_that_computes_something_else_is_left_out(tmp_path: Path) -> None:
    kernels.summed.cache.clear()
    x = torch.zeros(12, 100)
    task = task_of(tmp_path, lambda: fails(kernels.summed, (12,), x, torch.zeros(12), 100, 100))
    assert {each["BLOCK"] for each in task.space.configurations(90, task.selected(None)[0].dims)} == {128}
    text = (tmp_path / "captured.py").read_text()
    assert "1 of the 2 configurations of its autotuner are left out: they compute something else here." in text


def test_an_autotuner_of_a_library(tmp_path: Path) -> None:
    task = task_of(tmp_path, lambda: fails(kernels.doubled, blocks, X, torch.empty_like(X), 1000))
    tried = task.space.configurations(90, task.selected(None)[0].dims)
    assert [(each["BLOCK"], each["route"]) for each in tried] == [(128, "ptx"), (128, "tileir")]


@pytest.mark.long
def test_a_matmul_with_strides(tmp_path: Path) -> None:
    """Strides and extents are dimensions, tile sizes are knobs, the matrix is transposed and the dtype a constant."""
    task = task_of(tmp_path, launch_matmul)
    (workload,) = task.selected(None)
    assert dict(task.space.shipped) == {
        "BLOCK_M": 32, "BLOCK_N": 16, "BLOCK_K": 32, "num_warps": 8, "route": "ptx", "num_stages": None,
    }  # fmt: skip
    small = {name: extent // 2 for name, extent in workload.dims.items()}
    launch = task.launched(task.space.shipped.replace(BLOCK_M=16), small, task.arrays(small), default_board("sm_90"))
    assert launch.grid == (3 * 3,)
    assert (launch.args[1].shape, launch.args[1].strides) == ((32, 40), (1, 32))
    assert launch.args[3:12] == (48, 40, 32, 32, 1, 1, 32, 40, 1)
    assert task.work(workload.dims) == pytest.approx(2 * 96 * 80 * 64)
    assert is_correct(task) and is_correct(task, route="tileir", num_warps=None)


def test_products_of_float32_may_round_as_captured(tmp_path: Path) -> None:
    """`tl.dot` rounds float32 to tf32: the allowed error is that of the captured kernel."""
    task = task_of(tmp_path, lambda: launch_matmul(torch.float32))
    assert len(task.space.constants) == 3 and is_correct(task)


def test_what_a_kernel_updates_is_an_input_too(tmp_path: Path) -> None:
    x = torch.zeros(4, 5, 60)
    task = task_of(tmp_path, lambda: fails(kernels.normed, (20,), x, torch.zeros(1), 60, 60, BLOCK=64))
    assert {name: task.outputs[name].updates for name in task.outputs} == {"x": "x_before", "total": "total_before"}
    assert not task.deterministic
    assert is_correct(task)


def test_a_task_with_descriptors_of_the_host(tmp_path: Path) -> None:
    descriptor = pytest.importorskip("triton.tools.tensor_descriptor").TensorDescriptor
    given = [descriptor.from_tensor(torch.zeros(64, 32), [16, 32]) for _ in range(2)]
    task = task_of(tmp_path, lambda: fails(kernels.moved, (4, 1), *given, 16, 32))
    assert "tw.descriptor(source, [config.BLOCK_M, D0], 'zero')" in (tmp_path / "captured.py").read_text()
    assert is_correct(task, route="tileir")


def whole_numbers(*numbers: int) -> torch.Tensor:
    return torch.tensor(numbers, dtype=torch.int32)


def test_integers_that_are_valid_only_together_stay(tmp_path: Path) -> None:
    """Drawn apart, tiles of two blocks would overlap, and a correct kernel would be called incorrect."""
    x, y = torch.zeros(40, 16), torch.empty(40, 16)
    starts, groups, ends = whole_numbers(0, 14, 22, 31), whole_numbers(0, 1, 2, 3), whole_numbers(14, 22, 31, 40)
    task = task_of(tmp_path, lambda: fails(kernels.of_groups, (4,), x, starts, groups, ends, y, WIDTH=16, ROWS=16))
    assert drawn(task, dict(task.selected(None)[0].dims), "large", 3)["starts"].tolist() == [0, 14, 22, 31]
    assert "integer arrays are valid only together" in (tmp_path / "captured.py").read_text()
    assert is_correct(task)


def test_a_task_needs_inputs_that_can_change(tmp_path: Path) -> None:
    """A part of the output keeps its values, so the task draws these, too. Numbers that never change prove nothing."""
    task = task_of(tmp_path, lambda: fails(kernels.placed, (2,), whole_numbers(3, 9, 20), whole_numbers(*range(32)),
                                           GROUPS=2, ROWS=16))  # fmt: skip
    assert [output.updates for output in task.outputs.values()] == ["y_before"]
    assert is_correct(task)
    text = re.sub(
        r"tw\.(offsets|integers)\(.*like=(\([\d, ]*\))\)", r"tw.fixed(\2)", (tmp_path / "captured.py").read_text()
    )
    (tmp_path / "fixed.py").write_text(text)
    with pytest.raises(NotAsCaptured, match="all its inputs are integers that are valid only together"):
        verdicts(load_task(str(tmp_path / "fixed.py")), (), is_sure=True)


def test_a_kernel_that_reads_nothing_is_no_task(tmp_path: Path) -> None:
    (one,) = recorded(tmp_path, lambda: fails(kernels.places, (2,), whole_numbers(*range(32)), 32, BLOCK=16))
    with pytest.raises(RequestError, match="places reads no array, so its outputs depend on nothing that a check"):
        task_text(one, tmp_path)


def test_a_tuple_is_recorded_and_becomes_a_task(tmp_path: Path) -> None:
    (one,) = recorded(tmp_path, lambda: fails(kernels.pairs, (16,), (X, X), torch.empty_like(X), 1000, BLOCK=64))
    assert [argument.kind for argument in one.launch.arguments[:2]] == ["tuple", "array"]
    assert [argument.name for argument in one.launch.arrays()] == ["xs[0]", "xs[1]", "y"]
    task = task_of(tmp_path, lambda: fails(kernels.pairs, (16,), (X, X), torch.empty_like(X), 1000, BLOCK=64))
    assert list(task.inputs) == ["xs_0"], "one array twice"
    assert is_correct(task)


def test_inputs_that_are_all_integers_are_drawn_anew(tmp_path: Path) -> None:
    """Not only the captured numbers again, with which no output depends on its inputs."""
    x = whole_numbers(*(n * n % 7 for n in range(30)))
    task = task_of(tmp_path, lambda: fails(kernels.counted, (1,), x, whole_numbers(*[0] * 8), 30, BLOCK=32, KINDS=8))
    assert is_correct(task)
    try_reference(task, task.selected(None)[0].dims)


def test_an_output_that_is_filled_in_part_has_contents_before(tmp_path: Path) -> None:
    labels, loss = whole_numbers(3, -100, 0, 49, -100), torch.zeros(5)
    task = task_of(tmp_path, lambda: fails(kernels.losses, (5,), torch.zeros(5, 50), labels, loss, 50, 50, BLOCK=64))
    assert task.outputs["loss"].updates == "loss_before"
    assert is_correct(task)


def test_a_grid_that_two_rules_explain_follows_the_right_one(tmp_path: Path) -> None:
    """Two groups of 120 are two blocks of 128, too, but at other extents they are not."""
    x = torch.zeros(3, 2, 120)
    task = task_of(tmp_path, lambda: fails(kernels.centred, (3, 2), torch.empty_like(x), x, 240, 120, 120, BLOCK=128))
    (workload,) = task.selected(None)
    small = {name: 40 if extent == 120 else extent for name, extent in workload.dims.items()}
    launch = task.launched(task.space.shipped, small, task.arrays(small), default_board("sm_90"))
    assert launch.grid == (3, 2)
    assert is_correct(task)


def test_an_option_that_no_task_has_is_named(tmp_path: Path) -> None:
    (one,) = recorded(tmp_path, lambda: fails(kernels.added, (16,), X, X, X, 1000, enable_fp_fusion="no"))
    with pytest.raises(RequestError, match="added is launched with the option 'enable_fp_fusion'"):
        task_text(one, tmp_path)


def test_a_changed_kernel_is_refused(tmp_path: Path) -> None:
    (one,) = recorded(tmp_path, lambda: fails(kernels.added, (16,), X, X, X, 1000))
    with pytest.raises(RequestError, match="'added' .* has changed since it was launched"):
        task_text(replace(one, launch=replace(one.launch, source="another")), tmp_path)


@pytest.mark.long
def test_optimize_takes_a_captured_matmul_to_descriptors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a GPU: the captured launch is the baseline, and the playbook's change of its kernel is verified."""
    monkeypatch.setenv("TILEWRIGHT_HOME", str(tmp_path / "home"))
    own = Path(kernels.__file__).read_text()
    (tmp_path / "kernels_of_a_program.py").write_text(own)
    program = editable(tmp_path / "kernels_of_a_program.py")
    monkeypatch.setattr(kernels, "matmul", program.matmul)
    task_of(tmp_path, launch_matmul)
    for words in (("init", "-q"), ("add", "."), ("-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "x")):
        subprocess.run(["git", "-C", str(tmp_path), *words], check=True)
    found = optimize(str(tmp_path / "captured.py"), arch="sm_90", options=Options(only=("descriptors",)), seed=0)
    assert [one.correctness for one in found.iterations][:2] == ["PASS", "PASS"], found.iterations
