"""What tests and plug-ins test with: simulated devices, replayed measurements, conformance kits."""

from __future__ import annotations

from importlib import import_module

_KITS = {"StrategyContract": "strategies", "ExecutorContract": "executors"}


def __getattr__(name: str) -> type[object]:
    """The kits by name, loaded when they are used: pytest is not needed before."""
    if name not in _KITS:
        raise AttributeError(f"module {__name__} has no attribute '{name}'")
    kit: type[object] = getattr(import_module(f"{__name__}.{_KITS[name]}"), name)
    return kit
