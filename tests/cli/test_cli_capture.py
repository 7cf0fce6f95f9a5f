"""`tilewright capture` and `tilewright captured`, on programs that really run."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from tilewright.cli import capture as cli_capture
from tilewright.cli import run as cli_run
from tilewright.cli.main import main
from tilewright.errors import RequestError
from tilewright.task.loading import load_task

torch = pytest.importorskip("torch")

app = typer.Typer()
app.command(context_settings=cli_run.SETTINGS)(cli_capture.capture)
app.add_typer(cli_capture.app)

PROGRAM = """
import sys
import torch
import cuda.tile as ct

@ct.kernel
def scale(x, y, TILE: ct.Constant[int]):
    ct.store(y, (ct.bid(0),), ct.load(x, (ct.bid(0),), (TILE,)) * 2)

print("theirs", *sys.argv[1:])
for size in (64, 64, 128):
    try:
        ct.launch(0, (size // 8,), scale, (torch.zeros(size), torch.zeros(size), 8))
    except OSError:
        pass  # no driver here
sys.exit(7 if "fail" in sys.argv else 0)
"""

PAIR = """
import torch
import cuda.tile as ct
from kernels import halved, softmax

x, between, out = (torch.zeros(32, 64) for _ in range(3))
for _ in range(2):
    ct.launch(0, (32,), halved, (x, between, 64))
    ct.launch(0, (32,), softmax, (between, out, 64))
"""
KERNELS = """
import cuda.tile as ct

@ct.kernel
def halved(x, y, TILE: ct.Constant[int]):
    ct.store(y, (ct.bid(0), 0), ct.load(x, (ct.bid(0), 0), (1, TILE)) * 0.5)

@ct.kernel
def softmax(x, y, TILE: ct.Constant[int]):
    row = ct.load(x, (ct.bid(0), 0), (1, TILE))
    powers = ct.exp(row - ct.max(row, 1, keepdims=True))
    ct.store(y, (ct.bid(0), 0), powers / ct.sum(powers, 1, keepdims=True))
"""

SHOWS = """
code = "import os; open('said', 'w').write(repr(os.environ.get('TILEWRIGHT_CAPTURE_EXACT')))"
subprocess.run([sys.executable, "-c", code], check=True)
"""

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the programs launch on the CPU's tensors")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in ("TILEWRIGHT_HOME", "TILEWRIGHT_CAPTURE", "TILEWRIGHT_CAPTURE_EXACT", "TILEWRIGHT_PATCH"):
        monkeypatch.delenv(name, raising=False)
    without_torch = PROGRAM.replace("import torch", "import numpy as np")  # it starts in a third of the time
    (tmp_path / "program.py").write_text(without_torch.replace("torch.zeros(size)", "np.zeros(size, np.float32)"))
    return tmp_path


def invoke(*words: str) -> Any:
    result = CliRunner().invoke(app, list(words))
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def test_capture_show_and_task(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (here / "program.py").write_text(PROGRAM)
    done = invoke("capture", "--", sys.executable, "program.py", "--data", "fail")
    assert done.exit_code == 7, "the program's own"
    assert "theirs --data fail" in capfd.readouterr().out, "its arguments are its own, too"
    assert "3 launches of 2 kinds" in done.output
    assert "3 launches failed" in done.output

    rows = json.loads(invoke("captured", "show", "--json").stdout)
    assert [(row["n"], row["count"], row["launch"]["kernel"]) for row in rows] == [(1, 2, "scale"), (2, 1, "scale")]
    assert len(json.loads(invoke("captured", "show", "--json", "--top", "1").stdout)) == 1

    assert invoke("captured", "task", "2", "mine.py").exit_code == 0
    task = load_task("mine.py")
    assert (task.name, task.arrays(task.selected(None)[0].dims)["x"].shape) == ("scale", (128,))
    with pytest.raises(RequestError, match=r"mine.py exists; .* --force"):
        invoke("captured", "task", "2", "mine.py")
    assert invoke("captured", "task", "1", "mine.py", "--force").exit_code == 0


def test_each_command_takes_the_record_in_the_same_way(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And `show` and `pairs` still take it as an argument."""
    monkeypatch.setenv("TILEWRIGHT_CAPTURE_DESCRIBE", "1")
    (here / "program.py").write_text(PAIR)
    (here / "kernels.py").write_text(KERNELS)
    invoke("capture", "--out", "c.json", "--", sys.executable, "program.py")
    for command in ("show", "pairs"):
        written = invoke("captured", command, "--record", "c.json", "--json").stdout
        assert json.loads(written) and written == invoke("captured", command, "c.json", "--json").stdout
        with pytest.raises(RequestError, match="two records are named; fix: only --record c.json"):
            invoke("captured", command, "c.json", "--record", "c.json")
        assert "--record" in invoke("captured", command, "--help").output
    made = invoke("captured", "task", "1", "mine.py", "--record", "c.json")
    assert f"tilewright captured fuse 1 2 FILE.py --record {Path('c.json').resolve()}\n" in made.output


def test_kernels_that_only_share_an_input_are_not_called_a_pair(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWRIGHT_CAPTURE_DESCRIBE", "1")
    (here / "program.py").write_text(PAIR.replace("(between, out, 64)", "(x, out, 64)"))
    (here / "kernels.py").write_text(KERNELS)
    said = invoke("capture", "--", sys.executable, "program.py").output
    assert "share an array with the one before; if one reads its output: tilewright captured pairs" in said
    assert "no kernel writes what the launch directly after it reads" in invoke("captured", "pairs").output


@pytest.mark.long
def test_two_kernels_become_one(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWRIGHT_CAPTURE_DESCRIBE", "1")
    (here / "program.py").write_text(PAIR)
    (here / "kernels.py").write_text(KERNELS)
    assert "captured pairs" in invoke("capture", "--", sys.executable, "program.py").output
    (pair,) = json.loads(invoke("captured", "pairs", "--json").stdout)
    assert (pair["producer"], pair["consumer"], pair["times"], pair["problem"]) == (1, 2, 2, "")
    assert pair["saved_bytes"] == 2 * 2 * 32 * 64 * 4
    assert "possible" in invoke("captured", "pairs").output

    record = Path(".tilewright/capture.json")
    whole = record.read_text()
    record.write_text(whole.replace('"kind": 1', '"kind": 9'))
    written = invoke("captured", "task", "1", "alone.py")
    assert written.exit_code == 0 and load_task("alone.py").name == "halved"
    assert "which kernels could be one is not known: the record's order of launches is damaged" in written.output
    record.write_text(whole)
    made = json.loads(invoke("captured", "fuse", "1", "2", "one.py", "--json").stdout)
    assert (made["task"], made["problem"]) == ("halved_softmax", "")
    assert 0 < made["predicted_us"] < sum(made["predicted_apart_us"])
    task = load_task("one.py")
    assert set(task.tensors) == {"x", "y"} and "between" not in Path(made["kernel"]).read_text()
    with pytest.raises(RequestError, match=r"one.py exists; .* --force"):
        invoke("captured", "fuse", "1", "2", "one.py")
    with pytest.raises(RequestError, match="row 2 does not write what row 1 reads directly after it"):
        invoke("captured", "fuse", "2", "1", "other.py")
    for command in (("task", "1"), ("fuse", "1", "2")):
        with pytest.raises(RequestError, match="kernels.py is the file of halved"):
            invoke("captured", *command, "kernels.py", "--force")
    assert (here / "kernels.py").read_text() == KERNELS


def test_exact_reaches_the_programs(here: Path) -> None:
    (here / "program.py").write_text("import os, subprocess, sys\n" + SHOWS)
    for words, said in ((("--exact",), "1"), ((), None)):
        assert invoke("capture", *words, "--", sys.executable, "program.py").exit_code == 0
        assert (here / "said").read_text() == repr(said)


def test_json_is_alone_on_stdout(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    done = invoke("capture", "--out", "there/c.json", "--json", "--", sys.executable, "program.py")
    assert [row["count"] for row in json.loads(done.stdout)] == [2, 1]
    assert "theirs" not in capfd.readouterr().out
    assert (here / "there" / "c.json").is_file() and not list((here / "there").glob("*.part"))


def test_data_lies_beside_the_record(here: Path) -> None:
    invoke("capture", "--data", "--out", "c.json", "--", sys.executable, "program.py")
    (row, _) = json.loads(invoke("captured", "show", "c.json", "--json").stdout)
    assert set(row["data"]) == {"x", "y"}
    assert all(Path(file).parent == (here / "c.json.data").resolve() for file in row["data"].values())


def test_a_program_without_launches(here: Path) -> None:
    done = invoke("capture", "--", sys.executable, "-c", "print('nothing')")
    assert done.exit_code == 0
    assert "no launch was recorded" in done.output and "torch.compile" in done.output


def test_a_program_without_launches_leaves_the_earlier_record(here: Path) -> None:
    invoke("capture", "--data", "--", sys.executable, "program.py")
    before = json.loads(invoke("captured", "show", "--json").stdout)
    done = invoke("capture", "--", sys.executable, "-c", "raise SystemExit(1)")
    assert done.exit_code == 1
    assert "no launch was recorded" in done.output
    kept = [line for line in done.output.splitlines() if "capture.json was not replaced" in line]
    assert len(kept) == 1 and "still holds 3 launches" in kept[0] and "program.py" in kept[0]
    assert json.loads(invoke("capture", "--json", "--", sys.executable, "-c", "").stdout) == []
    assert json.loads(invoke("captured", "show", "--json").stdout) == before
    assert all(Path(file).exists() for row in before for file in row["data"].values())


@pytest.mark.parametrize(("ends", "code"), [(7, 7), (0, 3)])
def test_the_exit_code_outlives_the_record(here: Path, ends: int, code: int) -> None:
    (here / "program.py").write_text(f"import shutil, sys; shutil.rmtree('there'); sys.exit({ends})")
    done = invoke("capture", "--out", "there/c.json", "--", sys.executable, "program.py")
    assert done.exit_code == code
    assert len([line for line in done.output.splitlines() if "cannot write" in line]) == 1


ANSWERS = """
import signal, sys
waited = [signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM]
for each in waited:
    if signal.getsignal(each) != signal.SIG_IGN:
        signal.signal(each, lambda number, frame: print(signal.Signals(number).name, flush=True))
print("ready", flush=True)
while sys.stdin.readline() != "end\\n":
    pass
"""


@pytest.mark.parametrize("ignored", [False, True], ids=["", "under nohup"])
def test_signals_reach_the_program_once(here: Path, ignored: bool) -> None:
    """As without capture. A signal that is ignored, as SIGHUP under `nohup`, stays ignored."""
    (here / "answers.py").write_text(ANSWERS)
    words = [sys.executable, "-m", "tilewright", "capture", "--", sys.executable, "answers.py"]
    before = (lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN)) if ignored else None
    process = subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, preexec_fn=before
    )
    assert process.stdin and process.stdout and process.stdout.readline() == "ready\n"
    if ignored:
        process.send_signal(signal.SIGHUP)
    for name in ("SIGINT", "SIGUSR1", "SIGUSR2", "SIGQUIT", "SIGTERM", *([] if ignored else ["SIGHUP"])):
        process.send_signal(signal.Signals[name])
        assert process.stdout.readline() == f"{name}\n"
    rest, _ = process.communicate("end\n")
    assert rest == "" and process.returncode == 0


def test_ctrl_c_of_a_terminal_reaches_the_program_once(here: Path) -> None:
    """The terminal sends it to every process of the foreground group, so it is not passed on again."""
    (here / "answers.py").write_text(ANSWERS)
    process, terminal = pty.fork()
    if process == 0:
        os.execv(sys.executable, [sys.executable, "-m", "tilewright", "capture", "--", sys.executable, "answers.py"])
    shown = ""

    def read_until(text: str) -> None:
        nonlocal shown
        while text not in shown:
            shown += os.read(terminal, 4096).decode()

    read_until("ready")
    for _ in range(2):
        os.write(terminal, b"\x03")
        read_until("SIGINT")
        os.kill(process, signal.SIGUSR1)
        read_until("SIGUSR1")
        assert shown.count("SIGINT") == 1
        shown = ""
    os.write(terminal, b"end\n")
    read_until("no launch was recorded")
    assert os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == 0
    os.close(terminal)


def test_no_such_program(here: Path) -> None:
    done = invoke("capture", "--", "./gone")
    assert done.exit_code == 127
    assert "no such program: ./gone" in done.output
    with pytest.raises(RequestError, match="the name of the program is empty"):
        invoke("capture", "--", "")


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("captured", "show"), "no record .*; make one: tilewright capture"),
        (("captured", "show", "program.py"), "is not a record of tilewright capture"),
        (("capture", "--out", ".", "--", "./gone"), "it is not a file; choose another file with --out"),
        (("capture", "--out", "program.py/c.json", "--", "./gone"), "choose another file with --out"),
        (("capture", "--out", "program.py", "--", "./gone"), "not a record of .*; remove it, or choose another file"),
        (("capture", "--", "program\0.py"), "cannot start program.*: embedded null"),
        (("captured", "task", "1", "mine.txt"), "is not a Python file"),
        (("captured", "task", "1", "."), ". is not a Python file; name one, e.g. task.py"),
        (("captured", "task", "1", "gone/mine.py"), "no such folder"),
    ],
)
def test_mistakes_are_one_line(here: Path, words: tuple[str, ...], why: str) -> None:
    with pytest.raises(RequestError, match=why):
        invoke(*words)


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("captured", "task", "1", ""), "Invalid value for 'FILE.py': the path is empty"),
        (("tuned", "prune", "--older-than", "nan"), "nan is not a number"),
    ],
)
def test_wrong_values_of_a_group_are_one_line(
    here: Path, words: tuple[str, ...], why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ") and why in line
