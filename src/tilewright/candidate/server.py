"""The server that forks one restricted process for each version of a task.

The server imports the languages and the task's packages once, and never runs edited code. The parent sends it orders as
packets on a socket, each with a number, which the answer repeats:

    import    loads the packages that all versions need; has no answer
    fork      starts a version's process, which gets the socket sent with the order; answers with the process id
    end       ends a version's process and all that it started; answers with the exit status

A version's process gives up its rights (`sandbox`), loads the files, and answers `candidate.messages`.
"""

from __future__ import annotations

import base64
import gc
import importlib
import json
import os
import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

from tilewright.candidate import messages as said
from tilewright.candidate.sandbox import confine, die_with_parent
from tilewright.errors import TilewrightError, in_one_line
from tilewright.languages import language_of, load_front_ends
from tilewright.records import Failed
from tilewright.space.space import Space
from tilewright.task.loading import load_task
from tilewright.task.task import Launch, Task
from tilewright.task.tensors import ArraySpec
from tilewright.tools.child import own_temporary_folder
from tilewright.worker.messages import Message, receive, send

PACKET = 1 << 16


def main() -> None:
    """Follows the parent's orders. ``sys.argv``: the file descriptor of the socket, and the parent's process id."""
    control = socket.socket(fileno=int(sys.argv[1]))
    die_with_parent(int(sys.argv[2]))
    for number in (signal.SIGINT, signal.SIGTERM):  # only the parent handles these signals
        signal.signal(number, signal.SIG_IGN)
    while True:
        packet, sockets, _, _ = socket.recv_fds(control, PACKET, 1)
        if not packet:
            return
        order = json.loads(packet)
        if "import" in order:
            sys.path[:] = order["path"]
            _import(order["import"])
            load_front_ends()
        elif "fork" in order:
            gc.freeze()  # so that garbage collection in a version does not copy shared memory
            server, process = os.getpid(), os.fork()
            if process == 0:
                _version(server, sockets[0], Path(order["fork"]))
            os.close(sockets[0])
            _reply(control, order, process=process)
        else:
            _reply(control, order, status=_ended(order["end"]))


def _reply(control: socket.socket, order: Mapping[str, Any], **answer: int) -> None:
    control.send(json.dumps({**answer, "number": order["number"]}).encode())


def _import(names: Sequence[str]) -> None:
    """Imports the packages that the versions will import, once for all of them.

    An edited module that is among them is the original. Versions load their own copy under another name.
    """
    for name in names:
        with suppress(Exception):  # a version that needs the package reports the error
            importlib.import_module(name)


def _ended(process: int) -> int:
    """Ends a version's process. Returns its exit status as `subprocess` does: negative for a signal."""
    for kill in (os.killpg, os.kill):  # a process that has just started may not have its group yet
        with suppress(ProcessLookupError, PermissionError):
            kill(process, signal.SIGKILL)
    try:
        return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    except ChildProcessError:
        return 0


# A version's process ------------------------------------------------------------------------------


def _version(server: int, channel: int, scratch: Path) -> None:
    """Runs one version in the forked process, and never returns."""
    try:
        os.setsid()
        die_with_parent(server)
        own = os.dup2(channel, 3) if channel != 3 else 3
        nowhere = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(nowhere, stream)
        os.closerange(4, 1 << 16)
        os.chdir(scratch)
        own_temporary_folder(str(scratch))
        os.environ["HOME"] = os.environ["XDG_CACHE_HOME"] = str(scratch)
        sys.stdin, sys.stdout, sys.stderr = open(0), open(1, "w"), open(2, "w")  # noqa: SIM115
        with os.fdopen(own, "r", closefd=False) as incoming, os.fdopen(own, "w", closefd=False) as outgoing:
            confine(scratch)
            _answer_all(incoming, outgoing)
    finally:
        os._exit(0)


def _answer_all(incoming: IO[str], outgoing: IO[str]) -> None:
    version: _Version | None = None
    while (asked := receive(incoming)) is not None:
        reply: Message
        try:
            if version is None:
                assert isinstance(asked, said.OpenVersion)
                version = _Version(load_task(asked.where, dict(asked.files)))
                reply = version.opened()
            elif isinstance(asked, said.LowerLaunch):
                reply = version.lowered(asked)
            else:
                assert isinstance(asked, said.DescribeLaunch)
                reply = version.described(asked)
        except TilewrightError as error:
            reply = said.VersionFailed("launch", str(error))
        except BaseException as error:  # also KeyboardInterrupt and SystemExit, raised by the version
            reply = said.VersionFailed("launch", in_one_line(error))
        send(outgoing, reply)


class _Version:
    """The task of one version. It answers the parent's questions."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self._last: tuple[said.DescribeLaunch, Launch] | None = None

    def opened(self) -> said.VersionOpened:
        backward = self.task.backward
        own = _lists(self.task.space)
        return said.VersionOpened(self.task.name, own, None if backward is None else _lists(backward.space))

    def described(self, asked: said.DescribeLaunch) -> said.LaunchDescribed:
        launch = self._launch(asked)
        language = language_of(launch.kernel)
        return said.LaunchDescribed(
            language.name,
            language.kernel_name(launch.kernel),
            launch.grid,
            tuple(map(_argument, launch.args)),
            language.arguments(launch),
            language.decorated_hints(launch.kernel, asked.board.arch),
            language.constant_parameters(launch.kernel),
        )

    def lowered(self, asked: said.LowerLaunch) -> said.LaunchLowered | said.VersionFailed:
        launch = self._launch(asked.launch)
        config, arch = asked.launch.configuration, asked.launch.board.arch
        language = language_of(launch.kernel)
        lowered = (language.tile_ir_of if asked.tile_ir else language.lower)(launch, asked.hints, config, arch)
        if isinstance(lowered, Failed):
            return said.VersionFailed(lowered.stage, lowered.reason)
        code, same_as = (base64.b64encode(data).decode() for data in (lowered.code, lowered.same_as))
        return said.LaunchLowered(lowered.symbol, code, lowered.options, lowered.parameters, same_as)

    def _launch(self, asked: said.DescribeLaunch) -> Launch:
        """Returns the launch. The last launch is cached, because a launch is first described and then lowered."""
        if self._last is None or self._last[0] != asked:
            task = self.task.backward if asked.backward else self.task
            assert task is not None, "the parent knows whether there is a backward"
            launch = task.launched(asked.configuration, asked.dims, asked.arrays, asked.board)
            self._last = asked, replace(launch, in_place=asked.in_place)
        return self._last[1]


def _lists(space: Space) -> said.SpaceLists:
    hints = {name: tuple(values) for name, values in space.hints.items()}
    return said.SpaceLists(dict(space.constants), hints, space.shipped, space.include, space.only, space.shipped_for)


def _argument(value: Any) -> ArraySpec | said.ArrayList | said.OtherValue | int | float | bool | str | None:
    if isinstance(value, (list, tuple)) and all(isinstance(each, ArraySpec) for each in value):
        return said.ArrayList(tuple(value))
    if value is None or isinstance(value, (ArraySpec, bool, int, float, str)):
        return value
    return said.OtherValue(repr(value))


if __name__ == "__main__":
    main()
