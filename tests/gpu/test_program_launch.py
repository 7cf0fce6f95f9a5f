"""A program that is launched through the driver is the launch that cuda-tile makes itself."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from tilewright.compile.compile import Unit, compile_all, hints_of  # noqa: E402
from tilewright.errors import CompilerMissing  # noqa: E402
from tilewright.hardware.gpu import detect  # noqa: E402
from tilewright.languages import language_of  # noqa: E402
from tilewright.launching.driver import ProgramLaunch  # noqa: E402
from tilewright.records import Configuration  # noqa: E402
from tilewright.task.loading import load_task  # noqa: E402
from tilewright.worker.process.buffers import Buffers  # noqa: E402
from tilewright.worker.process.torch_backend import TorchBackend  # noqa: E402
from tilewright.worker.programs import program_of  # noqa: E402

pytestmark = pytest.mark.gpu
EXAMPLES = Path(__file__).parents[2] / "examples"
TASKS = [str(path) for path in (*sorted(EXAMPLES.glob("*.py")), *sorted((EXAMPLES / "naive").glob("*.py")))]


class Spy:
    """Records what cuda-tile passes to the driver: grid, block and shared memory of each launch."""

    def __init__(self) -> None:
        self.launches: list[tuple[int, ...]] = []

    def __call__(self, kernel: int, *numbers: int) -> None:
        *shape, _stream = numbers
        self.launches.append(tuple(shape))


@pytest.mark.parametrize("file", TASKS, ids=lambda file: Path(file).stem)
def test_the_driver_launch_is_cuda_tiles_own(file: str) -> None:
    """The same bytes in every output on the smallest workload, for three configurations of a cuTile kernel; the same
    grid, block and shared memory on the driver's side."""
    from cuda.tile import _cext

    try:
        task = load_task(file)
    except CompilerMissing as missing:
        pytest.skip(str(missing))
    gpu = detect()
    assert gpu is not None
    workload = min(task.selected(None), key=lambda one: task.work(one.dims))
    buffers = Buffers(task, workload.dims, TorchBackend("cuda"))
    buffers.draw(7)

    def is_cutile(config: Configuration) -> bool:
        return language_of(task.launched(config, workload.dims, buffers.tensors(), gpu.board).kernel).name == "cutile"

    configs = [config for config in task.space.configurations(gpu.board.sm, workload.dims) if is_cutile(config)]
    if not configs:
        pytest.skip("no cuTile kernel")
    chosen = [configs[0], configs[len(configs) // 2], configs[-1]]
    stream = torch.cuda.current_stream().cuda_stream
    for compiled in compile_all(task, [Unit(workload, config, gpu.board) for config in chosen], seconds=60):
        program = program_of(task, compiled)
        results, spy = [], Spy()
        launch = task.launched(compiled.unit.configuration, workload.dims, buffers.tensors(), gpu.board)
        own = language_of(launch.kernel).runner(launch, hints_of(task, compiled.unit.configuration))
        _cext._spy_on_cuLaunchKernel_begin(spy)
        try:
            tensors = buffers.tensors()
            for run in (own, ProgramLaunch(program, tensors), ProgramLaunch(program, tensors, own_code=True)):
                buffers.poison(0xFF)
                run(stream)
                torch.cuda.synchronize()
                results.append({name: buffers.all[name].middle.clone() for name in task.outputs})
        finally:
            _cext._spy_on_cuLaunchKernel_end()
        mine, *theirs = results
        for other in theirs:
            assert all(torch.equal(mine[name], other[name]) for name in task.outputs), compiled.unit.configuration
        assert spy.launches == [(*(*program.grid, 1, 1)[:3], 1, 1, 1, 0)], "only cuda-tile's own launch is seen"
