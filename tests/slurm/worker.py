"""The worker process of tests of allocations: it writes down which steps begin and end, and needs no GPU.

A step is `CheckOutputs` of a program whose symbol is the name of the step. ``held`` lasts while the file ``hold`` is
there, ``silent`` for ever, ``deadly`` ends the process, and ``freezing`` stops the process that started this one.
Others last as many milliseconds as the grid says.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

from tilewright.records import Checked
from tilewright.worker import messages as ask
from tilewright.worker.messages import private_stdout, receive, send


def step(name: str, milliseconds: int = 0) -> ask.CheckOutputs:
    return ask.CheckOutputs(ask.Program("", name, (milliseconds,), ()))


def main() -> None:
    folder, out = Path(sys.argv[1]), private_stdout()
    assert isinstance(receive(sys.stdin), ask.OpenTask)
    send(out, ask.Started())
    while (request := receive(sys.stdin)) is not None:
        if isinstance(request, ask.PrepareInputs):
            note(folder, "prepared", request.workload)
            send(out, ask.InputsReady((), new=True))
        elif isinstance(request, ask.CheckOutputs):
            assert isinstance(request.source, ask.Program)
            name = request.source.symbol
            note(folder, "began", name)
            if name == "deadly":
                sys.exit("killed by a kernel")
            if name == "freezing":
                os.kill(os.getppid(), signal.SIGSTOP)
            if name == "silent":
                time.sleep(3600)
            while name == "held" and (folder / "hold").exists():
                send(out, ask.Advanced(0))
                time.sleep(0.02)
            time.sleep(request.source.grid[0] / 1000)
            note(folder, "ended", name)
            send(out, ask.OutputsChecked(Checked("correct", name)))


def note(folder: Path, what: str, name: str) -> None:
    """Appends a line as a whole."""
    file = os.open(folder / "steps", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(file, f"{what} {name}\n".encode())
    os.close(file)


def noted(folder: Path, what: str, name: str) -> int:
    """Returns how often this was noted."""
    file = folder / "steps"
    return file.read_text().split("\n").count(f"{what} {name}") if file.exists() else 0


if __name__ == "__main__":
    main()
