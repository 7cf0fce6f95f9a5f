"""Mistakes of the compiler that Tilewright works round: when one of these fails, the work-round can go."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tilewright.hardware.gpu import detect
from tilewright.languages.cutile.toolchain import find_tileiras

SCRIPT = Path(__file__).parent.parent.parent / "bench" / "one_row_store.py"


@pytest.mark.skipif(getattr(detect(), "arch", None) != "sm_90", reason="seen on sm_90")
@pytest.mark.skipif(find_tileiras().version != (13, 4), reason="seen with tileiras 13.4")
def test_a_product_of_one_ragged_row_writes_beyond_its_output() -> None:
    """`serves` of examples/matmul.py leaves these shapes out because of it."""
    done = subprocess.run([sys.executable, str(SCRIPT)], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
