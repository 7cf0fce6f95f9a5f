"""Reads and replaces files of the user. Each file has a name relative to one folder.

* A name never leads through a symbolic link, out of the folder, into git's own folders or into another repository.
  Each folder of a name is opened without following links, so a link that appears meanwhile is also refused.
* A file is replaced as a whole: a temporary file is written in the same folder, and then renamed. Other hard links of
  the file keep the old content. The new file gets the old one's group, extended attributes and mode.
* A file is replaced only if it still has the expected content.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

from tilewright.errors import RequestError

LARGEST = 64 << 20
"""Limit of a file's size in bytes. A larger file is not a source file."""

FileKind: TypeAlias = Literal["file", "link", "absent"]


class ChangeRefused(RequestError):
    """The journal refuses to change this file. The message says why, and names the fix."""


class FileChanged(ChangeRefused):
    """Another program has changed the file since the journal recorded it, or has put something else there."""


@dataclass(frozen=True)
class FileContent:
    """The content at a path: of a file, a symbolic link, or nothing.

    data: the bytes of a file, or the target of a symbolic link.
    mode: the permission bits of a file, 0 otherwise.
    """

    kind: FileKind
    mode: int = 0
    data: bytes = b""


ABSENT = FileContent("absent")


@dataclass(frozen=True)
class FileState:
    """The state at a path: `FileContent` with git's id of the content instead of the bytes."""

    kind: FileKind
    mode: int = 0
    blob: str = ""


@dataclass(frozen=True)
class UserTree:
    """The files below ``root``.

    top: ``root`` or a folder above. Names of files are relative to ``top``. Both folders are real paths.
    closed: real paths of folders whose files are not the user's, such as git's own.
    """

    top: Path
    root: Path
    closed: tuple[Path, ...] = ()

    def name(self, path: Path | str) -> str:
        """Returns the name of ``path``, which may be relative to ``root``.

        A link among the folders of ``path`` is followed; a link at the end of ``path`` is not. Raises `ChangeRefused`
        if the path leads out of ``root`` or into a closed folder.
        """
        given, shown = Path(self.root, path), in_a_line(path)
        if given.name in ("", "..") or "\0" in str(given):
            raise ChangeRefused(f"{shown} does not name a file; fix: name a file below {self.root}")
        real = Path(os.path.realpath(given.parent), given.name)
        if self.root not in real.parents:
            how = "leads out of" if self.root in Path(os.path.normpath(given)).parents else "is outside"
            raise ChangeRefused(f"{shown} {how} {self.root}; only files below that folder are changed")
        inside = real.relative_to(self.top)
        if any(part.casefold() == ".git" for part in inside.parts):
            raise ChangeRefused(f"{shown} is git's own file, which is never changed")
        for closed in self.closed:
            if closed == real or closed in real.parents:
                raise ChangeRefused(f"{shown} is in {closed}, whose files are never changed")
        for folder in list(inside.parents)[:-1]:
            if os.path.lexists(self.top / folder / ".git"):
                raise ChangeRefused(f"{shown} is in another repository, {folder}; fix: start Tilewright in that folder")
        return inside.as_posix()

    def read(self, name: str) -> FileContent:
        """Returns the content at ``name``. Raises `ChangeRefused` if it is neither a file nor a link, or cannot be
        read."""
        with self._refusals(name):
            try:
                with self._folder(name) as (folder, last):
                    return _read(folder, last)
            except FileNotFoundError:
                return ABSENT

    def replace(self, name: str, expected: FileContent, wanted: FileContent, temporary: str) -> None:
        """Replaces the content at ``name`` by ``wanted``. Creates missing folders.

        temporary: an unused file name.
        Raises `FileChanged` if the content is not as ``expected``, and `ChangeRefused` if the system refuses.
        """
        if wanted.kind == "absent":
            self._remove(name, expected)
            return
        with self._refusals(name):
            for folder in self.missing_folders(name)[::-1]:
                with self._folder(folder) as (parent, last), suppress(FileExistsError):
                    os.mkdir(last, dir_fd=parent)
            with self._folder(name) as (folder_fd, last):
                try:
                    _write(folder_fd, temporary, wanted, last)
                    if _read(folder_fd, last) != expected:
                        raise FileChanged(f"{in_a_line(name)} was changed by another program just now")
                    os.rename(temporary, last, src_dir_fd=folder_fd, dst_dir_fd=folder_fd)
                except BaseException:
                    with suppress(FileNotFoundError):
                        os.unlink(temporary, dir_fd=folder_fd)
                    raise
                os.fsync(folder_fd)

    def missing_folders(self, name: str) -> list[str]:
        """Returns the folders of ``name`` that do not exist. The innermost is first."""
        folders = [folder.as_posix() for folder in Path(name).parents][:-1]
        return [folder for folder in folders if not os.path.lexists(self.top / folder)]

    def discard(self, name: str, temporary: str) -> None:
        """Removes the temporary file of an interrupted `replace`."""
        with suppress(OSError), self._folder(name) as (folder, _):
            os.unlink(temporary, dir_fd=folder)

    def remove_folder(self, name: str) -> None:
        """Removes the folder if it exists and is empty."""
        with suppress(OSError), self._folder(name) as (folder, last):
            os.rmdir(last, dir_fd=folder)

    def _remove(self, name: str, expected: FileContent) -> None:
        with self._refusals(name), self._folder(name) as (folder, last):
            if _read(folder, last) != expected:
                raise FileChanged(f"{in_a_line(name)} was changed by another program just now")
            os.unlink(last, dir_fd=folder)
            os.fsync(folder)

    @contextmanager
    def _folder(self, name: str) -> Iterator[tuple[int, str]]:
        """Yields the open folder of ``name``, and the last part of the name."""
        *folders, last = name.split("/")
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        opened = os.open(self.top, flags)
        try:
            for folder in folders:
                inner = os.open(folder, flags, dir_fd=opened)
                os.close(opened)
                opened = inner
            yield opened, last
        finally:
            os.close(opened)

    @contextmanager
    def _refusals(self, name: str) -> Iterator[None]:
        """Turns an error of the file system into a `ChangeRefused` about ``name``."""
        try:
            yield
        except OSError as error:
            path = in_a_line(self.top / name)
            if error.errno in (errno.ELOOP, errno.ENOTDIR):
                raise FileChanged(f"{path}: one of its folders is a link or a file now; nothing was changed") from error
            raise ChangeRefused(f"{path} cannot be used: {error.strerror}; it was not changed") from error


def in_a_line(path: Path | str) -> str:
    """Returns a path in a form that can be printed in one line."""
    text = str(path)
    return text if text.isprintable() else ascii(text)


def _read(folder: int, last: str) -> FileContent:
    try:
        found = os.stat(last, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return ABSENT
    if stat.S_ISLNK(found.st_mode):
        return FileContent("link", 0, os.fsencode(os.readlink(last, dir_fd=folder)))
    if not stat.S_ISREG(found.st_mode):
        what = "a folder" if stat.S_ISDIR(found.st_mode) else "not a regular file"
        raise FileChanged(f"{in_a_line(last)} is {what}; only files and links are changed")
    if found.st_size > LARGEST:
        raise ChangeRefused(
            f"{in_a_line(last)} has {found.st_size >> 20} MiB; a source file has at most {LARGEST >> 20}"
        )
    # Another file may appear meanwhile. Without O_NONBLOCK, opening a pipe would block forever.
    opened = os.open(last, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    with open(opened, "rb") as file:
        return FileContent("file", stat.S_IMODE(os.fstat(opened).st_mode), file.read())


def _write(folder: int, temporary: str, wanted: FileContent, like: str) -> None:
    """Writes the temporary file to the disk. ``like``: the file whose group and extended attributes are copied."""
    with suppress(FileNotFoundError):
        os.unlink(temporary, dir_fd=folder)
    if wanted.kind == "link":
        os.symlink(wanted.data, temporary, dir_fd=folder)
        return
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with open(os.open(temporary, flags, 0o600, dir_fd=folder), "wb") as file:
        file.write(wanted.data)
        _take_owner(folder, like, file.fileno())
        os.fchmod(file.fileno(), wanted.mode)  # last, because changing the group clears bits of the mode
        file.flush()
        os.fsync(file.fileno())


def _take_owner(folder: int, like: str, to: int) -> None:
    """Copies owner, group and extended attributes as far as the system allows."""
    try:
        source = os.open(like, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    except OSError:
        return
    try:
        old, new = os.fstat(source), os.fstat(to)
        for owner, group in ((old.st_uid, -1), (-1, old.st_gid)):
            if (owner, group) not in ((new.st_uid, -1), (-1, new.st_gid)):
                with suppress(OSError):
                    os.fchown(to, owner, group)
        for attribute in os.listxattr(source):
            with suppress(OSError):
                os.setxattr(to, attribute, os.getxattr(source, attribute))
    except OSError:  # the file system has no extended attributes
        return
    finally:
        os.close(source)
