"""The text and the syntax tree of a Python file that is only looked at: nothing of it runs."""

from __future__ import annotations

import ast
import tokenize
import warnings
from pathlib import Path

TOO_DEEP = "its expressions are nested too deep to be followed"
"""Said where Python's limit of recursion is reached, as by a sum of 900 terms."""


def text_of(file: Path) -> str:
    """As Python reads it, with the encoding that the file declares.

    Raises OSError, SyntaxError for an unknown encoding, and UnicodeDecodeError.
    """
    with tokenize.open(file) as opened:
        return opened.read()


def tree_of(text: str) -> ast.Module:
    """Without the compiler's warnings, as of "\\d": they are for who runs the file, and may be errors there.

    Raises SyntaxError or ValueError where the text is not Python, RecursionError where it is nested too deep.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return ast.parse(text)
        except MemoryError as error:  # the parser's, of its stack
            raise RecursionError(TOO_DEEP) from error
