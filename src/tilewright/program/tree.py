"""Finds the folder that belongs to a program, and the files in it that git does not ignore."""

from __future__ import annotations

import os
from pathlib import Path

from tilewright.errors import MachineError
from tilewright.tools.git import Git
from tilewright.tools.packages import import_root

NOT_WALKED = {"__pycache__", "node_modules", "site-packages", "build", "dist"}
"""Folders without source code of the user, in a tree without git. Hidden folders and environments are left out, too."""


def is_environment(folder: Path) -> bool:
    """Returns whether a folder is a Python environment."""
    return (folder / "pyvenv.cfg").is_file() or (folder / "conda-meta").is_dir()


def root_of(script: Path, package_root: Path | None = None) -> Path:
    """Returns the top folder of the git checkout that contains the script. If there is no checkout, or git ignores the
    script, returns ``package_root``. Its default is the folder from which the script's package is imported.

    A checkout of the whole home folder is ignored, because it contains more than the program.
    """
    git = Git(script.parent, {"GIT_LITERAL_PATHSPECS": "0"})  # `check-ignore` does not support the variable
    try:
        top = git.line_or_none("rev-parse", "--show-toplevel")
        ignored = top is not None and git.line_or_none("check-ignore", "--quiet", "--", script.name) is not None
    except MachineError:  # git is not installed, or too slow
        top, ignored = None, False
    if top and not ignored and Path(top) not in (Path.home(), Path("/")):
        return Path(top)
    return package_root or import_root(script)


def files_of(root: Path) -> tuple[Path, ...]:
    """Returns the files below ``root`` that git does not ignore, relative to ``root``. Without git, returns the files
    that are not in environments, caches or hidden folders.
    """
    if (root / ".git").exists():
        try:
            listed = Git(root)("ls-files", "-z", "--cached", "--others", "--exclude-standard").split("\0")
            return tuple(sorted(Path(name) for name in set(listed) if name and (root / name).is_file()))
        except MachineError:
            pass
    return tuple(sorted(_walked(root)))


def _walked(root: Path) -> list[Path]:
    found = []
    for folder, folders, files in os.walk(root):
        here = Path(folder)
        folders[:] = [
            name for name in folders if name[0] != "." and name not in NOT_WALKED and not is_environment(here / name)
        ]
        found += [(here / name).relative_to(root) for name in files if (here / name).is_file()]
    return found
