"""Replaces parts of a kernel that newer versions of triton do not compile: block pointers, which 3.9 removed.

`optimize` needs code that compiles. A kernel with such a part does not compile, so the user gets a patch first.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping
from pathlib import Path

from tilewright.playbook.analyses.triton_code import jit_functions, tl_calls
from tilewright.playbook.base import Site
from tilewright.playbook.entries.block_pointers import ALL, ENTRY
from tilewright.source.syntax import Source


def without_block_pointers(name: str, text: str) -> str:
    """Returns the text of a file with tensor descriptors in place of the block pointers of its Triton kernels.

    Raises `NotApplicable` with the first block pointer that cannot be replaced, and SyntaxError.
    """
    source = Source(name, text)
    for kernel in jit_functions(source):
        function = source.functions[kernel]
        if tl_calls(source, function, "make_block_ptr"):
            source = Source(name, ENTRY.apply(source, Site.at(source, function, "block pointers", (ALL,)), ALL))
    return source.text


def patch_without_block_pointers(texts: Mapping[Path, str]) -> str:
    """Returns a patch of all files for ``git apply`` in the present folder; "" if no file has block pointers.

    Raises the errors of `without_block_pointers`.
    """
    patch: list[str] = []
    for path, text in texts.items():
        name = Path(os.path.relpath(path)).as_posix()
        new = without_block_pointers(path.name, text)
        patch += difflib.unified_diff(text.splitlines(True), new.splitlines(True), f"a/{name}", f"b/{name}")
    return "".join(patch)
