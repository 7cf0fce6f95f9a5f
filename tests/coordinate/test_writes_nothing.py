"""A spied file system: in a whole run, the user's files are written by the journal alone, and by it only if a change
was kept. Python reports each file that is opened for writing, moved or removed; the stack says who did it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tests.coordinate.made_agent import PROGRAM, program_in

ROOT = Path(__file__).parents[2]
CODE = """
import os, sys
from pathlib import Path
import pytest
from tests.coordinate.made_agent import FASTER, TIED, ScriptedJudge, proposing, worked
import tilewright.optimize.versions.journal  # so that importing it writes no byte code later

program, home = Path(sys.argv[1]), Path(sys.argv[2])
written = []

def spy(event, arguments):
    changes = ("os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.chmod", "os.link", "os.symlink", "os.truncate")
    opens = event == "open" and isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
    if not (opens or event in changes):
        return
    path = os.path.abspath(os.fsdecode(arguments[0])) if isinstance(arguments[0], (str, bytes, os.PathLike)) else ""
    if path.startswith(str(home)) or path in ("", "/dev/null"):
        return
    frame, by = sys._getframe(), set()
    while frame is not None:
        by.add(frame.f_code.co_filename)
        frame = frame.f_back
    by_journal = any(name.endswith("versions/journal.py") for name in by)
    name = os.path.basename(os.fsdecode(arguments[1])) if event == "os.rename" else os.path.basename(path)
    written.append((name, "journal" if by_journal else f"{event} by {sorted(by)[:3]}"))

patch = pytest.MonkeyPatch()
proposing(patch, slow="fast", slower="same")
judge = ScriptedJudge({"fast": FASTER, "same": TIED} if sys.argv[3] == "kept" else {})
sys.addaudithook(spy)
worked(program / "train.py", home, judge)
others = [each for each in written if each[1] != "journal"]
print(sorted({name for name, _ in written}))
print(others)
"""


@pytest.mark.parametrize("outcome", ["kept", "wrong"])
def test_the_coordinator_edits_nothing(tmp_path: Path, outcome: str) -> None:
    script = program_in(tmp_path / "program")
    words = [sys.executable, "-c", CODE, str(script.parent), str(tmp_path / "home"), outcome]
    environment = {"PATH": "/usr/bin:/bin", "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}", "PYTHONDONTWRITEBYTECODE": "1",
                   "TILEWRIGHT_HOME": str(tmp_path / "home"), "HOME": str(tmp_path)}  # fmt: skip
    done = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    names, others = done.stdout.splitlines()[-2:]
    assert others == "[]", "only the journal writes outside of Tilewright's folder"
    assert ("train.py" in names) == (outcome == "kept")
    assert (script.read_text() == PROGRAM) == (outcome == "wrong")
