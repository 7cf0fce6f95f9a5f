"""The `sitecustomize` of `tilewright run`: starts the patch, then runs the user's own `sitecustomize`.

`tilewright run` puts this folder first in PYTHONPATH. This module removes the folder from `sys.path`, so the program
sees its own path. The folder stays in PYTHONPATH, so Python processes that the program starts (workers, ranks) are
patched too.
"""

import os
import sys
from importlib.machinery import PathFinder


def start_the_patch() -> None:
    here = os.path.dirname(os.path.abspath(__file__))
    import tilewright_startup  # type: ignore[import-not-found]  # a file of this folder

    sys.path[:] = [folder for folder in sys.path if os.path.abspath(folder or os.curdir) != here]
    tilewright_startup.start()


def run_the_users() -> None:
    """Runs the user's own `sitecustomize` under that name. Python reports an error in it as usual."""
    spec = PathFinder.find_spec("sitecustomize")
    if spec is not None and spec.loader is not None:
        from importlib.util import module_from_spec

        sys.modules["sitecustomize"] = module = module_from_spec(spec)
        spec.loader.exec_module(module)


if __name__ == "sitecustomize":  # Python imports this module at its start, under this name
    start_the_patch()
    run_the_users()
