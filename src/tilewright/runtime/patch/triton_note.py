"""Says, when a program under `tilewright run` launches a Triton kernel, that such kernels run as without Tilewright."""

from __future__ import annotations

import os
import sys

SAID = "TILEWRIGHT_TRITON_NOTE"
"""Set when the note was printed, so that the processes that the program starts do not print it again."""
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
