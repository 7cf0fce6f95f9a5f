"""Work on another machine through the user's ssh: what is brought there, the process that stays there, its client."""

from __future__ import annotations

import os

ON_VARIABLE = "TILEWRIGHT_ON"
"""Set for a command that runs on another machine: what the user gave for ``--on``."""


def on_words() -> list[str]:
    """Returns the option with which the user started this command, for the command that repeats it."""
    on = os.environ.get(ON_VARIABLE, "")
    return ["--on", on] if on else []
