"""Tells from the bytes of a file whether a rule can find anything in it, so that most files are never parsed.

Searching bytes is hundreds of times faster than parsing them. A file is relevant if it has a function under
``@triton.jit``, imports ``cuda.tile``, or imports TileGym or Tilewright. Without these it has no kernel, no launch, no
search and no switch.
"""

from __future__ import annotations

import re

TRITON = re.compile(
    rb"@[ \t]*triton\.(?:runtime\.(?:jit\.)?)?jit\b"
    rb"|\btriton(?:\.runtime(?:\.jit)?)?[ \t]+as\b|\bfrom[ \t]+triton(?:\.runtime(?:\.jit)?)?[ \t]+import\b"
)
"""The decorator of a kernel, or an import by which it may have another name."""
TILE = re.compile(rb"cuda(?:[._]tile|[ \t]+import\b)")
"""Begins with letters, not with a choice, because such an expression is searched far faster."""
IMPORT = re.compile(rb"(?:\A|[:;])[ \t]*(?:import|from)[ \t](?:[^#]*\W)?\Z")
"""What stands before the name in a line that imports it."""
USES = (b".kernel", b".launch", b".tune")
LIBRARY = re.compile(rb"tile(?:gym|wright)")
IMPORTS_LIBRARY = re.compile(rb"\b(?:import|from)\b[^\n#]*tile(?:gym|wright)")


def mentions_a_language(text: bytes) -> bool:
    """Returns whether a file may import or use Triton, cuTile, TileGym or Tilewright."""
    return b"triton" in text or bool(TILE.search(text) or LIBRARY.search(text))


def is_relevant(text: bytes) -> bool:
    """Returns whether one of Tilewright's own rules may find something in the text of a file."""
    if b"triton" in text and b"jit" in text and TRITON.search(text):
        return True
    if any(_is_imported(text, found) for found in TILE.finditer(text)):
        return True
    return bool(LIBRARY.search(text) and IMPORTS_LIBRARY.search(text))


def _is_imported(text: bytes, found: re.Match[bytes]) -> bool:
    """Returns whether a mention of cuda.tile imports it, or uses its full name."""
    start, end = text.rfind(b"\n", 0, found.start()) + 1, text.find(b"\n", found.end())
    after = text[found.end() : end if end >= 0 else None]
    if not IMPORT.search(text[start : found.start()]):
        return found[0] == b"cuda.tile" and after.startswith(USES)
    return not found[0].endswith(b"import") or b"tile" in after or after.lstrip().startswith(b"(")
