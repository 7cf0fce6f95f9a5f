"""A function of torch operations becomes one kernel: found, recorded, written, checked, and called by the file."""

from __future__ import annotations

import importlib.util
import json
import math
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.specialists.hot.programs import INFERENCE, program

from tilewright.errors import RequestError
from tilewright.program.command import ProgramCommand
from tilewright.program.copies import program_copy
from tilewright.runtime.called import VARIABLE
from tilewright.specialists import specialist_of
from tilewright.specialists.delegation import Delegation
from tilewright.specialists.hot import operation
from tilewright.specialists.hot.calls import CalledTensor, ObservedCall, calls_of, recorded_text
from tilewright.specialists.hot.functions import files_of_program, functions_of
from tilewright.specialists.hot.module import module_text
from tilewright.specialists.hot.operation import proposed_operations
from tilewright.specialists.hot.proposing import command_of, patch_of
from tilewright.specialists.hot.reference import HotReference
from tilewright.specialists.hot.running import started
from tilewright.specialists.proposal import NoProposal, ProgramProposal
from tilewright.specialists.writing.writing import ReferenceSource, write_task
from tilewright.task.loading import load_task

torch = pytest.importorskip("torch")


def job(
    file: Path | str, task: str = "make it faster", specialist: str = "triton", workload: str = "a run"
) -> Delegation:
    return Delegation(specialist, task, workload, ("latency in µs",), file=str(file))


def proposed(file: Path, name: str, language: str = "triton") -> ProgramProposal | NoProposal:
    """What is proposed for one function of a program."""
    functions = [each for each in functions_of(file) if each.name == name]
    (result,) = proposed_operations(functions, ProgramCommand.of([str(file)]), language)
    return result


@pytest.fixture
def untuned(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Tuning compiles a dozen configurations; only one test waits for that."""
    monkeypatch.setenv("TILEWRIGHT_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(operation, "tuned", lambda file, _: (None, load_task(str(file)).space.shipped))


def printed(script: Path, **environment: str) -> str:
    run = subprocess.run(
        [sys.executable, script.name], cwd=script.parent, capture_output=True, text=True, check=True,
        env={**os.environ, **environment},
    )  # fmt: skip
    return run.stdout


# Found ----------------------------------------------------------------------------------------------


def test_functions_that_only_compute_are_found(tmp_path: Path) -> None:
    found = {each.name: each for each in functions_of(program(tmp_path / "p", INFERENCE))}
    assert list(found) == ["RMSNorm.forward", "gelu", "softmax"], "no constructor, no loop, nothing in place"
    norm = found["RMSNorm.forward"]
    assert (norm.parameters, norm.attributes) == (("x",), ("eps", "weight")) or norm.attributes == ("weight", "eps")
    assert norm.named_in("make RMSNorm faster") and not norm.named_in("make forward faster")


@pytest.mark.parametrize(
    "function",
    [
        "def f(x, *more):\n    return x * 2 + 1\n",
        "@cached\ndef f(x):\n    return x * 2 + 1\n",
        "def f(x):\n    if x.sum() > 0:\n        return x * 2 + 1\n    return x\n",
        "def f(x):\n    return torch.relu(x, inplace=True) * 2 + 1\n",
        "def f(x, y):\n    y[0] = 3\n    return torch.add(x, 1, out=y) * 2\n",
        "def f(x):\n    return x * 2\n",
    ],
)
def test_functions_that_may_do_more_are_left_alone(function: str, tmp_path: Path) -> None:
    path = program(tmp_path, f"import torch\nfrom functools import cache as cached\n\n{function}")
    assert functions_of(path) == ()


def test_only_files_that_the_program_imports_are_read(tmp_path: Path) -> None:
    script = program(tmp_path, "import layers.norm\nfrom helpers import f\n")
    program(tmp_path / "layers", "from . import inner\n", "norm.py")
    for folder, name in (("layers", "inner"), ("layers", "__init__"), (".", "helpers"), (".", "setup")):
        program(tmp_path / folder, "", f"{name}.py")
    names = [path.relative_to(tmp_path).as_posix() for path in files_of_program(ProgramCommand.of([str(script)]))]
    assert sorted(names) == ["helpers.py", "layers/__init__.py", "layers/inner.py", "layers/norm.py", "program.py"]


def test_calls_are_recorded_with_shapes_and_numbers(tmp_path: Path) -> None:
    file = program(tmp_path / "p", INFERENCE)
    before = sorted(path.name for path in file.parent.iterdir())
    functions = functions_of(file)
    calls, end = calls_of(ProgramCommand.of([str(file)]), functions)
    assert end.code == 0 and sorted(path.name for path in file.parent.iterdir()) == before
    (norm,) = next(each for function, each in calls.items() if function.name == "RMSNorm.forward")
    assert norm.tensors["x"].shape == (4, 32, 64) and norm.tensors["self.weight"].shape == (64,)
    assert norm.values == {"self.eps": "1e-06"} and norm.others == () and norm.count == 3
    assert norm.results[0].dtype == "float32" and not norm.needs_gradient
    (softmax,) = next(each for function, each in calls.items() if function.name == "softmax")
    assert softmax.values == {"dim": "-1"}


def test_a_program_that_goes_on_is_ended_and_its_record_kept(tmp_path: Path) -> None:
    endless = "import torch\n\ndef f(x):\n    return x * 2 + 1\n\nwhile True:\n    f(torch.ones(4))\n"
    file = program(tmp_path / "p", endless)
    command, record = ProgramCommand.of([str(file)]), tmp_path / "record"
    record.mkdir()
    with program_copy(command, {file: recorded_text(file, {"0": functions_of(file)[0]})}) as copy:
        end = started(copy, {VARIABLE: str(record)}, 100.0, lambda: any(record.glob("*.json")), longer=1.0)
    assert end.code is None and str(end) == "the program was ended after its time"
    (row,) = json.loads(next(record.glob("*.json")).read_text())
    assert row["function"] == "0" and row["count"] >= 1


# Proposed -------------------------------------------------------------------------------------------


@pytest.mark.long
def test_without_a_gpu_the_kernel_is_a_stored_patch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole way of the specialist, tuning included. The patched program computes on the CPU what it did before."""
    monkeypatch.setenv("TILEWRIGHT_HOME", str(tmp_path / "home"))
    file = program(tmp_path / "p", INFERENCE)
    answer = specialist_of("triton").propose(job(file, "RMSNorm is hot"))
    assert isinstance(answer, NoProposal) and answer.why == "blocked"
    assert "correct by the interpreter, to be confirmed on a GPU: git apply " in answer.reason
    assert [path.name for path in file.parent.iterdir()] == [file.name] and file.read_text() == INFERENCE
    before = printed(file)
    subprocess.run(["git", "apply", answer.evidence], cwd=file.parent, check=True)
    assert (
        file.parent / "rms_norm_triton.py"
    ).exists() and "rms_norm_triton_2.takes(x, self.weight" in file.read_text()
    assert 'rms_norm_triton = "a name that is taken"\n' in file.read_text()
    assert printed(file) == before, "the fallback is equal to the bit"
    (file.parent / "check.py").write_text(CHECK)
    assert printed(file.parent / "check.py", TRITON_INTERPRET="1").split() == ["True", "False"]


CHECK = """
import torch
import rms_norm_triton as module
torch.manual_seed(1)
x, weight = torch.randn(3, 5, 100), torch.rand(100)
expected = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * weight
print(torch.allclose(module.rms_norm(x, weight), expected, rtol=1e-5))  # by Triton's interpreter, on the CPU
print(module.takes(x, weight, 1e-6))  # tensors of the CPU
"""


@pytest.mark.usefixtures("untuned")
def test_the_same_in_cutile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = program(tmp_path / "p", INFERENCE)
    monkeypatch.setattr(
        operation, "tuned", lambda file, _: (None, load_task(str(file)).space.shipped.replace(occupancy=4))
    )
    result = proposed(file, "softmax", "cutile")
    assert isinstance(result, ProgramProposal), result
    (module,) = (text for path, text in result.texts.items() if path != file)
    assert "@ct.kernel(occupancy=4)\ndef softmax_kernel(x, y, TILE_N: ct.Constant[int]):" in module
    assert (
        "ct.launch(torch.cuda.current_stream(), grid, kernel, args)" in module
        and "tilewright" not in module.split('"""')[2]
    )
    assert result.ran == (r"\bsoftmax_kernel(_long_rows|_by_pointers)?\b",) and result.site == f"{file}:28"
    folder = file.parent
    (folder / "m.py").write_text(module)
    spec = importlib.util.spec_from_file_location("m", folder / "m.py")
    assert spec is not None and spec.loader is not None
    loaded: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    assert loaded.takes(torch.zeros(2, 3, 4), -1) is False


X = CalledTensor("float32", (4, 8), "cpu", contiguous=True, gradient=False, plain=True)


@pytest.mark.parametrize(
    ("reason", "body", "call"),
    [
        (
            "gradients are recorded in its calls",
            "x * 2 + 1",
            {"tensors": {"x": replace(X, gradient=True)}, "grad": True},
        ),
        ("its tensor 'x' is not contiguous", "x * 2 + 1", {"tensors": {"x": replace(X, contiguous=False)}}),
        ("it is called under autocast", "x * 2 + 1", {"autocast": True}),
        ("its tensor 'x' is of a subclass", "x * 2 + 1", {"tensors": {"x": replace(X, plain=False)}}),
        ("its argument 'x' is neither", "x * 2 + 1", {"tensors": {}, "others": ("x",)}),
        ("does not compute tensors", "x * 2 + 1", {"results": ()}),
        ("needs a proposer: ", "torch.cumsum(x * 2 + 1, 0)", {}),
        ("needs a proposer: f: gave up after 3 failures", "torch.sin(x * 1e9) * 1e9", {}),
        ("f is no reference: ", "x * float('inf') * 2", {}),
    ],
)
@pytest.mark.usefixtures("untuned")
def test_what_cannot_be_a_kernel_says_why(reason: str, body: str, call: dict[str, Any], tmp_path: Path) -> None:
    file = program(tmp_path / "p", f"import torch\n\ndef f(x):\n    return {body}\n")
    plain = ObservedCall({"x": X}, {}, (), (X,), grad=False, autocast=False, count=1, seconds=1.0)
    (function,) = functions_of(file)
    result = operation._proposed(function, [replace(plain, **call)], ProgramCommand.of([str(file)]), "triton", math.inf)
    assert isinstance(result, NoProposal) and reason in result.reason and "\n" not in result.reason
    assert (result.why, result.evidence) == ("inapplicable", f"{file}:3")


@pytest.mark.usefixtures("untuned")
def test_a_call_with_gradients_leaves_those_without(tmp_path: Path) -> None:
    """Of a program that trains and evaluates, the kernel gets the calls of the evaluation."""
    file = program(tmp_path / "p", "import torch\n\ndef f(x):\n    return x * 2 + 1\n")
    plain = ObservedCall({"x": X}, {}, (), (X,), grad=False, autocast=False, count=1, seconds=1.0)
    trained = replace(plain, tensors={"x": replace(X, gradient=True)}, grad=True, seconds=9.0)
    (function,) = functions_of(file)
    result = operation._proposed(function, [trained, plain], ProgramCommand.of([str(file)]), "triton", math.inf)
    assert isinstance(result, ProgramProposal)


@pytest.mark.parametrize(("end", "said"), [("raise ValueError('no')", "exit code 1 (ValueError: no)"), ("", "code 0")])
def test_a_program_that_does_not_call_is_blocked(end: str, said: str, tmp_path: Path) -> None:
    file = program(tmp_path / "p", f"def f(x):\n    return x * 2 + 1\n\n{end}\n")
    result = specialist_of("triton").propose(job(file))
    assert isinstance(result, NoProposal) and result.why == "blocked" and result.evidence == f"{file}:1"
    assert result.reason.startswith("no call of f was recorded: the program ended with ") and said in result.reason


def test_bad_input_is_one_line(tmp_path: Path) -> None:
    broken, empty = program(tmp_path / "b", "def f(:\n"), program(tmp_path / "e", "print('nothing')\n")
    for file, said in ((broken, "invalid syntax"), (tmp_path / "none.py", "no file"), ("", "names no program")):
        with pytest.raises(RequestError, match=said) as raised:
            specialist_of("triton").propose(job(file))
        assert "\n" not in str(raised.value)
    nothing = specialist_of("triton").propose(job(empty))
    assert isinstance(nothing, NoProposal) and nothing.why == "inapplicable" and "has no kernel" in nothing.reason


def test_the_command_is_the_workload_if_it_starts_the_file(tmp_path: Path) -> None:
    file = program(tmp_path, "")
    assert command_of(job(file, workload=f"python {file} --steps 3")).words[1:] == (str(file), "--steps", "3")
    assert command_of(job(file, workload="one step of training")).words[1:] == (str(file),)


def test_a_patch_adds_changes_and_applies(tmp_path: Path) -> None:
    old, new = tmp_path / "old.py", tmp_path / "folder" / "new.py"
    old.write_text("a = 1\nb = 2")
    texts = {old: "a = 1\nb = 3", new: "c = 4\n"}
    subprocess.run(["git", "apply", "-"], cwd=tmp_path, input=patch_of(texts, tmp_path), text=True, check=True)
    assert {path: path.read_text() for path in texts} == texts


@pytest.mark.parametrize("language", ["cutile", "triton"])
def test_a_product_becomes_a_module_without_tilewright(language: str, tmp_path: Path) -> None:
    """The launch of a task asks for the GPU and makes descriptors; the module has torch and the language for that."""
    text = "import torch\n\ndef f(a: 'bfloat16[M, K]', b: 'bfloat16[K, N]'):\n    return torch.relu(a @ b)\n"
    source = ReferenceSource(text, "f", "program.py:f")
    shapes, dtypes = {"a": ("M", "K"), "b": ("K", "N")}, {"a": "bfloat16", "b": "bfloat16"}
    dims = {"M": 8, "K": 8, "N": 8}
    reference = HotReference(source, {"a": "a", "b": "b"}, {}, shapes, {}, dims, dtypes, ("bfloat16",))
    file, task = tmp_path / "written.py", write_task(source, language, "written.py")
    file.write_text(task.text)
    module = module_text(task, reference, language, load_task(str(file)).space.shipped)
    compile(module, "f_module.py", "exec")
    code = module.split('"""', 2)[2]
    assert not re.search(r"\b(tw|tilewright|config|hardware)\b", code), code
    assert "_gpu().multi_processor_count * BLOCKS_PER_SM" in code and "def _gpu():" in code
    assert ("TensorDescriptor.from_tensor(a, [TILE_M, TILE_K])" in code) == (language == "triton")
    assert max(map(len, module.splitlines())) <= 120
