"""Waits for some calls of a model in the program that `program.graphs.trial` started, and then tries to capture it.

The model is the first module with parameters that the program calls `ENOUGH` times from outside of other modules. The
trial needs its inputs of several calls. A program with fewer calls is tried at its end. After the trial the program
ends: the trial may have changed the state of the model.
"""

from __future__ import annotations

import atexit
import functools
import json
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tilewright.errors import in_one_line
from tilewright.records import Json
from tilewright.runtime import observing
from tilewright.runtime.graphs.calls import ModelCall, copies
from tilewright.runtime.graphs.fake import FakeRun
from tilewright.runtime.process import leave, seed_torch, write_record
from tilewright.runtime.steps import after_seconds

if TYPE_CHECKING:
    from torch.nn import Module

VARIABLE = "TILEWRIGHT_GRAPHS"
"""The name of an environment variable with JSON: ``root``, the folder of the program, and ``warm_up``, the number of
calls before a capture."""
ENOUGH = 6
"""After so many calls, the model is tried."""
WRAPPERS = ("DistributedDataParallel", "DataParallel")
"""Of these, the model inside is tried: alone, without the other processes."""


def install() -> None:
    """Seeds torch, and watches the calls of modules in this process."""
    seed_torch()
    settings, wanted = json.loads(os.environ[observing.VARIABLE]), json.loads(os.environ[VARIABLE])

    def end(record: dict[str, Json]) -> None:
        write_record(Path(settings["folder"]), f"graphs{os.getpid()}", record)
        leave()

    watcher = CallWatcher(wanted["root"], wanted["warm_up"], end)
    watcher.begin()
    after_seconds(settings["seconds"], watcher.finish)
    atexit.register(watcher.finish)


class CallWatcher:
    """Watches the outermost calls of modules. ``end`` gets the record of the trial, and ends the program."""

    def __init__(self, root: str, warm_up: int, end: Callable[[dict[str, Json]], None]) -> None:
        self.root, self.warm_up, self.end = os.path.realpath(root), warm_up, end
        self.calls: dict[int, tuple[Module, list[ModelCall]]] = {}
        self._inside = False
        self._process = os.getpid()

    def begin(self) -> None:
        """Replaces the call of all modules."""
        from torch.nn import Module

        call = Module.__call__

        @functools.wraps(call)
        def watched(module: Module, *args: Any, **kwargs: Any) -> Any:
            if self._inside or threading.current_thread() is not threading.main_thread():
                return call(module, *args, **kwargs)
            self._inside = True
            try:
                self._see(module, args, kwargs)
                return call(module, *args, **kwargs)
            finally:
                self._inside = False

        Module.__call__ = watched

    def finish(self) -> None:
        """Tries the model that was called most often."""
        if os.getpid() != self._process:
            return
        most = max(self.calls.values(), key=lambda each: len(each[1]), default=None)
        self._inside = True
        self.end({"module": ""} if most is None else self._tried(*most))

    def _see(self, module: Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        import torch

        if next(module.parameters(), None) is None:
            return
        _, calls = self.calls.setdefault(id(module), (module, []))
        gradients = torch.is_grad_enabled() and any(each.requires_grad for each in module.parameters())
        given, named = copies((args, kwargs))
        calls.append(ModelCall(given, named, gradients, torch.is_inference_mode_enabled()))
        if len(calls) == ENOUGH:
            self.end(self._tried(module, calls))

    def _tried(self, module: Module, calls: list[ModelCall]) -> dict[str, Json]:
        """Tries a model: on a GPU first, because the run with fake tensors may leave some in the model."""
        import torch

        if type(module).__name__ in WRAPPERS:
            module = module.module
        record: dict[str, Json] = {"module": type(module).__name__, "calls": len(calls)}
        if any(each.is_cuda for each in module.parameters()):
            from tilewright.runtime.graphs.trial import CaptureTrial

            try:
                record |= CaptureTrial(module, calls, self.warm_up, self.root).record()
            except Exception as error:  # an error of the trial is no verdict on the program
                record["failed"] = in_one_line(error)
        with torch.inference_mode(False):
            record |= FakeRun(module, calls[-1].args, calls[-1].kwargs, self.root).record()
        return record
