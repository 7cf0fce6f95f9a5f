"""`tilewright check` as a person and a script use it, on the interpreter."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from tilewright.cli import main as cli
from tilewright.hardware.gpu import detect

FILE = """
    import time
    import cuda.tile as ct
    import tilewright as tw

    @ct.kernel
    def scale(x, y, FACTOR: ct.Constant[float], TILE: ct.Constant[int]):
        i = ct.bid(0)
        ct.store(y, (i,), ct.load(x, (i,), (TILE,)) * FACTOR)

    @ct.kernel
    def every_other(x, y, FACTOR: ct.Constant[float], TILE: ct.Constant[int]):
        i = 2 * ct.bid(0)
        ct.store(y, (i,), ct.load(x, (i,), (TILE,)) * FACTOR)

    def launch_of(kernel, x="x", y="y"):
        def launch(N, config, **tensors):
            args = (tensors[x], tensors[y], 2.0, config.TILE)
            return tw.Launch(kernel, (-(-N // config.TILE),), args)
        return launch

    def make(name, kernel, **changes):
        parts = dict(
            name=name, launch=launch_of(kernel), reference=lambda x: 2 * x, flops=lambda N: N,
            space=tw.Space(constants={"TILE": (64, 128)}, shipped={"TILE": 64}),
            tensors={"x": tw.Tensor(("N",), "float32"), "y": tw.Output(("N",), "float32")},
            workloads={"small": {"N": 4096}, "odd": {"N": 5003}},
        )
        return tw.Task(**parts | changes)

    gradients = {"d_y": tw.Tensor(("N",), "float32"), "d_x": tw.Output(("N",), "float32")}

    def backward(name, kernel, factor):
        return make(name, kernel, tensors=gradients, reference=lambda d_y: factor * d_y,
                    launch=launch_of(kernel, "d_y", "d_x"))

    right = make("right", scale)
    wrong = make("wrong", every_other)
    slow = make("slow", scale, reference=lambda x: (time.sleep(0.02), 2 * x)[1])  # one case takes the whole limit
    right_backward = backward("right_backward", scale, 2)
    wrong_backward = backward("wrong_backward", every_other, 2)
    learns = make("learns", scale, backward=right_backward)
    mislearns = make("mislearns", scale, backward=wrong_backward)
    space = tw.Space(constants={"TILE": (64, 128)}, shipped={"TILE": 64})
    both = tw.Task(
        name="both", reference=lambda x: 2 * x, flops=lambda N: N, tensors=right.tensors, workloads=right.workloads,
        implementations={
            "whole": tw.Implementation(launch=launch_of(scale), space=space),
            "half": tw.Implementation(launch=launch_of(every_other), space=space),
        },
    )
    misstates = make("misstates", scale, backward=backward("misstated", scale, 3))
"""


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "ops.py"
    path.write_text(dedent(FILE))
    return str(path)


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = cli.main(["check", *arguments, "--engine", "interpreter", "--arch", "sm_90"])
    said = capsys.readouterr()
    return code, said.out, said.err


def read(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, Any]:
    code, out, _ = run(capsys, *arguments, "--json")
    return code, json.loads(out)


def test_a_right_kernel(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, f"{file}:right", "--seed", "3")
    assert code == 0
    assert "right: correct, " in out and "engine interpreter" in out and "seed 3" in out
    assert "edges" in out and "hidden draws" in out and "reproduce" not in out


def test_a_wrong_kernel_and_the_command_that_shows_it_again(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, f"{file}:wrong")
    assert code == 1
    assert "wrong: incorrect" in out
    line = next(line for line in out.splitlines() if line.startswith("reproduce: "))
    words = shlex.split(line.removeprefix("reproduce: "))
    assert words[:2] == ["tilewright", "check"]
    assert cli.main(words[1:]) == 1


def test_a_wrong_implementation_is_named(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, f"{file}:both", "--quick")
    rows = [line.split() for line in out.splitlines()]
    assert code == 1 and any(row[:1] == ["half"] and "incorrect" in row for row in rows)
    assert not any(row[:1] == ["whole"] and "incorrect" in row for row in rows)
    assert "--config implementation=half,TILE=64" in out and "reproduce: " in out


def test_json(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, found = read(capsys, f"{file}:wrong")
    assert (code, found["verdict"], found["engine"], found["task"]) == (1, "incorrect", "interpreter", "wrong")
    assert found["findings"] == [] or found["findings"][0]["kind"]
    assert found["reproduce"].startswith("tilewright check ")
    assert {one["verdict"] for one in found["cases"]} <= {"correct", "incorrect", "unverified"}
    assert found["backward"] is None


def test_one_case_one_workload_one_configuration(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, found = read(capsys, f"{file}:right", "--case", "N=100;data=large;seed=17")
    assert (code, found["seed"], [one["case"] for one in found["cases"]]) == (0, 17, ["N=100;data=large;seed=17"])
    code, found = read(capsys, f"{file}:right", "--quick", "--workload", "odd", "--config", "TILE=128")
    assert code == 0
    assert {one["why"] for one in found["cases"]} == {"odd"}
    assert found["configurations"] == [{"TILE": 128}]


def test_the_command_names_a_configuration_that_is_not_shipped(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    _, found = read(capsys, f"{file}:wrong", "--quick", "--config", "TILE=128")
    assert "--config TILE=128" in found["reproduce"]


def test_what_cannot_be_verified(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, found = read(capsys, f"{file}:slow", "--seconds", "0.01")
    assert (code, found["verdict"]) == (3, "unverified")
    assert any("not run within 0.01 s" in one for one in found["unverified"])


def test_a_backward_is_verified_too(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, found = read(capsys, f"{file}:learns")
    assert (code, found["verdict"], found["backward"]["verdict"]) == (0, "correct", "correct")
    code, found = read(capsys, f"{file}:mislearns")
    assert (code, found["verdict"], found["backward"]["verdict"]) == (1, "incorrect", "incorrect")
    words = shlex.split(found["backward"]["reproduce"])
    assert words[2] == f"{file}:wrong_backward"
    assert cli.main(words[1:]) == 1


def test_a_backward_that_is_no_gradient(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, error = run(capsys, f"{file}:misstates")
    assert (code, out) == (2, "")
    assert "finite differences of the forward reference" in error


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--case", "Q=3"], "unknown dimension 'Q'; known: N"),
        (["--case", "N=3;data=lage"], "unknown data 'lage'"),
        (["--case", "N=3", "--quick"], "--case names shape, data and seed itself"),
        (["--workload", "big"], "unknown workload 'big'; known: small, odd"),
        (["--config", "TILE=3.5"], "error: "),
        (["--config", ""], "error: '' names no knob; give knob=value, with commas between several; knobs: TILE"),
        (["--case", ""], "error: --case: '' is not of the form name=value; for example: "),
    ],
)
def test_mistakes_are_one_line(file: str, capsys: pytest.CaptureFixture[str], options: list[str], words: str) -> None:
    code, out, error = run(capsys, f"{file}:right", *options)
    assert (code, out) == (2, "")
    assert words in error and error.count("\n") == 1


def test_engines_are_named(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["check", f"{file}:right", "--engine", "tpu"]) == 2
    assert "unknown engine 'tpu'; did you mean 'gpu'? known: interpreter, gpu" in capsys.readouterr().err
    if detect() is None:
        assert cli.main(["check", f"{file}:right", "--engine", "gpu"]) == 3
        assert "--engine interpreter needs none" in capsys.readouterr().err
