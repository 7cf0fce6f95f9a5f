"""The `sitecustomize` that `tilewright run` puts before the user's own: it starts the patch, then runs the user's.

It removes its folder from `sys.path`, so the program sees its own path. The folder stays in PYTHONPATH, so that
Python processes that the program starts (workers, ranks) are patched too.
"""

import os
import sys
from importlib.machinery import PathFinder


def start_the_patch() -> None:
    here = os.path.dirname(os.path.abspath(__file__))
    import tilewright_startup  # type: ignore[import-not-found]  # lies beside this file

    sys.path[:] = [folder for folder in sys.path if os.path.abspath(folder or os.curdir) != here]
    tilewright_startup.start()


def run_theirs() -> None:
    """The user's own `sitecustomize`, under its own name; Python reports an error in it as usual."""
    spec = PathFinder.find_spec("sitecustomize")
    if spec is None or spec.loader is None:
        return
    from importlib.util import module_from_spec

    theirs = module_from_spec(spec)
    sys.modules["sitecustomize"] = theirs
    spec.loader.exec_module(theirs)


if __name__ == "sitecustomize":  # Python at its start; importing this module by another name does nothing
    start_the_patch()
    run_theirs()
