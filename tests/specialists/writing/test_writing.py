"""Kernels are written from references, read by their syntax tree; each is checked against the reference itself."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tilewright.cli import main as cli
from tilewright.errors import RequestError
from tilewright.specialists.writing.expression import OutsideForms
from tilewright.specialists.writing.named import OPERATIONS, operation_in
from tilewright.specialists.writing.writing import ReferenceSource, WrittenTask, source_of, write_task
from tilewright.task.loading import load_task
from tilewright.verify.check import check

LANGUAGES = ("cutile", "triton")
FEW = "import numpy as np\nimport torch\nimport torch.nn.functional as F\n\n"


def written(body: str, language: str = "triton", name: str = "f", dtype: str = "bfloat16") -> WrittenTask:
    return write_task(ReferenceSource(FEW + body, name, "a test"), language, "f.py", dtype=dtype)


def verdict(text: str, tmp_path: Path, quick: bool = True) -> str:
    """The verdict of a task file, by the interpreter, on reduced shapes. Products also need a shape with even rows."""
    file = tmp_path / "written.py"
    file.write_text(text)
    workloads = ("large", "odd") if "GROUP_" in text else ("odd",)
    (found,) = check(str(file), engine="interpreter", arch="sm_90", quick=quick, workloads=workloads)
    return found.verdict.removesuffix(" on reduced shapes")


# Reading --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("language", LANGUAGES)
def test_numpy_and_torch_spell_the_same_kernel(language: str) -> None:
    numpy = written('def f(x: "[M, N]"):\n    return x / (1 + np.exp(-x))\n', language)
    torch = written('def f(x: "[M, N]"):\n    return x / (1 + torch.exp(-x))\n', language)
    method = written('def f(x: "[M, N]"):\n    z = -x\n    return x.div(1 + z.exp())\n', language)
    start, end = ("@triton" if language == "triton" else "@ct"), "def launch"
    kernels = [each.text[each.text.index(start) : each.text.index(end)] for each in (numpy, torch)]
    assert kernels[0] == kernels[1]
    assert "z = -x" in method.text


def test_names_of_the_reference_stay() -> None:
    text = written('def f(x: "[M, N]"):\n    powers = np.exp(x)\n    return powers * powers\n').text
    assert "powers = tl.exp(x)" in text and "powers * powers" in text


def test_helpers_and_constants_of_the_file_come_along(tmp_path: Path) -> None:
    body = "SLOPE = 0.1\nUNUSED = 3\n\ndef leaky(x):\n    return np.where(x > 0, x, SLOPE * x)\n\n"
    body += 'def f(x: "float32[M, N]"):\n    return leaky(x) + 1\n'
    text = written(body).text
    assert "SLOPE = 0.1" in text and "def leaky(x)" in text and "UNUSED" not in text
    assert verdict(text, tmp_path) == "correct"


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("def f(x):\n    for i in range(3):\n        x = x + i\n    return x\n", "line 6: a statement 'for'"),
        ("def f(x):\n    return np.cumsum(x)\n", "line 6: the function 'cumsum'"),
        ("def f(x):\n    return x.sum(axis=0)\n", "only the last axis is reduced"),
        ("def f(x):\n    return x[1:]\n", "the part 'x[1:]' of an array"),
        ('def f(x: "[M, N]", y: "[M, K]"):\n    return x + y\n', "do not broadcast"),
        ('def f(x: "[M, N]", y: "[M, N]"):\n    return x * 2\n', "does not use its tensor 'y'"),
        ('def f(a: "[M, K]", b: "[K, N]"):\n    return np.tanh(a) @ b\n', "product of computed matrices"),
        ('def f(x: "float64[N]"):\n    return x * 2\n', "'x' is float64"),
        ('def f(x: "[M, N]"):\n    return F.rms_norm(x, (x.shape[-1],))\n', "give eps"),
        ("def f(x):\n    return f(x)\n", "calls itself"),
    ],
)  # fmt: skip
def test_what_is_outside_the_forms_is_said_in_one_line(body: str, reason: str) -> None:
    with pytest.raises(OutsideForms) as caught:
        written(body)
    assert reason in str(caught.value) and "\n" not in str(caught.value)


def test_a_function_that_is_not_there_is_named() -> None:
    with pytest.raises(RequestError, match="has no function 'g'; its functions: f"):
        written("def f(x):\n    return x\n", name="g")


# Named operations -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("question", "name"),
    [
        ("Write a Triton kernel for fused SiLU-mul", "silu_mul"),
        ("write a cuTile kernel for RMSNorm", "rms_norm"),
        ("residual add + RMSNorm", "residual_rms_norm"),
        ("bias+GELU", "bias_gelu"),
        ("GEMM + bias + ReLU", "gemm_bias_relu"),
        ("LayerNorm", "layer_norm"),
        ("cross-entropy loss", "cross_entropy"),
    ],
)
def test_a_question_names_an_operation(question: str, name: str) -> None:
    operation = operation_in(question)
    assert operation is not None and operation.name == name


def test_there_are_twelve_and_an_unknown_one_lists_them() -> None:
    assert len(OPERATIONS) == 12
    with pytest.raises(RequestError, match="names no operation of the table; known: bias_gelu"):
        source_of("a transposed convolution")


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("name", [each.name for each in OPERATIONS])
def test_a_named_operation_is_right(name: str, language: str, tmp_path: Path) -> None:
    text = write_task(source_of(name.replace("_", " ")), language, "f.py").text
    assert max(map(len, text.splitlines())) <= 120
    assert verdict(text, tmp_path) == "correct"


def test_the_check_sees_a_wrong_kernel(tmp_path: Path) -> None:
    text = write_task(source_of("softmax"), "triton", "f.py").text
    wrong = text.replace("powers * (1.0 / tl.sum", "powers * (2.0 / tl.sum").replace("1.0 / total", "2.0 / total")
    assert wrong != text
    assert verdict(wrong, tmp_path) == "incorrect"


# Forms ------------------------------------------------------------------------------------------------

REFERENCES = {
    "a gelu in float32": 'def f(x: "float32[M, N]"):\n    return F.gelu(x, approximate="tanh")\n',
    "an exact gelu": 'def f(x: "float32[M, N]"):\n    return F.gelu(x)\n',
    "four axes and parts of them": (
        'def f(x: "[B, H, S, N]", scale: "[H, 1, N]", shift: "[S, 1]"):\n    return x * scale + shift\n'
    ),
    "one axis": 'def f(x: "float16[N]"):\n    return np.log1p(np.abs(x)) + np.expm1(np.minimum(x, 0))\n',
    "rows of three axes": (
        'def f(x: "[B, S, N]", mask: "bool[B, S, N]"):\n    return F.softmax(torch.where(mask, x / 8, -1e9), dim=-1)\n'
    ),
    "a variance by torch": (
        'def f(x: "float32[M, N]", weight: "float32[N]"):\n'
        "    return F.layer_norm(x, (x.shape[-1],), weight, eps=1e-5) + x.mean(-1, keepdim=True)\n"
    ),
}


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("which", REFERENCES)
def test_a_reference_of_each_form_is_right(which: str, language: str, tmp_path: Path) -> None:
    if "F." in REFERENCES[which]:
        pytest.importorskip("torch")
    assert verdict(written(REFERENCES[which], language).text, tmp_path) == "correct"


@pytest.mark.parametrize("language", LANGUAGES)
def test_long_rows_are_right_too(language: str, tmp_path: Path) -> None:
    """A limit of 32 columns sends rows of more columns to the kernel with loops."""
    text = write_task(source_of("cross entropy"), language, "f.py").text
    assert verdict(text.replace("8192", "32"), tmp_path) == "correct"


def test_a_naive_softmax_is_stabilised_and_said(tmp_path: Path) -> None:
    task = written('def f(x: "[M, N]"):\n    powers = np.exp(x)\n    return powers / powers.sum(-1, keepdims=True)\n')
    assert "tl.max(" in task.text and "without subtracting the largest" in task.notes[0] and "subtracts it" in task.text
    assert verdict(task.text, tmp_path) == "correct"


# Fewer instructions -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "there", "gone"),
    [
        ("return 0.5 * x * (1 + np.tanh(2 * x))", "x / (1.0 + tl.exp2(-5.77", "tanh"),
        ("t = np.tanh(x)\n    return t * (1 + t)", "libdevice.tanh(x)", "exp2"),
        ("return 3 * x * (1 + np.tanh(x))", "3.0 * x * (2.0 / (1.0 + tl.exp2", "6.0"),
        ("return x * (1 / (1 + np.exp(-x)))", "x / (1.0 + tl.exp2(-1.44", "tl.exp("),
        ("return x / np.sqrt((x * x).sum(-1, keepdims=True))", "x * tl.rsqrt(tl.sum(x * x, 0))", "inside, x"),
        ("return x / np.abs(x).max(axis=-1, keepdims=True)", "x / tl.max(", "1.0 /"),
        ("return x / (np.abs(x).max(axis=-1, keepdims=True) + 1e-6)", "x * value", "x / "),
        ("return np.tanh(np.log1p(np.exp(x)))", "tl.fdiv(value, value + 2.0)", "log1p"),
        ("return np.tanh(np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x))))", "tl.fdiv(value, value + 2.0)", "log1p"),
        ("return np.tanh(np.maximum(x, 1) + np.log1p(np.exp(-np.abs(x))))", "libdevice.tanh(", "tl.fdiv("),
        ("return x - (x + 1).sum(-1, keepdims=True)", "tl.where(inside, x + 1.0, 0.0)", "tl.sum(x"),
    ],
)  # fmt: skip
def test_cheaper_operations_take_the_place_of_others(body: str, there: str, gone: str, tmp_path: Path) -> None:
    """Only where they are as accurate, and give the same infinities and NaN."""
    text = written(f'def f(x: "float32[M, N]"):\n    {body}\n').text
    kernel = text[: text.index("def launch")]
    assert there in kernel and gone not in kernel.partition('"""One')[2]
    assert verdict(text, tmp_path) == "correct"


@pytest.mark.parametrize(("above", "function"), [("x", "approximate_quotient"), ("y", "quotient")])
def test_a_cutile_quotient_is_approximate_only_if_both_are_infinite_together(
    above: str, function: str, tmp_path: Path
) -> None:
    """Where exp(-x) is nearly infinite and y is infinite, an approximate y / (1 + exp(-x)) would be NaN."""
    body = f'def f(x: "float32[N]", y: "float32[N]"):\n    return {above} / (1 + np.exp(-x)) + y\n'
    text = written(body, "cutile").text
    assert re.search(rf"\b{function}\({above}_tile, (value|1\.0 \+ ct\.exp2)", text)
    assert verdict(text, tmp_path) == "correct"


# The command ------------------------------------------------------------------------------------------


def test_the_command_writes_a_task_that_loads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(("new", "--write", "fused SiLU-mul", "--language", "triton", "--dtype", "float16")) == 0
    task = load_task("silu_mul_triton.py")
    assert {each.dtype for each in task.tensors.values()} == {"float16"}


def test_the_command_reads_a_function(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("ops.py").write_text("import numpy as np\n\ndef f(x, w):\n    return np.tanh(x) * w\n")
    assert cli.main(("new", "ops.py:f", "--language", "cutile", "--json")) == 0
    assert json.loads(capsys.readouterr().out) == {"file": "f_cutile.py", "form": "element-wise", "notes": []}
    assert load_task("f_cutile.py").tensors["w"].shape == ("N",)
    assert cli.main(("new", "ops.py:f")) == 2
    assert "f_cutile.py exists" in capsys.readouterr().err
    assert cli.main(("new", "ops.py:f", "--language", "pallas")) == 2
    assert "unknown language 'pallas'; known: cutile, triton, cutedsl" in capsys.readouterr().err
