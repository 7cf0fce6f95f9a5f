"""Imports torch while the worker does something else. The worker loads this module first, so it imports little."""

import gc
import sys
import threading
from contextlib import suppress
from importlib import import_module


def begin_torch() -> None:
    """Begins to import torch in a thread, which takes 3 s. Does nothing if torch is loaded or not installed."""
    if "torch" not in sys.modules:
        threading.Thread(target=_load, daemon=True).start()


def _load() -> None:
    gc.disable()  # garbage collection would take an eighth of the import time and free nothing
    with suppress(ImportError):  # it is raised again where torch is needed
        import_module("torch")
    gc.freeze()
    gc.enable()
