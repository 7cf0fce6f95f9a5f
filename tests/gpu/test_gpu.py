"""What only a GPU can show: signatures, the cache, verdicts on real kernels, races, hangs, crashes."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from tilewright.executors.local import Local
from tilewright.hardware.gpu import detect
from tilewright.ledger.tunings import TuneLedger
from tilewright.race.rules import Policy
from tilewright.task.loading import load_task, where_is
from tilewright.tune.as_json import to_json
from tilewright.tune.tune import tune
from tilewright.worker.messages import CheckOutputs, Configured, PrepareInputs
from tilewright.worker.session import Session

HERE = Path(__file__).parent
EXPLOITS = HERE / "exploit_tasks.py"
EXAMPLES = HERE.parent.parent / "examples"

SHAPES = [
    (4096, 4096),
    (4095, 4097),
    (1, 128),
    (128, 1),
    (1, 1),
    (16, 8),
    (8, 24),
    (1000, 3001),
    (3, 5, 7),
    (2, 8, 16, 64),
]
DTYPES = ("bfloat16", "float32", "float8_e4m3fn", "int32", "float16", "int8")


@pytest.mark.parametrize("dtype", DTYPES)
def test_specifications_give_the_signature_of_real_tensors(dtype: str) -> None:
    """A cubin built from specifications is the one a launch asks for (cutile-facts 5.3)."""
    import torch

    from tilewright.languages.cutile.cutile import signature_of
    from tilewright.task.tensors import ArraySpec

    kernel = load_task(str(EXAMPLES / "swiglu.py")).launch.__globals__["swiglu"]
    for shape in SHAPES:
        spec = ArraySpec("x", shape, dtype)
        real = torch.empty(shape, dtype=getattr(torch, dtype), device="cuda")
        args = [spec, spec, spec, 1, 512, True]
        tensors = [real, torch.empty_like(real), torch.empty_like(real), 1, 512, True]
        assert signature_of(kernel, args).symbol == signature_of(kernel, tensors).symbol


def views(real: Any) -> Iterator[Any]:
    """Of a tensor with at least two axes: transposed, sliced, stepped, broadcast, misaligned."""
    yield real.mT
    yield real[..., 1:]
    yield real[..., :-1]
    yield real[1:]
    yield real[..., ::2]
    yield real[:1]
    yield real[:1].expand(4, *real.shape[1:])
    yield real.permute(*reversed(range(real.ndim)))
    yield real.reshape(-1)[1:]
    yield real.reshape(-1)[16:]


@pytest.mark.parametrize("dtype", [*DTYPES, "bool", "float64", "float8_e5m2"])
def test_specifications_of_views_give_the_signature_of_real_views(dtype: str) -> None:
    """Strides, broadcasts and addresses, as cuda-tile's own `from_kernel_args` sees them (trust.md 8)."""
    import torch

    from tilewright.languages.cutile.cutile import signature_of
    from tilewright.task.tensors import ArraySpec

    kernel = load_task(str(EXAMPLES / "swiglu.py")).launch.__globals__["swiglu"]
    for shape in [(64, 48), (33, 65), (16, 1), (4, 8, 32), (3, 5, 7)]:
        for view in views(torch.zeros(shape, dtype=torch.uint8, device="cuda").to(getattr(torch, dtype))):
            if not view.numel():
                continue
            spec = ArraySpec("x", tuple(view.shape), dtype, view.stride(), view.data_ptr() % 256)
            ours = signature_of(kernel, [spec, spec, spec, 1, 512, True]).symbol
            theirs = signature_of(kernel, [view, view, view, 1, 512, True]).symbol
            assert ours == theirs, (shape, view.shape, view.stride(), view.data_ptr() % 256)


COUNTING = """
import sys
starts = []
def watch(event, args):
    if event == "subprocess.Popen" and "tileiras" in str(args[0]) + str(args[1][0]):
        command = [str(part) for part in args[1]]
        if "--version" not in command and not any("probe" in part for part in command):
            starts.append(command)
sys.addaudithook(watch)
from cuda.tile import _compile
front_end, lowered = _compile.hir2ir, []
_compile.hir2ir = lambda *given: (lowered.append(given), front_end(*given))[1]
from tilewright.languages.cutile import private
if sys.argv.pop(1) == "disk":
    private.launch_with = lambda find: None
import torch
from tilewright.compile.compile import Unit, compile_all, hints_of, remember
from tilewright.errors import CompilerMissing
from tilewright.hardware.architectures import board_for_gpu
from tilewright.executors.local import Local
from tilewright.hardware.gpu import detect
from tilewright.worker.process.buffers import Buffers
from tilewright.worker.process.torch_backend import TorchBackend
from tilewright.languages import language_of
from tilewright.task.loading import load_task
counts = {}
gpu = detect()
board = board_for_gpu(gpu.name, gpu.sms, gpu.memory_bytes, arch=gpu.arch)
for name in sys.argv[1:]:
    try:
        task = load_task(name)
    except CompilerMissing:  # of CuTe DSL
        continue
    for workload in task.selected(None):
        buffers = Buffers(task, workload.dims, TorchBackend("cuda"))
        buffers.draw(0)
        every = task.space.configurations(90, workload.dims)
        kernels = [task.launched(config, workload.dims, buffers.tensors(), board).kernel for config in every]
        # only cuda-tile's own launch is watched
        configs = [one for one, kernel in zip(every, kernels, strict=True) if language_of(kernel).name == "cutile"][:3]
        compiled = compile_all(task, [Unit(workload, config, board) for config in configs])
        assert remember(task, compiled) == len(configs), "not every cubin could be put into the cache"
        before, lowered_before = len(starts), len(lowered)
        for config in configs:
            launch = task.launched(config, workload.dims, buffers.tensors(), board)
            language_of(launch.kernel).runner(launch, hints_of(task, config))(torch.cuda.current_stream().cuda_stream)
        torch.cuda.synchronize()
        counts[task.name + "/" + workload.name] = (before, len(starts) - before, len(lowered) - lowered_before)
        del buffers
import json
print(json.dumps(counts))
"""


@pytest.mark.parametrize("where", ["memory", "disk"])
def test_the_launch_after_compiling_compiles_nothing(where: str, tmp_path: Path) -> None:
    """Counts the starts of tileiras, in every example and workload: shapes of 1 and odd strides too. If the cubin is in
    the memory of the process, the front end does not run either."""
    done = subprocess.run(
        [sys.executable, "-c", COUNTING, where, *map(str, sorted(EXAMPLES.glob("*.py")))],
        capture_output=True, text=True, timeout=300,
        env={**__import__("os").environ, "CUDA_TILE_CACHE_DIR": str(tmp_path)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    counts = json.loads(done.stdout.splitlines()[-1])
    assert max(before for before, _, _ in counts.values()) > 0
    assert {name: after for name, (_, after, _) in counts.items() if after} == {}
    lowered = [name for name, (_, _, again) in counts.items() if again]
    assert bool(lowered) == (where == "disk"), lowered


@pytest.fixture(scope="module")
def verdicts() -> dict[str, dict]:
    task = load_task(f"{EXPLOITS}:silent")
    found = {}
    with Session(where_is(task)) as session:
        assert session.run(PrepareInputs("even", 5), silence=120).answer
        for config in task.space.configurations(90, {"N": 65536}):
            outcome = session.run(CheckOutputs(Configured(config)))
            assert outcome.answer is not None, outcome
            found[str(config["KERNEL"])] = asdict(outcome.answer.checked)
    return found


def test_a_correct_kernel_passes(verdicts: dict[str, dict]) -> None:
    assert verdicts["double"]["verdict"] == "correct", verdicts["double"]


@pytest.mark.parametrize(
    ("kernel", "word"),
    [("nothing", "'y'"), ("zeros", "allowed error"), ("identity", "allowed error"), ("coarse", "allowed error"),
     ("half", "'y'"), ("overrun", "outside the buffer"), ("spoil", "changed its input")],
)  # fmt: skip
def test_a_cheating_kernel_is_rejected(verdicts: dict[str, dict], kernel: str, word: str) -> None:
    """trust.md 1, 2, 3, 4, 9, 10: a no-op after a correct run, zeros, a copy, lower precision, half the
    work, a write outside, a spoilt input."""
    assert verdicts[kernel]["verdict"] == "incorrect"
    assert word in verdicts[kernel]["reason"]


def test_a_crash_and_a_hang_are_survived() -> None:
    """trust.md 14, 29: the worker dies twice; the run ends with both named and the good one raced."""
    task, session = load_task(f"{EXPLOITS}:deadly"), Local()
    session.silence = 5.0
    result = tune(task, policy=Policy(max_rounds=60), seed=3, executor=session).workloads[0]
    status = {str(c.configuration["KERNEL"]): (c.status, c.reason) for c in result.candidates}
    assert status["double"][0] == "raced"
    assert status["crash"][0] == "failed"
    assert "illegal memory access" in status["crash"][1] or "CUDA" in status["crash"][1]
    assert status["hang"][0] == "failed"
    assert "hangs" in status["hang"][1]
    assert result.best is not None and result.best.configuration["KERNEL"] == "double"


def test_tune_end_to_end(tmp_path: Path) -> None:
    """rms_norm on a small workload: measured, verified, stored, and read back."""
    task = load_task(str(EXAMPLES / "rms_norm.py"))
    with TuneLedger(tmp_path / "ledger.db") as store:
        result = tune(task, workloads=["odd"], policy=Policy(max_rounds=120), store=store)
        again = store.load(result.run)
    one = result.workloads[0]
    assert result.measured
    assert one.best is not None and one.best.checked is not None and one.best.measured is not None
    assert one.best.checked.verdict == "correct"
    assert one.best.configuration in one.tied
    assert one.race is not None and one.race["noise"]["rounds"] > 0
    assert one.race["policy"]["l2"] == "cold" and one.race["policy"]["launch"] == "graph"
    raced = [c for c in one.candidates if c.status == "raced"]
    assert all(c.measured is not None and len(c.measured.samples_us) >= 6 for c in raced)
    assert one.best.measured.us > one.bound.speed_of_light_us
    assert again.workloads[0].best == one.best
    json.dumps(to_json(result), allow_nan=False)


@pytest.mark.parametrize(("l2", "launch"), [("cold", "eager"), ("warm", "graph"), ("warm", "eager")])
def test_every_policy_of_the_clock(l2: str, launch: str) -> None:
    """trust.md 18, 19: a small kernel is faster on warm L2, and the policy is in the record."""
    task = load_task(str(EXAMPLES / "rms_norm.py"))
    policy = Policy(l2=l2, launch=launch, max_rounds=40, min_rounds=16)  # type: ignore[arg-type]
    one = tune(task, workloads=["odd"], policy=policy, top=2).workloads[0]
    assert one.best is not None and one.best.measured is not None and one.race is not None
    assert (one.race["policy"]["l2"], one.race["policy"]["launch"]) == (l2, launch)
    if l2 == "warm" and launch == "graph":
        cold = tune(task, workloads=["odd"], policy=Policy(max_rounds=40), top=2).workloads[0].best
        assert cold is not None and cold.measured is not None
        assert one.best.measured.us < cold.measured.us


def test_another_architecture_is_predicted_only() -> None:
    gpu = detect()
    assert gpu is not None
    result = tune(load_task(str(EXAMPLES / "swiglu.py")), arch="sm_80" if gpu.arch != "sm_80" else "sm_90",
                  workloads=["odd"])  # fmt: skip
    assert not result.measured
    assert all(c.measured is None for c in result.workloads[0].candidates)


def test_in_place_is_checked_as_deployed() -> None:
    """trust.md 10: rope runs on a scratch output in the search, and once over its input."""
    task = load_task(str(EXAMPLES / "rope.py"))
    with Session(where_is(task)) as session:
        session.run(PrepareInputs("decode", 5), silence=120)
        answer = session.run(CheckOutputs(Configured(task.space.shipped))).answer
    assert answer is not None
    assert answer.checked.verdict == "correct", answer
    assert "in place, as deployed" in answer.checked.cases


def test_an_unknown_configuration_is_this_candidates_failure() -> None:
    task = load_task(str(EXAMPLES / "swiglu.py"))
    with Session(where_is(task)) as session:
        session.run(PrepareInputs("odd", 5), silence=120)
        outcome = session.run(CheckOutputs(Configured(task.space.shipped.replace(TILE_M=3))))
        assert outcome.answer is None
        assert session.losses == 0, "the worker itself survives a front-end error"
