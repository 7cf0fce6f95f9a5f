"""Messages between parent and worker: what is written comes back equal; anything else is refused."""

from __future__ import annotations

import io
import json
import math
import os
import pickle

import numpy as np
import pytest

from tilewright.race import protocol
from tilewright.race.protocol import Budget
from tilewright.race.rules import Policy
from tilewright.records import Checked, Configuration
from tilewright.testing.simulated import SimulatedClock
from tilewright.worker import messages
from tilewright.worker.messages import Configured, Message, decode, encode, receive, send

CONFIG = Configuration.of({"TILE": 16, "occupancy": None})
FILES = (("/home/u/ops.py", "/runs/7/ops.py"),)
X = messages.Pointer("x")
VERSION = messages.Program("Q1VCSU4=", "scale", (4, 1), (X, messages.PackedNumber("0300"), messages.Table(((X, 3),))))
IMAGE = messages.ImageFile("x", "float32", (3, 4), "/tmp/0.raw", (4, 1), 256)
TENSOR = messages.TensorFile("x", "float32", (3, 4), "/tmp/0.raw")


def outcome() -> protocol.RaceOutcome:
    """Of a race with too few rounds for an interval: infinity travels too."""
    policy, rng = Policy(max_rounds=3, min_rounds=3, batch_rounds=1), np.random.default_rng(0)
    return protocol.race(2, SimulatedClock([10.0, 11.0]), policy, cost=[(), ()], rng=rng)


ALL = [
    messages.OpenTask("ops.py:task", FILES),
    messages.Hello(),
    messages.PrepareInputs("even", 7, passing=True),
    messages.CheckOutputs(Configured(CONFIG)),
    messages.CheckOutputs(VERSION),
    messages.RaceField((Configured(CONFIG), VERSION), ((1, 2), ()), None, Policy(seconds=0.5), careful=True),
    messages.TimeRounds((VERSION, VERSION), Budget(40, math.inf, 5), Policy(), copied=1),
    messages.RunImages(CONFIG, {"N": 3, "causal": True}, (IMAGE,), {"y": "x"}, ("y",), fresh=("y",)),
    messages.RunOnce("ops.py", "/tmp/a.json", messages.RunImages(CONFIG, {}, (IMAGE,), {}, ())),
    messages.ComputeTrusted({"N": 3}, (TENSOR,), {"y": "/tmp/1"}, "cpu"),
    messages.Started(),
    messages.Running(None),
    messages.Advanced(3, 2),
    messages.Broken("illegal memory access", dead=True),
    messages.Refused("the reference is one constant"),
    messages.Greeting("NVIDIA H200", "13.0"),
    messages.InputsReady(("seed 7",), new=True),
    messages.OutputsChecked(Checked("incorrect", "y[0] is nan", math.nan)),
    messages.FieldRaced(outcome(), {"nvml": "ok", "sm_clock_mhz": {"min": 1, "max": 2}, "others": [1, 2]}, None),
    messages.RoundsTimed(((1.0, 2.0), ()), (1, 1), ("throttled",), {}, "after timing: y", (3.0,)),
    messages.ImagesRan(("y",), None, "no CUPTI", "scale"),
    messages.TrustedWritten(("y",)),
]


@pytest.mark.parametrize("message", ALL, ids=lambda message: type(message).__name__)
def test_what_is_written_comes_back(message: Message) -> None:
    line = encode(message)
    assert line.count("\n") == 1
    json.loads(line, parse_constant=lambda name: pytest.fail(f"{name} is not strict JSON"))
    assert repr(decode(line)) == repr(message)


def test_every_kind_of_message_is_among_them() -> None:
    kinds = {kind for kind in vars(messages).values() if isinstance(kind, type) and issubclass(kind, Message)}
    assert {type(message) for message in ALL} == kinds - {Message, messages.Step}


def test_every_step_names_its_answer() -> None:
    for message in ALL:
        if isinstance(message, messages.Step):
            assert issubclass(message.answer, Message)


@pytest.mark.parametrize(
    "line", ["what a print leaves", "[1]", "3", "{}", '{"message": "Stop"}', '{"message": "Started", "at": 1}', ""]
)
def test_what_is_no_message_is_refused(line: str) -> None:
    with pytest.raises(ValueError, match="."):
        decode(line)


def test_a_pickle_is_refused_unread() -> None:
    class Trap:
        def __reduce__(self) -> tuple[object, ...]:
            return os._exit, (1,)

    with pytest.raises(ValueError, match="."):
        decode(pickle.dumps(Trap(), protocol=0).decode())


def test_half_a_line_is_the_end() -> None:
    pipe = io.StringIO()
    send(pipe, messages.Started())
    send(pipe, messages.Running(3))
    half = io.StringIO(pipe.getvalue()[:-4])
    assert (receive(half), receive(half)) == (messages.Started(), None)
