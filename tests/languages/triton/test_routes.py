"""The two routes of a Triton kernel, through the commands that use them without a GPU."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tilewright.compile.compile import Unit, compile_all
from tilewright.hardware.architectures import default_board
from tilewright.languages.base import Lowered
from tilewright.languages.triton import LANGUAGE
from tilewright.languages.triton.hints import on_tile_ir
from tilewright.records import Built, Configuration, Failed
from tilewright.task.loading import load_task
from tilewright.task.task import Launch, Task
from tilewright.task.tensors import ArraySpec
from tilewright.tune.tune import tune
from tilewright.verify.check import check

pytest.importorskip("triton")

from tests.languages.triton import kernels as given

EXAMPLE = Path(__file__).parents[3] / "examples" / "triton" / "softmax.py"
NO_KNOBS = Configuration.of({})
TASK = """
import cuda.tile as ct
import tilewright as tw
from tests.languages.triton import kernels as given

@ct.kernel
def copied(x, out, BLOCK: ct.Constant[int]):
    ct.store(out, (ct.bid(0),), ct.load(x, (ct.bid(0),), (BLOCK,)))

def launch(x, out, N, config):
    kernel, args = KERNEL
    return tw.Launch(kernel, (-(-N // config.BLOCK),), (*args, config.BLOCK))

task = tw.Task(
    name="negated",
    tensors={"x": tw.Tensor(("N",), "float32"), "out": tw.Output(("N",), "float32")},
    reference=lambda x: -x,
    launch=launch,
    flops=lambda N: N,
    space=tw.Space(
        constants={"BLOCK": (256,)}, hints=HINTS, shipped={"BLOCK": 256, **{k: v[0] for k, v in HINTS.items()}}
    ),
    workloads={"small": {"N": 1024}},
)
"""


@pytest.fixture
def example() -> Task:
    return load_task(str(EXAMPLE))


def written(folder: Path, kernel: str, hints: str = "{}") -> Task:
    file = folder / "negated.py"
    file.write_text(TASK.replace("KERNEL", kernel).replace("HINTS", hints))
    return load_task(str(file))


def compiled(task: Task) -> Built | Failed:
    unit = Unit(task.workload("small"), task.space.shipped, default_board("sm_90"))
    return compile_all(task, [unit])[0].built


def test_tensors_of_other_names_share_no_memory() -> None:
    x, out = ArraySpec("x", (999,), "float32"), ArraySpec("out", (999,), "float32")
    apart = LANGUAGE.tile_ir_of(Launch(given.scaled, (4,), (out, x, 2.0, 999, 256)), {}, NO_KNOBS, "sm_80")
    shared = LANGUAGE.tile_ir_of(Launch(given.scaled, (4,), (x, x, 2.0, 999, 256)), {}, NO_KNOBS, "sm_80")
    assert isinstance(apart, Lowered) and isinstance(shared, Lowered) and apart.code != shared.code


@pytest.mark.parametrize("arch", ["sm_80", "sm_120"])
def test_descriptors_stay_descriptors_on_every_architecture(arch: str) -> None:
    product = tuple(ArraySpec(name, (512, 512), "bfloat16") for name in "abc")
    launch = Launch(given.descriptor_matmul, (4, 8), (*product, 512, 512, 512, 128, 64, 64))
    lowered = LANGUAGE.lower(launch, {"route": "tileir", "occupancy": 2, "num_warps": 4}, NO_KNOBS, arch)
    assert isinstance(lowered, Lowered) and lowered.is_tile_ir
    built = LANGUAGE.assemble(lowered, 60)
    assert isinstance(built, Built), built


def test_both_routes_are_one_space(example: Task) -> None:
    result = tune(example, workloads=["odd"], arch="sm_90", store=False)
    (workload,) = result.workloads
    routes = {str(each.configuration["route"]) for each in workload.candidates}
    assert routes == {"ptx", "tileir"} and workload.best is not None and not result.measured
    assert all(each.status in ("predicted", "duplicate", "screened") for each in workload.candidates)


def test_hints_that_a_route_ignores_are_said(tmp_path: Path) -> None:
    hints = "{'route': ('tileir', 'ptx'), 'num_warps': (8,), 'occupancy': (2,)}"
    task = written(tmp_path, "given.scaled, (out, x, -1.0, N)", hints)
    result = tune(task, arch="sm_90", store=False)
    reasons = {each.configuration["route"]: each.reason for each in result.workloads[0].candidates}
    assert reasons["tileir"].endswith("num_warps has no effect with route=tileir")
    assert reasons["ptx"].endswith("occupancy has no effect with route=ptx")


def test_a_cpu_verifies_both_routes_and_says_how(example: Task) -> None:
    for route, said in (("ptx", "its TTIR, through Tile IR; 2 cases"), ("tileir", "2 cases")):
        asked = {"configurations": [{"route": route}], "workloads": ["odd"]}
        (verdict,) = check(example, engine="interpreter", quick=True, **asked)
        assert verdict.verdict == "correct on reduced shapes" and verdict.reason.startswith(said)


def test_what_tile_ir_lacks_compiles_by_the_ptx_route_and_is_unverified(tmp_path: Path) -> None:
    task = written(tmp_path, "given.by_assembly, (out, x, N)", "{'route': ('ptx', 'tileir')}")
    assert isinstance(compiled(task), Built)
    line = next(n for n, text in enumerate(Path(given.__file__).read_text().splitlines(), 1) if "neg.f32" in text)
    (verdict,) = check(task, engine="interpreter", quick=True)
    assert verdict.verdict == "unverified" and re.search(f"kernels.py:{line}: .*inline_asm", verdict.reason)
    launch = Launch(given.by_assembly, (4,), (ArraySpec("o", (9,), "float32"), ArraySpec("x", (9,), "float32"), 9, 16))
    failed = LANGUAGE.lower(launch, {"route": "tileir"}, NO_KNOBS, "sm_90")
    assert isinstance(failed, Failed) and failed.stage == "front end" and "not translated to Tile IR" in failed.reason


def test_a_launch_is_of_one_language(tmp_path: Path) -> None:
    mixed = compiled(written(tmp_path, "given.scaled, (out, x, -1.0, copied)"))
    assert mixed == Failed("launch", "the launch passes a kernel of language 'cutile' to one of 'triton'; "
                                     "fix: use only one language in a launch")  # fmt: skip
    foreign = compiled(written(tmp_path, "copied, (x, out)", "{'num_warps': (4,)}"))
    said = "'num_warps' is no hint of language 'cutile'; did you mean 'num_worker_warps'? known: occupancy"
    assert isinstance(foreign, Failed) and said in foreign.reason


def test_one_place_reads_the_route() -> None:
    """The text of the hint is compared in one function, by which the language and the playbook ask. What writes kernels
    has it in the text that it writes."""
    src = Path(__file__).parents[3] / "src" / "tilewright"
    files = (file for file in src.rglob("*.py") if file.parent.name != "writing")
    readers = [file.name for file in files if re.search(r'"route"\) *[!=]=|== *"tileir"', file.read_text())]
    assert readers == [] and on_tile_ir({"route": "tileir"}) and not on_tile_ir({"route": "ptx"}) and not on_tile_ir({})
