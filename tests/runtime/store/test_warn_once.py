"""A warning in a user's program shows the user's line, also through generated code and from another thread."""

from __future__ import annotations

import linecache
import threading
import warnings

import pytest
from tests.processes import PATIENCE

from tilewright.runtime.store.warn_once import TuningWarning, warn
from tilewright.runtime.wrapper.signature import generated


def test_the_users_line_is_shown() -> None:
    through = generated("def through():\n    warns()\n", {"warns": lambda: inside(warn)}, "through")
    inside = generated("def inside(warn):\n    warn('slow', Kind)\n", {"Kind": TuningWarning}, "inside")
    with pytest.warns(TuningWarning) as warned:
        through()
    (shown,) = warned
    assert "inside(warn)" in linecache.getline(shown.filename, shown.lineno)  # the innermost line of this file


def test_a_thread_of_tilewright_has_no_line_of_the_user() -> None:
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        thread = threading.Thread(target=warn, args=("slow", TuningWarning))
        thread.start()
        thread.join(PATIENCE)
    assert [(str(each.message), each.filename) for each in warned] == [("tilewright: slow", "sys")]
