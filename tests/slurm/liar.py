"""A worker process that was broken into. The workload of `PrepareInputs` says how it lies."""

from __future__ import annotations

import sys
from itertools import repeat

from tilewright.worker import messages as ask
from tilewright.worker.messages import encode, private_stdout, receive, send

READY = encode(ask.InputsReady((), new=True))
LIES = {
    "a huge line": lambda: '{"message": "InputsReady", "cases": "' + "x" * (20 << 20) + '"}\n',
    "nested too deep": lambda: "[" * 1_000_000 + "\n",
    "no JSON": lambda: "\x1b[31m\0hello\n",
    "not UTF-8": lambda: "\udcff\n",
    "wrong types": lambda: '{"message": "InputsReady", "cases": 5, "new": {"a": "../../etc/passwd"}}\n',
    "a kind of ours that is no answer": lambda: encode(ask.OpenTask("/etc/passwd", (("/etc/passwd", "x"),))),
    "a kind that is none": lambda: '{"message": "os.system", "command": "true"}\n',
    "a reason of many lines": lambda: encode(ask.Broken("first\nsecond" + "x" * 100_000, dead=False)),
    "a failure that passed": lambda: encode(ask.Broken("first", dead=False, status="PASSED")),
    "progress without end": lambda: encode(ask.Advanced(10**30)) * 30_000 + READY,
}
"""What the worker says → the text."""
ENDLESS, FLOOD = "a line without end", "answers to what nobody asked"
GONE = "a candidate that there is not"


def main() -> None:
    out = private_stdout()
    out.reconfigure(errors="surrogateescape")  # type: ignore[attr-defined]
    assert isinstance(receive(sys.stdin), ask.OpenTask)
    send(out, ask.Started())
    while (request := receive(sys.stdin)) is not None:
        assert isinstance(request, ask.PrepareInputs)
        if request.workload == ENDLESS:
            for part in repeat("x" * (1 << 20)):
                out.write(part)
        if request.workload == GONE:
            send(out, ask.Running(10**9))
            send(out, ask.Broken("first", dead=False))
        else:
            out.write(READY * 20_000 if request.workload == FLOOD else LIES.get(request.workload, lambda: READY)())
        out.flush()
        print("x" * (1 << 20), file=sys.stderr)


if __name__ == "__main__":
    main()
