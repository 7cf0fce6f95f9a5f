"""The examples for library authors: their kernels compile, their wiring is right, torch.compile takes them.

Without a GPU a launch is torch's own formula for the kernel, and the search is made up.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from tests.runtime.kit_wrapper import World

import tilewright
from tilewright.runtime.search.building import written_by
from tilewright.runtime.wrapper.buckets import powers_of_two
from tilewright.runtime.wrapper.missed_call import MissedCall
from tilewright.runtime.wrapper.wrapper import tuned

torch = pytest.importorskip("torch")

EXAMPLES = Path(__file__).parent.parent.parent / "examples" / "library"
NAMES = ("rms_norm", "swiglu_autograd", "softmax_compiled")


def swiglu_backward(grad: Any, gate: Any, up: Any, grad_gate: Any, grad_up: Any, tile: int) -> None:
    s = torch.sigmoid(gate)
    grad_up.copy_(grad * gate * s)
    grad_gate.copy_(grad * up * s * (1 + gate * (1 - s)))


def rms_norm(x: Any, weight: Any, y: Any, eps: float, *_: Any) -> None:
    y.copy_(torch.nn.functional.rms_norm(x, (x.shape[1],), weight, eps))


FORMULAS: dict[str, Callable[..., Any]] = {
    "rms_norm_kernel": rms_norm,
    "swiglu_forward": lambda gate, up, y, tile: y.copy_(torch.nn.functional.silu(gate) * up),
    "swiglu_backward": swiglu_backward,
    "softmax_kernel": lambda x, y, *_: y.copy_(torch.softmax(x, 1)),
}


class Formulas(World):
    def launch(self, stream: Any, grid: Any, kernel: Any, arguments: tuple[Any, ...]) -> None:
        super().launch(stream, grid, kernel, arguments)
        FORMULAS[kernel._pyfunc.__name__](*(one.detach() if torch.is_tensor(one) else one for one in arguments))


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> World:
    world = Formulas()
    monkeypatch.setenv("TILEWRIGHT_TUNED", str(tmp_path / "tuned"))
    monkeypatch.delenv("TILEWRIGHT_TUNING", raising=False)
    monkeypatch.setattr(tilewright, "tuned", partial(tuned, _environment=world.environment()), raising=False)
    monkeypatch.setattr(tilewright, "powers_of_two", powers_of_two, raising=False)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda *_: "stream")
    return world


@pytest.fixture
def example(world: World) -> Callable[[str], ModuleType]:
    def load(name: str) -> ModuleType:
        spec = importlib.util.spec_from_file_location(f"library_{name}", EXAMPLES / f"{name}.py")
        assert spec and spec.loader
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    return load


def test_these_are_all() -> None:
    assert sorted(path.stem for path in EXAMPLES.glob("*.py")) == sorted(NAMES)


def test_a_plain_operation(world: World, example: Any) -> None:
    module = example("rms_norm")
    x, weight = torch.randn(6, 96), torch.randn(96)
    torch.testing.assert_close(module.rms_norm(x, weight), torch.nn.functional.rms_norm(x, (96,), weight, 1e-6))
    module.rms_norm(x, weight)
    assert len(world.searches) == 1 and world.launches[-1][2][5] == 128, "TILE_N follows from the call"


def test_forward_and_backward(world: World, example: Any) -> None:
    """gradcheck in float64: what is saved, given back and in which order."""
    module = example("swiglu_autograd")
    inputs = [torch.randn(3, 5, dtype=torch.float64, requires_grad=True) for _ in range(2)]
    assert torch.autograd.gradcheck(module.SwiGLU.apply, inputs)
    assert len(world.searches) == 2, "one for each kernel"


def test_a_custom_operation_in_torch_compile(world: World, example: Any) -> None:
    module = example("softmax_compiled")
    torch.library.opcheck(module.softmax, (torch.randn(4, 8),))
    q, k = torch.randn(4, 8), torch.randn(6, 8)
    eager = torch.compile(module.attention_weights._torchdynamo_orig_callable, backend="eager", fullgraph=True)
    torch.testing.assert_close(eager(q, k), torch.softmax((q @ k.T) * 8**-0.5, 1))
    with torch._subclasses.FakeTensorMode():
        assert module.softmax(torch.empty(4, 8)).shape == (4, 8)
    x = torch.randn(3, 5, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(module.softmax, (x,))


ARGUMENTS: dict[str, Callable[[ModuleType], list[tuple[Any, tuple[Any, ...]]]]] = {
    "rms_norm": lambda m: [(m.launch_rms_norm, (*halves((64, 1024), (1024,), (64, 1024)), 1e-6))],
    "swiglu_autograd": lambda m: [(m.forward, halves(*[(64, 1024)] * 3)), (m.backward, halves(*[(64, 1024)] * 5))],
    "softmax_compiled": lambda m: [(m.launch_softmax, halves((64, 1000), (64, 1000)))],
}


def halves(*shapes: tuple[int, ...]) -> tuple[Any, ...]:
    return tuple(torch.zeros(shape, dtype=torch.bfloat16) for shape in shapes)


@pytest.mark.parametrize("name", NAMES)
def test_what_ships_compiles_and_declares_what_it_writes(name: str, example: Any) -> None:
    from tilewright.runtime.search import building

    for op, values in ARGUMENTS[name](example(name)):
        chooser = op.tuned.chooser
        call = MissedCall(op.tuned.declared, chooser.environment, None, values, (), {})
        shipped = chooser.trials(call, call.configurations[:1])[0]
        assert written_by(shipped, "sm_90") == set(op.tuned.declared.outputs)
        with building.Building([shipped], "sm_90", 0) as built:
            assert isinstance(built.get(0), building.Ready), built.get(0)
        assert len(call.configurations) > 4
