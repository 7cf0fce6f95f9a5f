"""What the observers in a user's program have in common: how they begin, write a record, and end the program."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NoReturn

from tilewright.runtime import copied
from tilewright.runtime.seeding import SEED


def seed_torch() -> None:
    """Seeds torch, and lets `torch.save` write into the copy of the program, if it runs in one. Imports torch."""
    import torch

    torch.manual_seed(SEED)
    if os.environ.get(copied.VARIABLE):
        copied.save_to_own_files(torch)


def write_record(folder: Path, name: str, record: Mapping[str, object]) -> None:
    """Writes ``name.json``. The file has its name only when it is complete."""
    unfinished = folder / f"part-{name}"
    unfinished.write_text(json.dumps(record, separators=(",", ":")))
    unfinished.replace(folder / f"{name}.json")


def leave() -> NoReturn:
    """Ends this process at once, without the rest of its program."""
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(0)
