"""Tools for testing plug-ins: contract kits, simulated clocks and replayed measurements."""

from __future__ import annotations

from importlib import import_module

_KITS = {"StrategyContract": "strategies", "ExecutorContract": "executors"}


def __getattr__(name: str) -> type[object]:
    """Loads a kit when it is first used, so that importing this package does not import pytest."""
    if name not in _KITS:
        raise AttributeError(f"module {__name__} has no attribute '{name}'")
    kit: type[object] = getattr(import_module(f"{__name__}.{_KITS[name]}"), name)
    return kit
