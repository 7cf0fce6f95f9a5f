"""Text for terminals, logs and reports: nothing in it is obeyed, and numbers of things have the right ending.

Names of kernels, files and configurations, reasons and messages come from stores, ledgers and sources of others. They
may contain escape sequences, which move the cursor, rename the window, or hide text.
"""

from __future__ import annotations

import re

_CONTROLS = re.compile(r"[\0-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]")
"""Control characters except tab and new line, and the characters that change the direction of text."""


def printable(text: str) -> str:
    r"""Returns the text with each control character as an escape that JSON reads, too, such as ``\u001b``."""
    return _CONTROLS.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def plural(count: int, what: str) -> str:
    """Returns a number of things: ``1 change``, ``2 changes``, ``0 matches``. ``what``: the singular."""
    ending = "" if count == 1 else "es" if what.endswith(("ch", "sh")) else "s"
    return f"{count} {what}{ending}"
