"""bench/agent_kills_at_writes.py: a sample of its kills: the command, the journal and the ledger are real."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

from tests.bench.kit import bench_module


def test_kills_leave_the_tree_at_a_step_and_the_same_command_resumes(tmp_path: Path) -> None:
    bench = bench_module("agent_kills_at_writes")
    kills = bench.Kills(tmp_path, False)
    assert kills.expected["train.py"][1] == bench.PROGRAM["train.py"].encode()
    assert b"scaled_dot_product_attention" in kills.expected["first.py"][1]
    assert kills.moments.count("ours") > 20
    edits = [n for n, who in enumerate(kills.moments, 1) if who == "ours"]
    (killed,), end = kills.one(_Drawn(edits[len(edits) // 2]))
    assert killed.killed
    assert bench.wrong([killed], end) == []


class _Drawn:
    """Draws this write, at once, and no second kill."""

    def __init__(self, at: int) -> None:
        self.at = at

    def random(self) -> float:
        return 0.4

    def uniform(self, low: float, high: float) -> float:
        return high

    def choice(self, of: list[int] | tuple[float, float]) -> float:
        return self.at if isinstance(of, list) else of[0]


def test_a_changed_tree_is_seen(tmp_path: Path) -> None:
    """The bench's own checks can fail."""
    bench = bench_module("agent_kills_at_writes")
    tree = bench.program_in(tmp_path)
    original, git = bench.read_tree(tree), bench.git_state(tree)
    assert original["second.py"][0] == 0o750
    assert list(bench.recorded_trees(tree, tmp_path / "home", original)) == [original]
    (tree / "first.py").write_text("half")
    assert bench.read_tree(tree) != original
    subprocess.run(["git", "add", "first.py"], cwd=tree, check=True)
    assert bench.git_state(tree) != git
    bad = bench.Killed(1, 0.0, False, killed=True, step=-1, git_untouched=False, processes=2)
    assert len(bench.wrong([bad], bench.Resumed(2, False, False, 2, ["x.lock"]))) == 8


def test_the_command_is_killed_at_the_write(tmp_path: Path) -> None:
    bench = bench_module("agent_kills_at_writes")
    tree, log = bench.program_in(tmp_path), tmp_path / "log"
    plan = json.dumps({"at": 2, "late": 0.0, "log": str(log)})
    environment = {**os.environ, "TILEWRIGHT_HOME": str(tmp_path / "home"), bench.PLAN: plan}
    words = [sys.executable, bench.__file__, "--child", "agent", bench.QUESTION, "--yes"]
    done = subprocess.run(words, cwd=tree, env=environment, capture_output=True)
    assert done.returncode == -signal.SIGKILL
    assert len(log.read_text().split()) == 2
