"""Bytecode of Tile IR → text, by the ``tileirdisasm`` that is installed with the compiler."""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path

from tilewright.errors import CompilerMissing
from tilewright.languages.cutile.toolchain import FIX, find_tileiras
from tilewright.tileir.read.scanner import ReadError

SECONDS = 120


def disassemble(bytecode: bytes) -> str:
    """The text with source places. Raises ReadError with the disassembler's message for what it refuses,
    CompilerMissing where it is not installed beside tileiras."""
    tool = find_tileiras()
    program = tool.path.with_name("tileirdisasm")
    with tempfile.TemporaryDirectory(prefix="tilewright-") as directory:
        source = Path(directory) / "kernel.tileirbc"
        source.write_bytes(bytecode)
        try:
            done = subprocess.run([program, "-g", source], capture_output=True, env=tool.environment(), timeout=SECONDS)
        except subprocess.TimeoutExpired:
            raise ReadError(f"tileirdisasm took longer than {SECONDS} s") from None
        except OSError as error:
            raise CompilerMissing(f"{program} does not start: {error.strerror}; {FIX}") from None
    if done.returncode != 0:
        raise ReadError(f"tileirdisasm returned {done.returncode}: {_message(done.stderr)}")
    return done.stdout.decode("utf-8", "backslashreplace")


def _message(stderr: bytes) -> str:
    """What it said first, without the place of the operation before it."""
    lines = stderr.decode("utf-8", "backslashreplace").splitlines()
    said = next((line for line in lines if "error:" in line), lines[0] if lines else "nothing on its error channel")
    return said.partition("error: ")[2] or said


__all__ = ["ReadError", "disassemble"]
