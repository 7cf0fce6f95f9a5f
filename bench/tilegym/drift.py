"""Whether winners found with one CUDA toolkit still win with another: `tilewright tuned verify` with both.

    python bench/tilegym/drift.py OUT.json --other FOLDER [--only OPERATION …] [--seconds 1]

FOLDER is where another version of nvidia-cuda-tileiras, nvidia-cuda-nvcc and nvidia-nvvm is installed (`pip install
--no-deps --target FOLDER …`). The searches of TileGym's operations run once, with the toolkit that is installed. Then
the stored winners are raced against the second best and the shipped configuration, with each toolkit. Needs a GPU.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parent.parent))

from common import made_here, need_gpu, write
from first_calls import OPERATIONS, command_of, environment_of
from program_process import Process, first_calls


def with_toolkit(environment: Mapping[str, str], folder: Path | None) -> dict[str, str]:
    """The environment in which the toolkit in ``folder`` is found first; None for the installed one."""
    if folder is None:
        return dict(environment)
    first = {"PYTHONPATH": folder, "PATH": folder / "nvidia" / "cu13" / "bin"}
    paths = {name: os.pathsep.join((str(path), environment.get(name, ""))) for name, path in first.items()}
    return {**environment, **paths}


def searched(names: Sequence[str], folder: Path) -> dict[str, str]:
    """Runs the searches, and returns the environment that has their store."""
    environment = environment_of("patched", folder)
    with Process(command_of("patched", names), environment, folder / "searched.txt") as process:
        found = first_calls(process, names, sys.stdout)
    if failed := [f"{name}: {call['failed']}" for name, call in found["calls"].items() if "failed" in call]:
        sys.exit("; ".join(failed))
    return environment


def verified(environment: Mapping[str, str], seconds: float) -> list[dict[str, Any]]:
    """The verdicts of `tuned verify`, a dictionary for each stored winner."""
    command = [sys.executable, "-m", "tilewright", "tuned", "verify", "--seconds", str(seconds), "--json"]
    done = subprocess.run(command, env=dict(environment), capture_output=True, text=True, timeout=200)
    if not done.stdout.strip():
        sys.exit(f"tuned verify ended with {done.returncode}: {done.stderr[-400:]}")
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return found


def version_of(environment: Mapping[str, str]) -> str:
    """The version of tileiras that Tilewright finds in this environment."""
    code = "from tilewright.languages.cutile.toolchain import tileiras_version; print(tileiras_version())"
    done = subprocess.run(
        [sys.executable, "-c", code], env=dict(environment), capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def line(version: str, entry: Mapping[str, Any]) -> str:
    against = ", ".join(
        f"{other['name']} takes {other['ratio']['centre']:.3f}"
        for other in entry.get("against", ())
        if other.get("ratio")
    )
    return f"{version:10} {entry['kernel']:32} {entry['verdict']:8} {against}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out")
    parser.add_argument("--other", type=Path, required=True, metavar="FOLDER")
    parser.add_argument("--only", nargs="+", choices=OPERATIONS, default=list(OPERATIONS))
    parser.add_argument("--seconds", type=float, default=1.0, help="for the race of one winner")
    given = parser.parse_args()
    if not (given.other / "nvidia" / "cu13" / "bin" / "tileiras").exists():
        parser.error(f"there is no nvidia/cu13/bin/tileiras in {given.other}")
    need_gpu()
    with tempfile.TemporaryDirectory() as folder:
        environment = searched(given.only, Path(folder))
        record: dict[str, Any] = {**made_here(), "operations": given.only, "toolkits": {}}
        for other in (None, given.other.resolve()):
            used = with_toolkit(environment, other)
            version = version_of(used)
            record["toolkits"][version] = entries = verified(used, given.seconds)
            print("\n".join(line(version, entry) for entry in entries), flush=True)
            write(given.out, record)


if __name__ == "__main__":
    main()
