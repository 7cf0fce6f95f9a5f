"""`tilewright transfer`: Python that can be pasted, JSON, and one line for a mistake (A-24)."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

import tilewright as tw
from tilewright.cli.transfer import transfer
from tilewright.errors import TilewrightError

SOURCE = """
import triton

@triton.autotune(
    configs=[
        triton.Config({"BLOCK_SIZE_M": m, "BLOCK_SIZE_N": 128, "GROUP_SIZE_M": 8},
                      num_warps=w, num_stages=3, num_ctas=c)
        for m in (64, 128) for w in (4, 8) for c in (1, 2)
    ],
    key=["M"],
)
@triton.jit
def matmul(): ...

@triton.autotune(configs=[triton.Config({}, num_warps=w) for w in (4, 8)], key=[])
@triton.jit
def softmax(): ...
"""

app = typer.Typer()
app.command()(transfer)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "kernels.py"
    path.write_text(SOURCE)
    return path


def run(*arguments: object, code: int = 0) -> str:
    result = CliRunner().invoke(app, [str(word) for word in arguments])
    if isinstance(result.exception, TilewrightError):
        raise result.exception
    assert result.exit_code == code, result.output
    return result.stdout


def pasted(text: str, **names: Any) -> dict[str, Any]:
    scope: dict[str, Any] = dict(names)
    exec(text, scope)
    return scope


def test_it_prints_a_space_that_can_be_pasted(file: Path) -> None:
    text = run(f"{file}:matmul")
    space = pasted(text)["matmul_space"]
    assert isinstance(space, tw.Space)
    assert [dict(one) for one in space.configurations(90, {})] == [
        {"TILE_SIZE_M": m, "TILE_SIZE_N": 128, "GROUP_SIZE_M": 8, "num_ctas": c} for m in (64, 128) for c in (1, 2)
    ]
    assert "# renamed: BLOCK_SIZE_M → TILE_SIZE_M, BLOCK_SIZE_N → TILE_SIZE_N" in text
    assert "# dropped: num_warps = 4, 8 (8 configurations): cuTile's compiler chooses the warps" in text
    assert all(len(line) <= 110 for line in text.splitlines() if line.startswith("#"))


def test_what_was_not_reached_is_said(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file.write_text(SOURCE + "def late(configs=[triton.Config({})]): ...\n")
    transfer(str(file), "cutile", None, None, False)
    assert "kernels.py: not reached, and not in the output: triton.Config(…), 1 in line 18" in capsys.readouterr().err


def test_there_and_back(file: Path, tmp_path: Path) -> None:
    """What the first command prints is a file that the second reads."""
    there = tmp_path / "space.py"
    there.write_text(run(f"{file}:matmul"))
    triton = SimpleNamespace(Config=lambda kwargs, **options: {**kwargs, **options})
    text = run(there, "--to", "triton").replace("import triton", "")
    assert pasted(text, triton=triton)["matmul_space_configs"] == [
        {"BLOCK_SIZE_M": m, "BLOCK_SIZE_N": 128, "GROUP_SIZE_M": 8, "num_ctas": c} for m in (64, 128) for c in (1, 2)
    ]


def test_json_has_everything(file: Path) -> None:
    matmul, softmax = json.loads(run(file, "--json", "--arch", "sm_80", "--rename", "GROUP_SIZE_M=BAND"))
    assert (matmul["name"], matmul["read"], matmul["line"]) == ("matmul", 8, 13)
    assert [one["values"]["BAND"] for one in matmul["configurations"]] == [8, 8]
    whole = [one for one in matmul["dropped"] if one["field"] is None]
    assert len(whole) == 4
    assert all("sm_80 has no clusters" in one["reason"] for one in whole)
    assert softmax["configurations"] == []
    assert matmul["suggested"]["num_worker_warps"] == [None, 4, 8]


def test_nothing_to_transfer_is_the_answer_no(file: Path) -> None:
    text = run(f"{file}:softmax", code=1)
    assert "no field has an equivalent in cuTile" in text
    assert "tw.Space" not in text


def test_the_example_of_this_repository_transfers() -> None:
    example = Path(__file__).parents[2] / "examples" / "matmul.py"
    text = run(example, "--to", "triton")
    assert "triton.Config({'BLOCK_M': 128, 'BLOCK_N': 128, 'BLOCK_K': 64, 'GROUP_SIZE_M': 8})" in text


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["none.py"], "cannot read none.py: No such file"),
        (["{file}:gelu"], "'gelu'; known: matmul, softmax"),
        (["{file}", "--to", "triton"], "contains no configuration"),
        (["{file}", "--arch", "sm_1"], "sm_1"),
        (["{file}", "--rename", "BLOCK"], "'BLOCK' is not of the form OLD=NEW"),
        (["{file}", "--rename", "BLOCK_SIZE_M=class"], "'BLOCK_SIZE_M=class' is not of the form OLD=NEW"),
        (["{file}", "--rename", "NOT_THERE=B"], "no configuration names it; known: BLOCK_SIZE_M"),
    ],
)
def test_a_mistake_is_one_line(file: Path, arguments: list[str], said: str) -> None:
    with pytest.raises(TilewrightError, match=said) as raised:
        run(*(word.replace("{file}", str(file)) for word in arguments))
    assert "\n" not in str(raised.value)


def test_an_unknown_target_names_the_choices(file: Path) -> None:
    result = CliRunner().invoke(app, [str(file), "--to", "cuda"])
    assert result.exit_code == 2
    assert "cutile" in result.output
    assert "triton" in result.output


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"x = '\x00'\n", r"bad\.py: .*null bytes; it must be a Python file"),
        (b"x = 1\ndef f(:\n", r"bad\.py:2: .*; it must be a Python file"),
        (b"# coding: none-such\n", r"bad\.py: unknown encoding"),
        (b"x = '\xff'\n", r"bad\.py is not UTF-8 text \(byte 0xff in line 1\); save it as UTF-8"),
        (b"x = " + b" + ".join([b"a"] * 900), r"bad\.py: its expressions are nested too deep"),
        (b"x = " + b"-" * 20_000 + b"1", r"bad\.py: its expressions are nested too deep"),
    ],
    ids=["null", "syntax", "coding", "utf-8", "sum", "parser"],
)
@pytest.mark.parametrize("name", ["", ":x"])
def test_a_file_that_cannot_be_read_is_one_line(tmp_path: Path, content: bytes, said: str, name: str) -> None:
    path = tmp_path / "bad.py"
    path.write_bytes(content)
    with pytest.raises(TilewrightError, match=said) as raised:
        run(f"{path}{name}")
    assert "\n" not in str(raised.value)
    assert "None" not in str(raised.value)


def test_a_file_is_read_as_python_reads_it(tmp_path: Path) -> None:
    """With the encoding that it declares, and without warnings about its text."""
    path = tmp_path / "latin.py"
    path.write_bytes(b"# coding: latin-1\n# \xe9\nx = '\\d'\n" + SOURCE.encode())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert "matmul_space" in run(f"{path}:matmul")
