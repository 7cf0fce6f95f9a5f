"""Prints a note when a program under `tilewright run` launches a Triton kernel: `tilewright run` does not change such
kernels."""

from __future__ import annotations

import os
import sys

SAID = "TILEWRIGHT_TRITON_NOTE"
"""An environment variable. It is set after the note was printed, so that child processes do not print the note
again."""
NOTE = (
    "tilewright: Triton kernels run as without Tilewright (`tilewright run` replaces the search of cuda.tile); "
    "to tune them: tilewright capture -- PROGRAM, then tilewright captured task"
)


def install() -> None:
    """Prints the note before the first launch of a Triton kernel."""
    if SAID in os.environ:
        return
    from tilewright.runtime.capture.triton_runtime import before_first_launch

    before_first_launch(_tell)


def _tell() -> None:
    os.environ[SAID] = "1"
    print(NOTE, file=sys.stderr, flush=True)
