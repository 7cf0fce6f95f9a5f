"""The parent's end of the channel to one version's process."""

from __future__ import annotations

import socket
from contextlib import ExitStack
from pathlib import Path

from tilewright.tools.child import kept
from tilewright.worker.messages import Message, decode, encode

MOST_BYTES = 64 << 20
"""The most bytes of one answer."""


class Gone(Exception):
    """A version's process gave no valid answer. ``text``: the reason; empty if the exit status shows the reason."""

    def __init__(self, text: str = "") -> None:
        self.text = text


class VersionProcess:
    """A version's process.

    channel: the socket on which it answers.
    opened: the answer to `OpenVersion`, which is the first question.
    asked: whether a thread waits for an answer.
    """

    opened: Message
    asked = False

    def __init__(self, number: int, channel: socket.socket, scratch: Path, seconds: float) -> None:
        self.number, self.channel, self.scratch, self.seconds = number, channel, scratch, seconds
        self._unread = b""
        self.kept = ExitStack()
        self.kept.enter_context(kept(f"kill {number}"))

    def ask(self, question: Message) -> Message:
        """Returns the answer. Raises `Gone` if the process dies, hangs, or sends anything but an answer."""
        self.channel.settimeout(self.seconds)
        try:
            self.channel.sendall(encode(question).encode())
            return decode(self._line())
        except TimeoutError:
            raise Gone(f"gave no answer in {self.seconds:g} s") from None
        except OSError:
            raise Gone from None
        except (ValueError, RecursionError) as error:
            raise Gone(f"its process sent an invalid answer: {str(error)[:80]}") from None

    def _line(self) -> str:
        """Receives one line of the answer. The time limit applies to each chunk of bytes, not to the whole line."""
        parts, size = [self._unread], len(self._unread)
        while b"\n" not in parts[-1]:
            part = self.channel.recv(1 << 20)
            if not part:
                raise Gone
            parts.append(part)
            size += len(part)
            if size > MOST_BYTES:
                raise Gone(f"its process answered more than {MOST_BYTES >> 20} MiB")
        line, _, self._unread = b"".join(parts).partition(b"\n")
        return line.decode()
