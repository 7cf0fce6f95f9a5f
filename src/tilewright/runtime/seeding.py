"""Seeds the random numbers of a program that is observed, so that two runs of it can be compared.

The startup hook calls `install` after the program has imported `random` or `numpy.random`. If the program itself sets a
seed later, the program's seed replaces this seed. `observing` seeds torch.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

SEED = 0


def install() -> None:
    """Seeds `random` and `numpy.random`, if they are imported. Each is seeded only once."""
    for name, act in (("random", _seed), ("numpy.random", _seed_numpy)):
        module = sys.modules.get(name)
        if module is not None and not hasattr(module, "_tilewright_seeded"):
            act(module)
            module._tilewright_seeded = True  # type: ignore[attr-defined]


def _seed(module: ModuleType) -> None:
    module.seed(SEED)


def _seed_numpy(module: Any) -> None:
    """Seeds the global generator. Generators that the program makes without a seed get the seeds `SEED`, `SEED` + 1,
    …"""
    _seed(module)
    make, made = module.default_rng, iter(range(SEED, sys.maxsize))
    module.default_rng = lambda seed=None: make(next(made) if seed is None else seed)
