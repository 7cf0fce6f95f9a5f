"""The user's side of a command that runs on another machine as a whole."""

from __future__ import annotations

import base64
import sys
import tempfile
from pathlib import Path
from typing import IO

from tilewright.errors import MachineError
from tilewright.remote import messages as said
from tilewright.remote import results
from tilewright.remote.client import Remote
from tilewright.remote.unpacking import MOST_UNPACKED


def run_command(remote: Remote) -> int:
    """Runs the command of a remote: prints what it prints, brings back what it leaves, and returns its exit code."""
    try:
        remote.start()
        if remote.place is not None and remote.place.gpu is None:
            remote.say(f"{remote.host} has no GPU: the command runs there on the CPU")
        if remote.resumed:
            remote.say(f"this command is running on {remote.host} already; taking it up again")
        with tempfile.NamedTemporaryFile(prefix="tilewright-") as packed:
            following = _Following(remote, packed)
            code = following.to_the_end()
            packed.flush()
            if packed.tell():
                results.bring(Path(packed.name), following.names, remote.say, remote.bundle.names())
        remote.brought()
        if following.closed is not None:
            raise following.closed
        return code
    except KeyboardInterrupt:
        remote.say(f"the command on {remote.host} ends; the same command goes on from what it has finished there")
        raise
    finally:
        remote.close()


class _Following:
    """Follows a command over there. ``packed``: gets the tar with what it leaves."""

    def __init__(self, remote: Remote, packed: IO[bytes]) -> None:
        assert remote.order is not None
        self.remote, self.order, self.packed = remote, remote.order, packed
        self.names = results.FolderNames("", "", remote.order)
        self.closed: BrokenPipeError | None = None
        """Set if the reader of the output, such as `head`, has closed it. What the command leaves still arrives."""

    def to_the_end(self) -> int:
        """Returns the exit code. Raises MachineError if the connection is lost for too long."""
        while True:
            message = self.remote.received.get()
            if isinstance(message, MachineError):
                raise message
            if isinstance(message, said.WorksIn):
                if not all(each.startswith("/") and each.count("/") > 2 for each in (message.tree, message.home)):
                    raise self.remote.nonsense(ValueError(f"it works in {message.tree[:80]!r}"))
                self.packed.seek(0)  # a command that begins again leaves everything anew
                self.packed.truncate()
                self.names = results.FolderNames(message.tree, message.home, self.order)
            elif isinstance(message, said.TextPrinted):
                self._print(message)
            elif isinstance(message, said.LeftPart):
                self._keep(message)
            elif isinstance(message, said.CommandEnded):
                if not -64 <= message.code < 256:  # a negative one is the number of the signal that ended it
                    raise self.remote.nonsense(ValueError(f"the exit code {message.code}"))
                return message.code

    def _keep(self, part: said.LeftPart) -> None:
        try:
            self.packed.write(base64.b64decode(part.data))
        except ValueError as error:
            raise self.remote.nonsense(error) from error
        if self.packed.tell() > MOST_UNPACKED:
            raise MachineError(f"{self.remote.host} sends back more than {MOST_UNPACKED >> 20} MiB")

    def _print(self, printed: said.TextPrinted) -> None:
        stream = sys.stdout if printed.to == 1 else sys.stderr
        try:
            if self.closed is None:
                stream.write(self.names.here(printed.text))
                stream.flush()
        except BrokenPipeError as error:
            self.closed = error
