"""`tilewright profile` from the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.profile.made_traces import data_parallel, eager_training

from tilewright.cli import main as cli
from tilewright.cli.exit_codes import CANNOT, DONE, WRONG_REQUEST
from tilewright.hardware.gpu import detect


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    eager_training().write(tmp_path / "trace.json.gz")
    return tmp_path


def test_a_trace(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["profile", "trace.json.gz"]) == DONE
    shown = capsys.readouterr().out
    for text in ("of idle: host late", "Primary bottleneck: ", "ampere_sgemm", "measured by torch.profiler trace"):
        assert text in shown


def test_json_and_files(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--html", "p.html", "--markdown", "p.md", "--analysis", "a.md", "--for-agent", "r.txt"]
    assert cli.main(["profile", "trace.json.gz", "--json", *options]) == DONE
    found = json.loads(capsys.readouterr().out)
    assert found["gpus"][0]["figures"]["compute"]["value"] == pytest.approx(0.746, abs=1e-3)
    assert found["raw"][0]["source"].startswith("trace.json.gz:")
    assert (here / "r.txt").read_text().startswith("Primary bottleneck: hot-kernel: ")
    assert (here / "p.html").read_text().startswith("<!DOCTYPE html>")
    assert "## Top Kernels" in (here / "p.md").read_text() and "## Findings" in (here / "a.md").read_text()


def test_some_steps_of_a_trace(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["profile", "trace.json.gz", "--steps", "1:3", "--json"]) == DONE
    found = json.loads(capsys.readouterr().out)
    assert found["traces"][0]["steps"] == 2
    assert found["gpus"][0]["figures"]["kernels"]["value"] == 80, "40 in each step"
    assert {row["name"]: row["count"] for row in found["traces"][0]["calls"]}["cudaLaunchKernel"] == 80


def test_a_folder_of_ranks(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "ranks").mkdir()
    for rank in (0, 1):
        data_parallel(rank=rank).write(here / "ranks" / f"rank{rank}.json")
    assert cli.main(["profile", "ranks", "--analysis", "-"]) == DONE
    assert "rank 1, GPU 1" in capsys.readouterr().out


def test_the_communication_in_traces_of_ranks(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for rank in (0, 1):
        data_parallel(rank=rank).write(here / f"rank{rank}.json")
    assert cli.main(["profile", "--collectives", "rank0.json", "rank1.json"]) == DONE
    shown = capsys.readouterr().out
    for text in ("68.5 %", "all_reduce", "rank 1 communicates for 27.6 % of its time while nothing computes"):
        assert text in shown
    assert cli.main(["profile", "--collectives", "rank0.json", "rank1.json", "--json"]) == DONE
    found = json.loads(capsys.readouterr().out)
    assert [each["rank"] for each in found["ranks"]] == [0, 1] and found["ranks"][0]["waited_us"] > 0


@pytest.mark.parametrize(
    ("words", "code", "why"),
    [
        ([], WRONG_REQUEST, "name a trace, or a program"),
        (["--collectives", "train.py"], WRONG_REQUEST, "--collectives takes traces of ranks, or nothing"),
        (["--collectives", "--html", "x.html"], WRONG_REQUEST, "--collectives writes no file"),
        (["gone.json"], WRONG_REQUEST, "cannot read gone.json: No such file"),
        (["trace.json.gz", ""], WRONG_REQUEST, "'' is no trace: give traces, or a program"),
        (["trace.json.gz", "--", "python", "a.py"], WRONG_REQUEST, "'python' is no trace: give traces, or a program"),
        (["train.py"], WRONG_REQUEST, "train.py is a program: tilewright profile -- python train.py"),
        (["--steps", "5", "--", "python"], WRONG_REQUEST, "--steps 5 is not A:B with A < B"),
        (["trace.json.gz", "--steps", "7:9"], WRONG_REQUEST, "has no activity of steps 7:9 (its steps: 0, 1, 2, 3)"),
        (["--", ""], WRONG_REQUEST, "the name of the program is empty"),
        (["trace.json.gz", "--counters"], WRONG_REQUEST, "--counters runs the program again"),
        (["--out", ".", "--", "python"], WRONG_REQUEST, "has traces already; choose another folder"),
        (["empty"], WRONG_REQUEST, "no traces"),
    ],
)
def test_requests_that_cannot_be_met(
    here: Path, capsys: pytest.CaptureFixture[str], words: list[str], code: int, why: str
) -> None:
    (here / "empty").mkdir()
    assert cli.main(["profile", *words]) == code
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ") and why in line


@pytest.mark.skipif(detect() is not None, reason="there is a GPU")
def test_without_a_gpu_a_program_is_not_run(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["profile", "--json", "--", "python", "-c", "open('ran', 'w')"]) == CANNOT
    out, err = capsys.readouterr()
    assert "needs a GPU, and there is none here" in err and len(err.splitlines()) == 1
    assert json.loads(out)["error"]["kind"] == "machine"
    assert not (here / "ran").exists()
