"""What runs on this machine, for tests of what Tilewright leaves behind."""

from __future__ import annotations

from pathlib import Path


def running(word: str) -> bool:
    """Whether any process on this machine has ``word`` among its arguments."""
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if word.encode() in (process / "cmdline").read_bytes().split(b"\0"):
                return True
        except OSError:
            continue
    return False
