"""`tilewright lint` on the command line: exit codes, JSON, SARIF, `--compile` (X-09)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import typer
from tests.lint.rule_examples import EXAMPLES
from typer.testing import CliRunner, Result

from tilewright.cli import lint as cli_lint
from tilewright.errors import RequestError, UnknownChoice

app = typer.Typer(pretty_exceptions_enable=False)
app.command()(cli_lint.lint)

EXAMPLE = Path(__file__).parents[2] / "examples" / "swiglu.py"


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(one) for one in arguments])


@pytest.fixture
def bad(tmp_path: Path) -> Path:
    path = tmp_path / "kernels.py"
    path.write_text(EXAMPLES["TW401"].bad)
    return path


def test_exit_codes(bad: Path, tmp_path: Path) -> None:
    assert run(bad).exit_code == 1
    assert run(bad, "--ignore", "TW401").exit_code == 0
    note = tmp_path / "note.py"
    note.write_text(EXAMPLES["TW208"].bad)
    done = run(note)
    assert (done.exit_code, "1 note in 1 file" in done.stdout) == (0, True), done.stdout
    broken = tmp_path / "broken.py"
    broken.write_text("def f(:\n")
    assert run(broken).exit_code == 1


def test_bad_requests_are_one_line(bad: Path) -> None:
    """The command line turns a RequestError into one line and exit code 2."""
    for arguments, kind, message in (
        ((bad, "--select", "TW9"), UnknownChoice, "unknown rule 'TW9'; known: cannot_be_read"),
        ((bad, "--select", " ,"), RequestError, "--select names no rule; known: cannot_be_read, in_place_search"),
        (("none.py",), RequestError, "no such file or folder: none.py"),
        ((bad, "--arch", "sm_90"), RequestError, "--arch is only for --compile"),
        ((bad, "--compile", "--arch", "sm_1"), RequestError, "sm_1"),
        ((bad, "--sarif", bad.parent / "no" / "folder.sarif"), RequestError, "cannot write"),
    ):
        error = run(*arguments).exception
        assert isinstance(error, kind)
        assert error.exit_code == 2
        assert message in str(error)
        assert "\n" not in str(error)


def test_text_json_and_sarif_agree(bad: Path, tmp_path: Path) -> None:
    text = run(bad).stdout
    value = json.loads(run(bad, "--json", "--sarif", tmp_path / "out.sarif").stdout)
    results = json.loads((tmp_path / "out.sarif").read_text())["runs"][0]["results"]
    assert len(results) == len(value["findings"]) == text.count(f"{bad}:")
    for finding in value["findings"]:
        assert (
            f"{bad}:{finding['line']}:{finding['column']}: {finding['level']} {finding['name'].replace('-', '_')} "
            in text
        )


def test_inventory(bad: Path) -> None:
    done = run(bad, "--inventory")
    assert done.exit_code == 0
    assert "kernel        copy" in done.stdout
    assert done.stdout.rstrip().endswith("1 kernel, 1 launch in 1 of 1 files")


TASK = '''\
"""y = x + 1."""
import cuda.tile as ct
import tilewright as tw


@ct.kernel
def increment(x, y, TILE: ct.Constant[int]):
    ct.store(y, (ct.bid(0),), ct.load(x, (ct.bid(0),), (TILE,)) + 1)


def launch(x, y, N, config):
    return tw.Launch(increment, (-(-N // config.TILE),), (x, y, config.TILE))


task = tw.Task(
    name="increment",
    tensors={"x": tw.Tensor(("N",), "float32"), "y": tw.Output(("N",), "float32")},
    reference=lambda x: x + 1,
    launch=launch,
    flops=lambda N: N,
    space=tw.Space(
        constants={"TILE": (128, 256)},
        hints={"occupancy": (None, 1), "num_worker_warps": (None, 8)},
        shipped={"TILE": 128, "occupancy": None, "num_worker_warps": None},
    ),
    workloads={"small": {"N": 4096}},
)
'''


def test_hints_that_change_no_machine_code(tmp_path: Path) -> None:
    """X-09: occupancy 1 is what the compiler takes by itself; eight worker warps are other code."""
    path = tmp_path / "increment.py"
    path.write_text(TASK)
    assert run(path).exit_code == 0
    done = run(path, "--compile", "--arch", "sm_90")
    assert done.exit_code == 1, done.output
    line = next(number for number, text in enumerate(TASK.splitlines(), 1) if "hints={" in text)
    assert f"{path}:{line}:" in done.stdout
    assert "occupancy changes no machine code at all" in done.stdout
    assert "num_worker_warps" not in done.stdout.split("why")[0]


def test_compile_leaves_other_files_alone(bad: Path) -> None:
    assert "no_op_hint" not in run(bad, "--compile").stdout
