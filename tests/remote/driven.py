"""Scripts that run `tilewright agent` on another machine. No model is asked, and the program's times are scripted."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from tests.bench.kit import bench_module
from tests.remote.kit import ROOT

from tilewright.ledger.agent_records import AgentParts

AGENT = """\
import pytest
from tests.coordinate.made_agent import FASTER, ScriptedJudge, proposing
from tilewright.cli.main import main
from tilewright.program import trying

asked = proposing(pytest.MonkeyPatch(), slow="fast", slower="faster")
trying.ProgramTrials = lambda *_, **__: ScriptedJudge({"fast": FASTER, "faster": FASTER})
code = main(["agent", "speed up train.py", "--yes"])
open("contexts.txt", "w").write("\\n".join(each.context for each in asked))
sys.exit(code)
"""
"""Two changes are kept. ``contexts.txt`` gets the context of each delegation."""

HANDED = """\
from pathlib import Path
from tilewright.cli.main import main
from tilewright.ledger.file import home
from tilewright.specialists import specialist_of
from tilewright.specialists.delegation import SpecialistAnswer

def writes(self, delegation):
    file = home() / "written" / "kernel.py"
    file.parent.mkdir(parents=True)
    file.write_text(delegation.context)
    return SpecialistAnswer("analysed", "wrote it", (), file=str(file))

def reads(self, delegation):
    same = Path(delegation.file).read_text() == delegation.context
    return SpecialistAnswer("analysed", f"same context: {same}", ())

type(specialist_of("triton")).answer, type(specialist_of("tileir")).answer = writes, reads
sys.exit(main(["agent", "Write a TileIR kernel for fused SiLU-mul", "--yes"]))
"""
"""One specialist writes a kernel, and the next reads it."""


def over_there(script: Path, text: str, on: str = "ssh:loop") -> int:
    """Runs a script of the user's folder over there, as benchmarks run."""
    script.write_text(f"import sys\nsys.path.insert(0, {str(ROOT)!r})\n{text}")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(sys, "argv", ["elsewhere.py", on, script.name])
        return int(bench_module("elsewhere").main())


def context_of(found: AgentParts, folder: Path) -> str:
    """Returns the execution context that all delegations have, byte for byte: as it is recorded, with the folders here.
    That which the specialists got has those over there."""
    start = "Execution context: "
    lines = {line for each in found.changes for line in each.delegation.splitlines() if line.startswith(start)}
    assert len(lines) == len(set(folder.joinpath("contexts.txt").read_text().splitlines())) == 1
    return lines.pop().removeprefix(start)
