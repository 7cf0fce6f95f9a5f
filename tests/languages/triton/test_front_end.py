"""Lowering a Triton launch on array specifications to TTIR."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event

import pytest

from tilewright.languages.triton import front_end
from tilewright.languages.triton.front_end import Ttir, parameters_of, ttir_of
from tilewright.records import Configuration, Failed
from tilewright.task.task import Launch
from tilewright.task.tensors import ArraySpec

pytest.importorskip("triton")

from tests.languages.triton import kernels as given

X = ArraySpec("x", (64, 3000), "bfloat16")
OUT = ArraySpec("out", (64, 3000), "bfloat16")
NO_KNOBS = Configuration.of({})


def lowered(kernel, args, hints=None, config=NO_KNOBS, arch="sm_90") -> Ttir | Failed:
    return ttir_of(Launch(kernel, (64,), args), hints or {}, config, arch)


def ttir(*args, **options) -> Ttir:
    made = lowered(*args, **options)
    assert isinstance(made, Ttir), made
    return made


def test_the_parameters_are_those_of_the_entry() -> None:
    launch = Launch(given.softmax, (64,), (OUT, X, 3000, 1, 4096))  # columns = 1 becomes a constant
    made = ttir_of(launch, {}, NO_KNOBS, "sm_90")
    assert isinstance(made, Ttir) and made.symbol == "softmax"
    assert [(each.name, each.type) for each in made.parameters] == [("out", "*bf16"), ("x", "*bf16"), ("stride", "i32")]
    assert made.arguments == (OUT, X, 3000) and parameters_of(launch) == made.parameters


def test_alignment_divides_what_the_code_assumes() -> None:
    aligned = ttir(given.softmax, (OUT, X, 3008, 3000, 4096)).text
    odd = ttir(given.softmax, (OUT, ArraySpec("x", (64, 3000), "bfloat16", address_offset=2), 3001, 3000, 4096)).text
    assert aligned.count("tt.divisibility") == 3 and odd.count("tt.divisibility") == 1


def test_every_dtype_keeps_its_type() -> None:
    types = {"float16": "*fp16", "bfloat16": "*bf16", "float32": "*fp32", "float8_e4m3fn": "*fp8e4nv", "int64": "*i64"}
    for dtype, written in types.items():
        launch = Launch(given.scaled, (1,), (ArraySpec("o", (9,), dtype), ArraySpec("x", (9,), dtype), 2.0, 9, 16))
        assert [each.type for each in parameters_of(launch)] == [written, written, "fp32", "i32"]


def test_the_text_has_locations() -> None:
    assert "kernels.py" in ttir(given.softmax, (OUT, X, 3000, 3000, 4096)).text


def test_knobs_fill_the_parameters_that_the_launch_leaves_out_and_hints_are_options() -> None:
    made = ttir(
        given.softmax, (OUT, X, 3000, 3000), {"num_warps": 8, "maxnreg": None}, Configuration.of({"BLOCK": 4096})
    )
    options = dict(made.options)
    assert "tensor<4096x" in made.text
    assert (options["num_warps"], options["maxnreg"], options["arch"]) == (8, None, "sm90")


@pytest.mark.parametrize(
    ("kernel", "args", "hints", "said"),
    [
        ("softmax", (OUT, "x", 3000, 3000, 4096), {}, "'x' is the string 'x'; fix: pass a tensor or a number"),
        ("softmax", (OUT, X, 3000, 3000), {}, "neither the launch nor the space has a value for 'BLOCK'"),
        ("softmax", (OUT, X, 3000, 3000, 4096, 1), {}, "takes 5 arguments, the launch passes 6"),
        ("softmax", (OUT, X, 3000, 3000, 4000), {}, "power of 2"),
        ("softmax", (OUT, X, 3000, 3000, 4096), {"num_warps": 3}, "num_warps must be a power of 2"),
        ("with_unknown_name", (X, 16), {}, "kernels.py:LINE: NameError: missing_name is not defined"),
        ("scaled", (OUT, ArraySpec("s", (9,), "float8_e8m0fnu"), 2.0, 9, 16), {}, "tensor 's': triton has no dtype"),
    ],
)
def test_a_wrong_launch_is_one_line(kernel, args, hints, said) -> None:
    wrong = next(n for n, line in enumerate(Path(given.__file__).read_text().splitlines(), 1) if "missing_name" in line)
    failed, said = lowered(getattr(given, kernel), args, hints), said.replace("LINE", str(wrong))
    assert isinstance(failed, Failed) and said in failed.reason and "\n" not in failed.reason


def test_a_cluster_needs_hopper() -> None:
    failed = lowered(given.softmax, (OUT, X, 3000, 3000, 4096), {"num_ctas": 2}, arch="sm_80")
    assert isinstance(failed, Failed) and "num_ctas > 1 requires NVIDIA SM90+" in failed.reason


def test_hooks_and_heuristics_of_decorators_run() -> None:
    import triton

    seen: list[str] = []
    configs = [
        triton.Config({"BLOCK": block}, num_warps=4, pre_hook=lambda named: seen.append(str(named["BLOCK"])))
        for block in (4096, 8192)
    ]
    rounded = triton.heuristics({"BLOCK": lambda named: triton.next_power_of_2(named["columns"])})(given.softmax)
    assert "tensor<4096x" in ttir(rounded, (OUT, X, 3000, 3000)).text
    tuned = triton.autotune(configs, key=["columns"])(given.softmax)
    assert "tensor<8192x" in ttir(tuned, (OUT, X, 3000, 3000), config=Configuration.of({"BLOCK": 8192})).text
    assert seen == ["8192"]


def test_gluon_is_refused() -> None:
    gluon = pytest.importorskip("triton.experimental.gluon")
    failed = lowered(gluon.jit(given.softmax.fn), (OUT, X, 3000, 3000, 4096))
    assert isinstance(failed, Failed) and "gluon" in failed.reason and "@triton.jit" in failed.reason


def test_two_threads_leave_the_users_driver_as_it_was() -> None:
    """The later of two would otherwise bring back the target of the earlier one, for ever."""
    from triton.runtime.driver import driver

    from tilewright.languages.triton.private import _target

    before, first_is_in, second_is_in, first_is_out = driver._active, Event(), Event(), Event()

    def first() -> None:
        with _target(80):
            first_is_in.set()
            second_is_in.wait(0.2)  # it must not come in
        first_is_out.set()

    def second() -> None:
        first_is_in.wait(120)
        with _target(90):
            second_is_in.set()
            first_is_out.wait(120)

    with ThreadPoolExecutor(2) as pool:
        for each in [pool.submit(first), pool.submit(second)]:
            each.result()
    assert driver._active is before


def test_configurations_share_a_ttir_unless_the_kernel_reads_what_differs(monkeypatch: pytest.MonkeyPatch) -> None:
    private, made = front_end.private_parts(), []
    lower = private.lower
    monkeypatch.setattr(private, "lower", lambda kernel, *rest: made.append(kernel) or lower(kernel, *rest))
    monkeypatch.setattr(front_end, "_GENERATED", {})
    hints = [{"num_warps": warps, "num_stages": stages} for warps in (4, 8) for stages in (2, 3)]
    shared = [ttir(given.softmax, (OUT, X, 3000, 3000, 4096), each) for each in hints]
    assert made == [given.softmax] and len({each.text for each in shared}) == 1
    assert [dict(each.options)["num_warps"] for each in shared] == [4, 4, 8, 8]
    own = [ttir(given.writes_its_warps, (ArraySpec("out", (1,), "int32"),), each).text for each in hints]
    assert made[1:] == [given.writes_its_warps] * 2 and own[0] == own[1] != own[2] == own[3]
    ttir(given.softmax, (OUT, X, 3000, 3000, 4096), arch="sm_80")
    assert len(made) == 4


def test_a_miscount_of_pythons_parser_is_no_error_of_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python 3.11 raises it if another thread parses meanwhile; the source is right."""
    private, failures = front_end.private_parts(), [SystemError(f"{front_end.MISCOUNTED} (before=195, after=50)")]
    lower = private.lower

    def once(*given: object) -> tuple[str, str, frozenset[str]]:
        if failures:
            raise RuntimeError("the front end failed") from failures.pop()
        return lower(*given)

    monkeypatch.setattr(private, "lower", once)
    monkeypatch.setattr(front_end, "_GENERATED", {})
    assert "softmax" in ttir(given.softmax, (OUT, X, 3000, 3000, 4096)).text and not failures
    failures[:] = [SystemError("another one")]
    monkeypatch.setattr(front_end, "_GENERATED", {})
    assert isinstance(lowered(given.softmax, (OUT, X, 3000, 3000, 4096)), Failed)


def test_a_process_that_never_launches_does_not_load_torch() -> None:
    """Triton 3.6 imports torch at the first call that it binds."""
    root = Path(__file__).parents[3]
    script = (
        "import sys\n"
        "from tilewright.cli.shared import loaded\n"
        "from tilewright.compile.compile import Unit, lower\n"
        "from tilewright.hardware.machine import target_of\n"
        "from tilewright.records import Failed\n"
        "task = loaded('bench/triton_plain_matmul.py')\n"
        "unit = Unit(task.workload('4096'), task.space.shipped, target_of('sm_90', None).board)\n"
        "assert not isinstance(lower(task, unit), Failed)\n"
        "assert 'torch' not in sys.modules\n"
    )
    subprocess.run(
        [sys.executable, "-c", script],
        check=True,
        cwd=root,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
