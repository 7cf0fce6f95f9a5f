"""`tilewright route` and `tilewright specialists` on the command line: JSON, exit codes, time, bad requests."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tilewright.cli import main as cli
from tilewright.coordinate.routing import RULES
from tilewright.specialists import specialists

EXAMPLES = Path(__file__).parents[2] / "examples"


def printed(capsys: pytest.CaptureFixture[str], *arguments: object, code: int = 0) -> Any:
    assert cli.main([str(one) for one in (*arguments, "--json")]) == code
    return json.loads(capsys.readouterr().out)


def test_a_question_is_routed(capsys: pytest.CaptureFixture[str]) -> None:
    found = printed(capsys, "route", "Write a Triton kernel for fused SiLU-mul, then run it on Tile IR")
    assert found["specialists"] == ["triton", "tileir"]
    assert found["why"]
    assert cli.main(["route", "Generate TileIR kernel"]) == 0
    out = capsys.readouterr().out.splitlines()
    assert out[0] == "triton, then tileir"
    assert out[1].startswith("why: Tile IR is named")


def test_what_is_no_performance_question_is_exit_code_0(capsys: pytest.CaptureFixture[str]) -> None:
    assert printed(capsys, "route", "train ticket booking app")["specialists"] == []
    assert cli.main(["route", "a cute cat"]) == 0
    assert capsys.readouterr().out.startswith("nobody\nwhy: ")


def test_file_and_capability_are_facts(capsys: pytest.CaptureFixture[str]) -> None:
    file = EXAMPLES / "triton" / "softmax.py"
    found = printed(capsys, "route", "optimize this kernel", file, "--capability", "10.0")
    assert (found["specialists"], found["arch"]) == (["tileir"], "sm_100")
    assert found["kernels"]["languages"] == {"triton": ["softmax"]}
    assert printed(capsys, "route", "optimize this kernel", file, "--arch", "sm_90")["specialists"] == ["triton"]
    named = printed(capsys, "route", f"optimize this kernel: {EXAMPLES / 'matmul.py'}")
    assert named["specialists"] == ["cutile"]


def test_bad_requests_are_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, said in (
        (("speed up", "no_such_file.py"), "cannot read no_such_file.py: No such file or directory"),
        (("",), 'no question; ask one, for example "speed up train.py"'),
        (("speed up", "--arch", "sm_1"), "unknown architecture 'sm_1'"),
        (("speed up", "--capability", "nine"), "'nine' is no compute capability; write it as 9.0"),
        (("speed up", "--arch", "sm_90", "--capability", "9.0"), "give one of them"),
    ):
        error = printed(capsys, "route", *arguments, code=2)["error"]
        assert said in error["message"]
        assert "\n" not in error["message"]


def test_specialists_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    found = printed(capsys, "specialists")
    assert [each["name"] for each in found["specialists"]] == [each.name for each in specialists()]
    for each in found["specialists"]:
        assert each["domain"] and each["returns"] and each["examples"]
        assert all(isinstance(need["met"], bool) and need["detail"] for need in each["needs"])
    tileir = next(each for each in found["specialists"] if each["name"] == "tileir")
    assert tileir["compiled_for"][0] == "sm_80" and "sm_100" in tileir["stated"]
    assert cli.main(["specialists"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    for rule in RULES:
        assert rule.text in out
    for each in specialists():
        assert all(text in out for text in (each.domain, each.returns, *each.aliases, *each.examples))


def test_routing_imports_no_compiler_and_no_array_library() -> None:
    """What takes the time of a short command is imports: routing is to take at most half a second."""
    heavy = {"numpy", "libcst", "torch", "triton", "cuda.tile", "rich", "pydantic", "tilewright.languages"}
    code = (
        "import sys; from tilewright.cli import main as cli; "
        "code = cli.main(['route', 'Write a kernel for softmax', '--json']); "
        f"print(sorted({heavy!r} & set(sys.modules)), code, file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stderr.splitlines()[-1] == "[] 0"


def test_the_folders_of_a_path_are_not_words_of_the_question(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """A checkout in a folder called `ci` or `django` holds the same kernel."""
    for folder in ("ci", "django"):
        file = tmp_path / folder / "matmul.py"
        file.parent.mkdir()
        file.write_text((EXAMPLES / "matmul.py").read_text())
        found = printed(capsys, "route", f"optimize this kernel: {file}")
        assert found["specialists"] == ["cutile"], folder
    assert printed(capsys, "route", "make the CPU/GPU pipeline of our CI faster")["specialists"] == []
