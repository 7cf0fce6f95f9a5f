"""Kills runs of `tilewright agent` at random moments with SIGKILL, and looks at the user's files each time.

    python bench/agent_kills.py [--kills 100] [--seed 0] [--out FILE.json]

Ledger, journal, git and files are real; what a program's runs say is scripted (tests/coordinate/made_agent.py), so that
most of the time is spent where a kill could do harm. After each kill the tree must be byte-identical to one of the
recorded versions: untouched, or with the first change, or with both. The same run is then resumed, and killed again,
until it finishes; then a new program is taken.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "src")]

from tests.coordinate.made_agent import PROGRAM, program_in  # noqa: E402

ONE = PROGRAM.replace("slow =", "fast =")
BOTH = ONE.replace("slower =", "faster =")
CHILD = """
import sys
from pathlib import Path
import pytest
from tests.coordinate.made_agent import FASTER, ScriptedJudge, coordinator, plan_for, proposing
script, home = Path(sys.argv[1]), Path(sys.argv[2])
proposing(pytest.MonkeyPatch(), slow="fast", slower="faster")
plan = plan_for(script)
print("begun", flush=True)
with coordinator(plan, home, ScriptedJudge({"fast": FASTER, "faster": FASTER})) as made:
    made.work()
"""


def started(script: Path, home: Path) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}", "TILEWRIGHT_HOME": str(home)}
    words = [sys.executable, "-c", CHILD, str(script), str(home)]
    child = subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert child.stdout is not None
    child.stdout.readline()  # the imports are done
    return child


def others(folder: Path) -> list[str]:
    """Returns the files beside the script, without git's."""
    return sorted(str(path) for path in folder.rglob("*") if ".git" not in path.parts and path.name != "train.py")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    rng, kills, finished, states, broken, longest = random.Random(given.seed), 0, 0, [0, 0, 0], [], 1.0
    while kills < given.kills:
        with tempfile.TemporaryDirectory() as place:
            script = program_in(Path(place) / "program")
            while kills < given.kills:
                child = started(script, Path(place) / "home")
                began = time.monotonic()
                try:
                    _, error = child.communicate(timeout=rng.uniform(0.0, 1.1 * longest))
                except subprocess.TimeoutExpired:
                    child.kill()
                    child.communicate()
                    kills += 1
                    text = script.read_text()
                    if text not in (PROGRAM, ONE, BOTH) or others(script.parent):
                        broken.append({"kill": kills, "text": text, "others": others(script.parent)})
                    else:
                        states[(PROGRAM, ONE, BOTH).index(text)] += 1
                    continue
                longest = max(longest, time.monotonic() - began)
                if child.returncode != 0 or script.read_text() != BOTH:
                    broken.append({"resumed": error[-500:], "text": script.read_text()})
                finished += 1
                break
    found = {"kills": kills, "finished runs": finished, "untouched, one change, both": states, "broken": broken}
    print(json.dumps(found, indent=2))
    if given.out:
        given.out.write_text(json.dumps(found, indent=2) + "\n")
    sys.exit(bool(broken))


if __name__ == "__main__":
    main()
