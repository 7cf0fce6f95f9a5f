"""`pytest --tilewright` in real sessions of pytest: what it prints, stores, compares, and costs (X-01, X-02, P-17)."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np  # noqa: F401  (pytester forgets what a run imports, and NumPy is imported once per process)
import pytest

pytest_plugins = ["pytester"]

SRC = Path(__file__).parents[2] / "src"
PLUGIN = ("-p", "no:tilewright", "-p", "tilewright.latencies.plugin", "-p", "no:cacheprovider")
"""By its module, whether or not the package is installed here."""

SUITE = """
    import os, pytest

    def numbers(ms):
        return dict(mean=ms, std=ms / 50, rel_std=2.0, median=ms, min=ms * 0.9, max=ms * 1.1, nrep=20,
                    peak_mem_mb=12, kernel_times=[{"name": "k"}])

    @pytest.mark.parametrize("backend", ["cutile", "cutile_rs"])
    def test_perf(backend, record_property):
        ms = float(os.environ.get("MS", "0.0125"))
        record_property("benchmark", {backend: {"forward": numbers(ms), "backward": numbers(2 * ms)}})

    def test_plain():
        pass
"""


@pytest.fixture
def suite(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    monkeypatch.setenv("PYTHONPATH", str(SRC))
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)
    pytester.makepyfile(test_ops=SUITE)
    return pytester


def out(suite: pytest.Pytester, *arguments: str, code: int = 0) -> str:
    result = suite.runpytest_inprocess(*PLUGIN, *arguments, no_reraise_ctrlc=True)
    assert result.ret == code, result.outlines
    return result.stdout.str()


def test_every_record_is_shown(suite: pytest.Pytester) -> None:
    """X-01: nobody else prints them. X-02: cutile and cutile_rs apart."""
    shown = out(suite, "--tilewright").splitlines()
    lines = {line.split(":")[0]: shown[i - 1] for i, line in enumerate(shown) if line.endswith("}} ms")}
    assert lines == {"Cutile": "test_ops.py::test_perf[cutile]", "Cutile_rs": "test_ops.py::test_perf[cutile_rs]"}
    table = [line.split() for line in shown if line.strip().endswith("test_perf[cutile_rs]") and "ward" in line]
    assert [row[0] for row in table] == ["0.0125", "0.025"]
    assert [row[-3:-1] for row in table] == [["cutile_rs", "forward"], ["cutile_rs", "backward"]]


def test_without_the_option_it_does_nothing(suite: pytest.Pytester) -> None:
    assert "tilewright" not in out(suite).lower()


def test_what_everybody_pays_is_two_small_modules(suite: pytest.Pytester) -> None:
    code = (
        "import pytest, sys; before = set(sys.modules); import tilewright.latencies.plugin; "
        "print(*sorted(set(sys.modules) - before))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert {name for name in loaded if name.startswith("tilewright")} == {
        "tilewright",
        "tilewright.latencies",
        "tilewright.latencies.plugin",
    }  # the package itself is one docstring
    assert not loaded & {"numpy", "torch", "rich", "typer", "cuda"}


@pytest.mark.long
def test_with_several_workers_the_controller_prints(suite: pytest.Pytester) -> None:
    pytest.importorskip("xdist")
    result = suite.runpytest_subprocess(*PLUGIN, "--tilewright", "-n", "2", "--tilewright-save", "runs.json")
    assert result.ret == 0
    result.stdout.fnmatch_lines_random(["Cutile: {*} ms", "Cutile_rs: {*} ms", "*2 test processes at a time*"])
    (run,) = json.loads((suite.path / "runs.json").read_text())["runs"]
    assert run["place"]["workers"] == 2
    assert len(run["records"]) == 2


def test_a_malformed_record_is_a_line_and_no_crash(suite: pytest.Pytester) -> None:
    suite.makepyfile(
        test_bad="""
        def test_bad(record_property):
            record_property("benchmark", {"cutile": {"forward": {"median": "fast"}}})
        def test_worse(record_property):
            record_property("benchmark", object())
        """
    )
    shown = out(suite, "--tilewright")
    assert "not read: test_bad.py::test_bad: cutile forward: mean, std, rel_std, min" in shown
    assert "not read: test_bad.py::test_worse: its benchmark record is an object" in shown
    assert "Cutile: {" in shown


def test_a_record_from_a_teardown_counts_and_that_of_a_failed_test_does_not(suite: pytest.Pytester) -> None:
    suite.makepyfile(
        test_more="""
        import pytest
        from test_ops import numbers

        @pytest.fixture
        def late(record_property):
            yield
            record_property("benchmark", {"late": {"forward": numbers(1.0)}})

        def test_late(late):
            pass

        def test_wrong(record_property):
            record_property("benchmark", {"wrong": {"forward": numbers(1.0)}})
            assert False
        """
    )
    suite.syspathinsert()
    shown = out(suite, "--tilewright", "--tilewright-save", "runs.json", code=1)
    assert "Late: {" in shown
    assert "test_more.py::test_wrong  (the test failed: not stored, not compared)" in shown
    (run,) = json.loads((suite.path / "runs.json").read_text())["runs"]
    assert {record["backend"] for record in run["records"]} == {"cutile", "cutile_rs", "late"}


def saved(suite: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, file: str, times: list[float], *more: str) -> str:
    shown = ""
    for ms in times:
        monkeypatch.setenv("MS", str(ms))
        shown = out(suite, "--tilewright", "--tilewright-save", file, *more)
    return shown


def test_runs_add_up_to_a_verdict(suite: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    """Never by a single number: three runs against five say something, but the exit code needs five, because it is
    corrected for four comparisons."""
    saved(suite, monkeypatch, "before.json", [0.100, 0.104, 0.098, 0.101, 0.102])
    against = ("--tilewright-baseline", "before.json", "--tilewright-fail-slower", "10")
    early = saved(suite, monkeypatch, "after.json", [0.130, 0.133], *against)
    assert "stored as run 2 of" in early
    assert early.count("not enough runs  2 runs against 5: 1 more of this code") == 4
    undecided = saved(suite, monkeypatch, "after.json", [0.128], *against)
    assert "10 cannot fail yet, because it is corrected for 4 comparisons; missing runs: 2 more of" in undecided
    saved(suite, monkeypatch, "after.json", [0.129], *against)
    monkeypatch.setenv("MS", "0.131")
    late = out(suite, "--tilewright", "--tilewright-save", "after.json", *against, code=1)
    assert late.count(" slower ") >= 4
    assert "FAILED: slower by more than 10 %: test_ops.py::test_perf[cutile] cutile forward" in late
    assert "4 comparisons at 95 %: about 0.2 of them" in late
    assert (
        "finds a slowdown of 10 % itself in at most 2.5% of cases; to find 10 %, set a lower limit, such as 4" in late
    )
    assert "4 and 4 runs: nothing; 6 and 6 runs: 1" in late
    assert "3 passed" in late
    elsewhere = out(suite, "--tilewright", *against, "--tilewright-machine", "other")
    assert elsewhere.count("not in the baseline") == 4
    assert "5 runs are not compared: they ran elsewhere" in elsewhere


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--tilewright-save", "a.json"], "--tilewright-save needs --tilewright"),
        (["--tilewright", "--tilewright-baseline", "none.json"], "no such file"),
        (["--tilewright", "--tilewright-baseline", "bad.json"], "is not JSON"),
        (["--tilewright", "--tilewright-save", "bad.json"], "is not JSON"),
        (["--tilewright", "--tilewright-save", "none/a.json"], "no such folder"),
        (["--tilewright", "--tilewright-fail-slower", "5"], "needs --tilewright-baseline"),
        (
            ["--tilewright", "--tilewright-baseline", "good.json", "--tilewright-fail-slower", "-5"],
            "give a percentage of at least 0",
        ),
        (["--tilewright", "--tilewright-baseline", "good.json", "--tilewright-save", "good.json"], "both name"),
    ],
)
def test_a_mistake_is_one_line_before_any_test_runs(suite: pytest.Pytester, arguments: list[str], said: str) -> None:
    (suite.path / "bad.json").write_text("{")
    (suite.path / "good.json").write_text('{"format": "tilewright latency runs", "version": 1, "runs": []}')
    result = suite.runpytest_inprocess(*PLUGIN, *arguments)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    (line,) = [line for line in result.errlines if line.strip()]
    assert line.startswith("ERROR: ")
    assert said in line
    assert "passed" not in result.stdout.str()


def test_an_interrupted_run_is_not_stored(suite: pytest.Pytester) -> None:
    suite.makepyfile(test_zz="def test_stop(): raise KeyboardInterrupt")
    shown = out(suite, "--tilewright", "--tilewright-save", "runs.json", code=2)
    assert "the run did not finish: nothing was stored or compared" in shown
    assert not (suite.path / "runs.json").exists()


def test_a_file_that_cannot_be_written_at_the_end_fails_the_run(suite: pytest.Pytester) -> None:
    suite.makepyfile(
        test_zz="""
        from pathlib import Path
        def test_break(): Path("runs.json").write_text("not ours")
        """
    )
    shown = out(suite, "--tilewright", "--tilewright-save", "runs.json", code=1)
    assert "not stored: " in shown
    assert (suite.path / "runs.json").read_text() == "not ours"
