"""What the tests of the journal share: git as the user runs it, and what is in a folder."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import TypeAlias

Tree: TypeAlias = "dict[str, tuple[str, int, bytes]]"


def git(folder: Path, *arguments: str) -> str:
    who = ("user.name=User", "user.email=user@example.org", "commit.gpgSign=false", "core.autocrlf=false")
    options = [word for setting in (*who, "color.ui=false") for word in ("-c", setting)]
    done = subprocess.run(["git", *options, *arguments], cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout


def tree(root: Path) -> Tree:
    """What is in the folder, git's own files excepted: name → kind, mode and bytes."""
    found: Tree = {}
    for path in sorted(root.rglob("*")):
        name = path.relative_to(root).as_posix()
        if name.split("/")[0] == ".git":
            continue
        if path.is_symlink():
            found[name] = ("link", 0, os.fsencode(os.readlink(path)))
        elif path.is_dir():
            found[name] = ("folder", 0, b"")
        else:
            found[name] = ("file", path.stat().st_mode & 0o7777, path.read_bytes())
    return found


def program(folder: Path, *, repository: bool) -> Path:
    """Makes a user's program, with a file that is no text, of a mode that git does not store, and a link."""
    folder.mkdir()
    (folder / "train.py").write_bytes(b"import torch\r\nprint('caf\xe9')\n\0no newline")
    (folder / "train.py").chmod(0o640)
    (folder / "latest").symlink_to("train.py")
    if repository:
        git(folder, "init", "-q")
        (folder / ".gitattributes").write_text("*.py text eol=crlf filter=none\n")
        git(folder, "add", "-A")
        git(folder, "commit", "-qm", "first")
    return folder
