"""Where a program makes a launch, and which of its calls makes the launch again."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.optimize.captured_norm import HOST, KERNEL, library, recorded

from tilewright.hardware.architectures import default_board
from tilewright.runtime.capture.drafted_launch import launch_place
from tilewright.runtime.capture.program_call import ProgramCall
from tilewright.runtime.capture.replaying import replayed

torch = pytest.importorskip("torch")
BOARD = default_board("sm_90")
FORMS = """

class Normed(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weights):
        return normed(x.view(-1, x.shape[-1]), weights) if ctx is None else started(ctx, x, weights)


def started(ctx, x, weights):
    y, scales = torch.empty_like(x), torch.empty(x.shape[0])
    ct.launch(
        torch.cuda.current_stream(),
        (x.shape[0], 1, 1),
        cubic_norm,
        (x, y, weights, scales, x.shape[1], 1e-6, x.shape[1]),
    )
    return y


def through_autograd(x, weights, **more):
    return Normed.apply(x, weights)


def with_more(x, weights, *rest):
    return started(len(rest), x, weights)


def through_another(x, weights):
    plain = ct.launch

    def launched(stream, grid, kernel, args):
        return plain(stream, grid, kernel, args)

    ct.launch = launched
    try:
        return started(None, x, weights)
    finally:
        ct.launch = plain


class Layer:
    def __call__(self, x, weights):
        return started(self, x, weights)
"""


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: None)


def call_of(folder: Path, made: Callable[[Any], Callable[..., Any]], *more: object) -> ProgramCall:
    norms = library(folder, KERNEL + HOST + FORMS)
    x, weights = torch.zeros(64, 128, dtype=torch.bfloat16), torch.ones(2, dtype=torch.bfloat16)
    call = recorded(made(norms), x, weights, *more).call
    assert call is not None
    return call


def line_of(call: ProgramCall) -> str:
    place = call.places[0]
    return Path(place.file).read_text().splitlines()[place.line - 1].strip()


def test_the_function_around_the_launch_is_called_again(tmp_path: Path) -> None:
    call = call_of(tmp_path, lambda norms: norms.normed)
    assert (call.places[0].function, call.qualname) == ("normed", "normed")
    assert call.module == f"library_of_{tmp_path.name}.norms"
    assert line_of(call).startswith("ct.launch(torch.cuda.current_stream(), grid")
    assert [argument.name for argument in call.arguments] == ["x", "weights", "eps"]
    assert call.arguments[0].spec.shape == (64, 128)
    made = replayed(call, {}, BOARD)
    assert not made.problem
    assert [(launch.kernel, launch.grid) for launch in made.launches] == [("cubic_norm", (64, 1, 1))]


@pytest.mark.skipif(sys.version_info < (3, 11), reason="code has no qualified name")
def test_a_function_whose_arguments_cannot_be_described_is_left_out(tmp_path: Path) -> None:
    """The context of an autograd function is an object of torch: the function that the user calls is called again."""
    call = call_of(tmp_path, lambda norms: norms.through_autograd)
    assert (call.places[0].function, call.qualname) == ("started", "through_autograd")
    assert line_of(call).startswith("ct.launch(")
    assert replayed(call, {}, BOARD).launches[0].grid == (64, 1, 1)


def test_a_launch_through_another_function_is_found_further_out(tmp_path: Path) -> None:
    """Such as a library that puts its own function in the place of ct.launch."""
    call = call_of(tmp_path, lambda norms: norms.through_another)
    assert [place.function for place in call.places[:2]] == ["through_another.<locals>.launched", "started"]
    place = launch_place(call)
    assert place is not None
    assert place.function == "started"


def test_further_arguments_of_a_function_are_not_recorded(tmp_path: Path) -> None:
    """Then the inner function is called again: its arguments are all named."""
    call = call_of(tmp_path, lambda norms: norms.with_more, 1, 2)
    assert (call.qualname, call.arguments[0].value) == ("started", 2)


def test_without_a_function_to_call_the_place_stays(tmp_path: Path) -> None:
    call = call_of(tmp_path, lambda norms: norms.Layer())
    assert (call.places[0].function, call.qualname) == ("started", "")
    assert "no function around the launch can be called again" in replayed(call, {}, BOARD).problem


def test_the_changed_file_runs_in_place_of_the_program_s(tmp_path: Path) -> None:
    call = call_of(tmp_path, lambda norms: norms.normed)
    changed = (KERNEL + HOST).replace("(rows, 1, 1)", "(rows // 2, 1, 1)")
    assert replayed(call, {Path(call.file): changed}, BOARD).launches[0].grid == (32, 1, 1)
    assert Path(call.file).read_text() != changed


def test_a_call_that_fails_says_why(tmp_path: Path) -> None:
    call = call_of(tmp_path, lambda norms: norms.normed)
    broken = KERNEL + HOST.replace("    y = torch", "    raise OSError('no such model')\n    y = torch")
    made = replayed(call, {Path(call.file): broken}, BOARD)
    assert not made.launches
    assert "no such model" in made.problem
    hanging = KERNEL + HOST.replace("    y = torch", "    open('/tmp/tilewright-must-not-exist', 'w')\n    y = torch")
    assert "ermission" in replayed(call, {Path(call.file): hanging}, BOARD).problem, "edited code cannot write files"
    elsewhere = replayed(call, {Path("/elsewhere/kernels.py"): broken}, BOARD)
    assert "/elsewhere/kernels.py is not below" in elsewhere.problem


def test_the_number_of_sms_is_the_board_s(tmp_path: Path) -> None:
    call = call_of(tmp_path, lambda norms: norms.normed)
    asked = KERNEL + HOST.replace(
        "(rows, 1, 1)", "(torch.cuda.get_device_properties(x.device).multi_processor_count, 1, 1)"
    )
    assert replayed(call, {Path(call.file): asked}, BOARD).launches[0].grid == (BOARD.sms, 1, 1)
