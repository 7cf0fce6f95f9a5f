"""Runs in a program that was started in a copy of its source tree.

It redirects imports from the user's tree to the copy. So packages of the tree that are installed as editable run with
the changed files, too. Large files of the copy are links to the user's files. If the program opens such a file for
writing, the link is first replaced by a file of the copy.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:  # every Python process of the program runs this
    from collections.abc import Callable, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import IO, Any, Protocol, TypeAlias

    File: TypeAlias = str | bytes | os.PathLike[str] | os.PathLike[bytes]

    class Torch(Protocol):
        save: Callable[..., None]


VARIABLE = "TILEWRIGHT_COPIED"
"""An environment variable. Its value has two lines: the folder of the user's tree, and the folder of the copy."""


def install() -> None:
    """Redirects the search path, all import finders and `open` to the copy."""
    root, copy = os.environ[VARIABLE].split("\n")
    sys.path[:] = [_moved(entry, root, copy) for entry in sys.path]
    sys.meta_path.insert(0, TilewrightCopied(root, copy))
    _open_own_files(copy)


def _open_own_files(copy: str) -> None:
    import builtins
    import io

    plain = builtins.open

    def open(file: File | int, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        if not isinstance(file, int) and any(letter in mode for letter in "wa+"):
            _make_own(file, copy, keep="w" not in mode)
        return plain(file, mode, *args, **kwargs)

    builtins.open = io.open = open


def save_to_own_files(torch: Torch) -> None:
    """Makes `torch.save` write to files of the copy. torch opens files in C++, so redirecting `open` is not enough."""
    plain, copy = torch.save, os.environ[VARIABLE].split("\n")[1]

    def save(obj: Any, f: File | IO[bytes], *args: Any, **kwargs: Any) -> None:
        if isinstance(f, (str, os.PathLike)):
            _make_own(f, copy, keep=False)
        plain(obj, f, *args, **kwargs)

    torch.save = save


def _make_own(file: File, copy: str, keep: bool) -> None:
    """Replaces a link in the copy by a file. ``keep``: whether the file gets the content of the link's target."""
    path = os.path.abspath(os.fsdecode(file))
    if not path.startswith(copy + os.sep) or not os.path.islink(path):
        return
    target = os.path.realpath(path)
    if target.startswith(copy + os.sep) or os.path.isdir(target):
        return
    if keep and os.path.exists(target):
        import shutil

        shutil.copyfile(target, path + ".own")
        os.replace(path + ".own", path)
    else:
        os.unlink(path)


def _moved(path: str, root: str, copy: str) -> str:
    """Returns the path in the copy of a file in the user's tree. Returns ``path`` itself if there is no such copy."""
    if path != root and not path.startswith(root + os.sep):
        return path
    moved = copy + path[len(root) :]
    return moved if os.path.exists(moved) else path


class TilewrightCopied:
    """An import finder that lets the other finders find a module. For a module in the user's tree, returns its copy."""

    def __init__(self, root: str, copy: str) -> None:
        self.root, self.copy = root, copy

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        moved = None if path is None else [_moved(entry, self.root, self.copy) for entry in path]
        namespace = None
        for places in (moved,) if moved == path else (moved, path):  # the copy may have only a part of a package
            for finder in sys.meta_path:
                if finder is self or not hasattr(finder, "find_spec"):
                    continue
                if spec := finder.find_spec(name, places, target):
                    if spec.origin:
                        return self._copied(spec)
                    namespace = spec  # a folder without __init__.py, perhaps only in the copy
        return namespace

    def _copied(self, spec: ModuleSpec) -> ModuleSpec:
        from importlib.util import spec_from_file_location

        origin = spec.origin or ""
        place = _moved(origin, self.root, self.copy)
        if place == origin:
            return spec
        inside = spec.submodule_search_locations
        found = inside and [_moved(each, self.root, self.copy) for each in inside]
        return spec_from_file_location(spec.name, place, submodule_search_locations=found) or spec
