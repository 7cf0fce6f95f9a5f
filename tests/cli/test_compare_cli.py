"""`tilewright compare` as a person and a script use it: real versions of small kernels, and mistakes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from tilewright.cli import main as cli

TASK = """
    import cuda.tile as ct
    import tilewright as tw

    def half(t):
        return t * 0.5

    @ct.kernel
    def scale(x, y, T: ct.Constant[int]):
        i = ct.bid(0)
        t = ct.load(x, (i,), (T,))
        ct.store(y, (i,), half(t))
        u = ct.load(x, (i + 1,), (T,))
        ct.store(y, (i + 1,), u)

    def launch(x, y, N, config):
        return tw.Launch(scale, (N // config.TILE,), (x, y, config.TILE))

    task = tw.Task(
        name="scale", launch=launch, reference=lambda x: x, flops=lambda N: N,
        tensors={"x": tw.Tensor(("N",), "float32"), "y": tw.Output(("N",), "float32")},
        space=tw.Space(constants={"TILE": (128, 256)}, hints={"occupancy": (None, 4)},
                       shipped={"TILE": 128, "occupancy": None}),
        workloads={"small": {"N": 4096}, "large": {"N": 8192}},
    )
"""
LOAD = "ct.load(x, (i,), (T,))"


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    monkeypatch.chdir(tmp_path)

    def write(name: str, *changes: tuple[str, str]) -> None:
        text = dedent(TASK)
        for old, new in changes:
            assert old in text
            text = text.replace(old, new)
        Path(name).write_text(text)

    write("a.py")
    return write


@pytest.fixture
def compared(capsys: pytest.CaptureFixture[str]) -> Callable[..., Any]:
    def run(*arguments: str) -> Any:
        code = cli.main(("compare", *arguments, "--arch", "sm_90", "--json"))
        out, err = capsys.readouterr()
        assert (code, err) == (0, "")
        return json.loads(out)

    return run


def text(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> str:
    assert cli.main(("compare", *arguments, "--arch", "sm_90")) == code
    out, err = capsys.readouterr()
    assert "Traceback" not in err
    return err if code else out


def changed(access: Any) -> dict[str, tuple[Any, Any]]:
    return {one["trait"]: (one["before"], one["after"]) for one in access["changed"]}


def test_a_tile_load_that_becomes_a_gather(files: Any, compared: Any) -> None:
    gather = "ct.gather(x, ct.arange(T, dtype=ct.int32) + i * T)"
    files("b.py", ("import tilewright as tw", "import tilewright as tw\n"), (LOAD, gather))
    found = compared("a.py", "b.py")
    (access,) = found["tile_ir"]["accesses"]
    assert (access["before"]["place"]["line"], access["after"]["place"]["line"]) == (11, 12)
    assert access["after"]["tensor"] == "x"
    assert changed(access)["operation"] == ("load_view_tko", "load_ptr_tko")
    assert changed(access)["through"] == ("partition view", "pointers")
    line = next(one for one in found["tile_ir"]["lines"] if one["after"] and one["after"]["line"] == 12)
    counts = {one["operation"]: (one["before"], one["after"]) for one in line["operations"]}
    assert counts["load_view_tko"] == (1, 0) and counts["load_ptr_tko"] == (0, 1) and counts["iota"] == (0, 1)
    assert not found["tile_ir"]["chains"]  # all lines behind it only shifted
    code = found["machine_code"]
    assert code["identical"] is False
    assert sum(code["after"]["instruction_mix"].values()) == code["after"]["instructions"]
    assert code["before"]["instruction_mix"] != code["after"]["instruction_mix"]


def test_only_a_hint(files: Any, compared: Any) -> None:
    files("b.py", (LOAD, "ct.load(x, (i,), (T,), latency=4, allow_tma=False)"))
    found = compared("a.py", "b.py")
    (access,) = found["tile_ir"]["accesses"]
    assert changed(access) == {"latency": (None, 4), "allow_tma": (None, False)}
    assert not found["tile_ir"]["lines"] and not found["tile_ir"]["identical"]


def test_padding(files: Any, compared: Any) -> None:
    files("b.py", (LOAD, "ct.load(x, (i,), (T,), padding_mode=ct.PaddingMode.ZERO)"))
    (access,) = compared("a.py", "b.py")["tile_ir"]["accesses"]
    assert changed(access) == {"padding": (None, "zero")}


def test_a_store_before_the_load_of_what_it_writes(files: Any, compared: Any, capsys: Any) -> None:
    files("b.py", ("ct.store(y, (i,), half(t))", "ct.store(x, (i,), half(t))"))
    chains = {one["text"] for one in compared("a.py", "b.py")["tile_ir"]["chains"]}
    assert chains == {
        "store of x at line 12 now waits for load of x at line 11; its chain is longer: 0 → 1",
        "load of x at line 13 now waits for store of x at line 12; its chain is longer: 0 → 2",
        "store of y at line 14 waits no longer for store of y at line 12 (before); its chain is shorter: 1 → 0",
    }
    said = text(capsys, "a.py", "b.py")
    assert "load of x at line 13 now waits for store of x at line 12" in said
    assert "store of x at line 12: tensor y → x" in said


def test_two_configurations_of_one_file(files: Any, compared: Any, capsys: Any) -> None:
    found = compared("a.py", "a.py", "--config", "occupancy=4", "--config-b", "TILE=256")
    assert (found["before"]["config"], found["after"]["config"]) == (
        {"TILE": 128, "occupancy": 4}, {"TILE": 256, "occupancy": 4},
    )  # fmt: skip
    assert (found["before"]["grid"], found["after"]["grid"]) == ([32], [16])
    accesses = found["tile_ir"]["accesses"]
    assert len(accesses) == 4
    assert all(changed(one) == {"tile": ("tile<128xf32>", "tile<256xf32>")} for one in accesses)
    assert found["tile_ir"]["hints"] == []
    helper = next(one for one in found["tile_ir"]["lines"] if one["after"]["helper_line"])
    assert (helper["after"], helper["source_after"]) == ({"line": 12, "helper_line": 6}, "return t * 0.5")
    said = text(capsys, "a.py", "a.py", "--config-a", "occupancy=4")
    assert "hints of the kernel: occupancy 4 → none" in said


def test_identical_versions_say_so_in_one_line(files: Any, compared: Any, capsys: Any) -> None:
    files(
        "b.py",
        ("def half", "# a comment\n\ndef half"),
        ("    t = ct", "    first = ct"),
        (" half(t))", " half(first))"),
    )
    found = compared("a.py", "b.py")
    assert found["identical"] and found["tile_ir"]["identical"] and found["machine_code"]["identical"]
    said = text(capsys, "a.py", "b.py").splitlines()
    assert said[-1] == "identical: the same Tile IR and the same machine code" and len(said) == 4


def test_the_compiler_may_fail_and_tile_ir_is_still_compared(files: Any, compared: Any) -> None:
    found = compared("a.py", "a.py", "--config-b", "TILE=256", "--budget", "0.01")
    assert "0.01 s" in found["machine_code"]["after"]["failed"]["reason"]
    assert found["machine_code"]["identical"] is None and found["tile_ir"]["accesses"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("a.py:nope", "a.py"), "unknown task in a.py 'nope'; known: scale"),
        (("a.py", "missing.py"), "no such task file: missing.py"),
        (("a.py", "a.py", "--config-b", "X=1"), "unknown knob 'X'; known: TILE, occupancy"),
        (("a.py", "a.py", "--config", "TILE=128", "--config-a", "TILE=256"), "'TILE' is given twice"),
        (("a.py", "a.py", "--config-a", ""), "'' names no knob; give knob=value"),
        (("a.py", "a.py", "--config", " ", "--config-b", "TILE=256"), "' ' names no knob; give knob=value"),
        (("a.py", "a.py", "--workload", "huge"), "unknown workload 'huge'; known: small, large"),
        (("a.py", "a.py", "--arch", "sm_1"), "unknown architecture"),
        (("a.py", "b.py"), "B (b.py TILE=128,occupancy=auto, workload small): front end: b.py:11"),
    ],
)
def test_mistakes(files: Any, capsys: Any, arguments: tuple[str, ...], said: str) -> None:
    files("b.py", (LOAD, "ct.load(x, (i, i), (T,))"))
    code = cli.main(("compare", *arguments))
    err = capsys.readouterr().err
    (line,) = [line for line in err.splitlines() if line.startswith("error: ")]
    assert code == 2 and said in line and "Traceback" not in err
