"""`pytest --tilewright` on a machine with a GPU: a run knows where it was made (X-13)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest_plugins = ["pytester"]

pytestmark = pytest.mark.gpu

SRC = Path(__file__).parent.parent.parent / "src"

SUITE = """
    import torch

    def test_perf(record_property):
        x = torch.ones(1 << 20, device="cuda")
        times = []
        for _ in range(20):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            x.mul_(2.0)
            end.record()
            torch.cuda.synchronize()
            times.append(start.elapsed_time(end))
        ms = torch.tensor(times)
        record_property("benchmark", {"pytorch": {"forward": dict(
            mean=ms.mean().item(), std=ms.std().item(), rel_std=(ms.std() / ms.mean()).item() * 100,
            median=ms.median().item(), min=ms.min().item(), max=ms.max().item(), nrep=len(ms), peak_mem_mb=4)}})
"""


def test_runs_are_stored_with_their_gpu(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(SRC))
    pytester.makepyfile(test_ops=SUITE)
    plugin = ("-p", "no:tilewright", "-p", "tilewright.latencies.plugin")
    result = pytester.runpytest_subprocess(*plugin, "--tilewright", "--tilewright-save", "runs.json")
    assert result.ret == 0, result.outlines
    result.stdout.fnmatch_lines(["Pytorch: {*} ms"])
    (run,) = json.loads((pytester.path / "runs.json").read_text())["runs"]
    assert run["place"]["gpu"].startswith("NVIDIA")
    assert run["place"]["arch"].startswith("sm_")
    assert run["driver"]
    assert run["records"][0]["directions"]["forward"]["median"] > 0
