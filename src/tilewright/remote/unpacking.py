"""Takes apart the tar that another machine sends.

The machine over there may be broken into. So only files and links with names inside the folder are taken, no device and
nothing of a repository's own files, and only so much of them.
"""

from __future__ import annotations

import json
import shutil
import tarfile
import zlib
from pathlib import Path, PurePosixPath

from tilewright.errors import MachineError, in_one_line
from tilewright.ledger.codec import from_json
from tilewright.remote.files import MOST_BYTES
from tilewright.remote.work import LEFT, CommandResults

MOST_UNPACKED = 4 * MOST_BYTES
"""`work.WorkFolder.pack` sends `MOST_BYTES` of files, and the commits."""
MOST_FILES = 200_000


def unpack(packed: Path, folder: Path) -> CommandResults:
    """Unpacks into an empty folder. Returns what the command left.

    Raises MachineError if it is not what `work.WorkFolder.pack` makes; OSError if it cannot be written.
    """
    try:
        with tarfile.open(packed, "r:gz") as tar:
            _extract(tar, folder)
        text = (folder / LEFT).read_text()
        return from_json(CommandResults, json.loads(text), defaults=True)
    except (tarfile.TarError, zlib.error, EOFError, ValueError, RecursionError, FileNotFoundError) as error:
        raise MachineError(f"what the other machine sends back cannot be read ({in_one_line(error)})") from error


def _extract(tar: tarfile.TarFile, folder: Path) -> None:
    links: list[tuple[Path, str]] = []
    total = 0
    for number, member in enumerate(tar):
        total += member.size
        if total > MOST_UNPACKED or number >= MOST_FILES:
            raise ValueError(f"more than {MOST_UNPACKED >> 20} MiB or {MOST_FILES} files")
        if refused_name(member.name):
            raise ValueError(f"the name {member.name[:80]!r} leaves the folder")
        path = folder / member.name
        if member.issym():
            if member.name.startswith("tree/"):
                links.append((path, member.linkname))
        elif member.isreg() and (content := tar.extractfile(member)) is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("xb") as file:
                shutil.copyfileobj(content, file)
            path.chmod(0o600 | member.mode & 0o755)
        elif not member.isdir():
            raise ValueError(f"{member.name[:80]!r} is neither a file nor a link")
    for path, target in links:  # last, so that no file is written through one
        path.parent.mkdir(parents=True, exist_ok=True)
        path.symlink_to(target)


def refused_name(name: str) -> bool:
    """Whether a name of the other machine may name something outside the folder to which it belongs."""
    path = PurePosixPath(name)
    return path.is_absolute() or not path.parts or ".." in path.parts or "\0" in name


def is_inside(path: Path, folder: Path) -> bool:
    """Whether a file at ``path`` is in ``folder``, and in no repository's own files, also where links lead."""
    place, root = path.parent.resolve(), folder.resolve()
    return place.is_relative_to(root) and ".git" not in place.relative_to(root).parts
