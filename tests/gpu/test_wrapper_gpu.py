"""`tilewright.tuned` on a GPU: real searches, real launches, CUDA graphs, torch.compile, the mode beside."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

import cuda.tile as ct
import pytest
from tests.runtime.kit_wrapper import background_is_idle

from tilewright.runtime.store.winners import Winners
from tilewright.runtime.wrapper import tensor_guards
from tilewright.runtime.wrapper.wrapper import tuned

torch = pytest.importorskip("torch")

EXAMPLES = Path(__file__).parent.parent.parent / "examples" / "library"


@pytest.fixture(autouse=True)
def _own_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWRIGHT_TUNED", str(tmp_path / "tuned"))
    for name in ("TILEWRIGHT_TUNING", "DISABLE_AUTOTUNE", "TILEGYM_DISABLE_AUTOTUNE"):
        monkeypatch.delenv(name, raising=False)


def example(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"library_{name}", EXAMPLES / f"{name}.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@ct.kernel
def add_kernel(x, y, amount, TILE: ct.Constant[int]):  # type: ignore[no-untyped-def]
    ct.store(y, (ct.bid(0),), ct.load(x, (ct.bid(0),), (TILE,)) + amount)


SPACE = [{"TILE": tile, "occupancy": None} for tile in (1024, 256, 4096)]


def add(**changes: Any) -> Any:
    return tuned(
        add_kernel,
        **{
            "space": SPACE,
            "grid": lambda call, config: (-(-call.x.shape[0] // config.TILE),),
            "outputs": ("y",),
            **changes,
        },
    )


def stream() -> Any:
    return torch.cuda.current_stream()


def arrays(n: int = 1 << 20) -> tuple[Any, Any]:
    return torch.arange(n, device="cuda", dtype=torch.float32), torch.zeros(n, device="cuda")


def test_tuned_launched_and_remembered() -> None:
    op = add()
    x, y = arrays()
    op(stream(), x, y, 1.0)
    assert torch.equal(y, x + 1)
    (winner,) = Winners().all()
    assert winner.parts["board"].endswith("sm_90") or "sm_" in winner.parts["board"]
    assert winner.launches is not None and {one["status"] for one in winner.outcomes} <= {"timed", "duplicate"}
    again = add()
    again(stream(), x, y, 2.0)
    assert torch.equal(y, x + 2) and again.tuned.chosen(x, y, 2.0).origin == "stored"


def test_in_place_the_search_leaves_the_array_as_it_was() -> None:
    """A-41: one addition, however many trials there were."""
    op = add()
    x, _ = arrays()
    before = x.clone()
    op(stream(), x, x, 1.0)
    assert torch.equal(x, before + 1)
    op(stream(), x, x, 1.0)
    assert torch.equal(x, before + 2)
    assert Winners().all()[0].parts["in_place"] == ["y = x"]


def test_under_capture_it_launches_and_does_not_tune(monkeypatch: pytest.MonkeyPatch) -> None:
    op = add()
    x, y = arrays()
    graph = torch.cuda.CUDAGraph()
    monkeypatch.setenv("TILEWRIGHT_TUNING", "off")  # loads the shipped kernel
    op(stream(), x, y, 0.0)
    monkeypatch.delenv("TILEWRIGHT_TUNING")
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        op(torch.cuda.current_stream(), x, y, 3.0)
    assert not Winners().all()
    y.zero_()
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(y, x + 3)
    op(stream(), x, y, 4.0)
    assert len(Winners().all()) == 1 and torch.equal(y, x + 4)


def test_beside_the_program_results_are_right_all_along(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWRIGHT_TUNING", "background")
    op = add()
    x, y = arrays()
    for step in range(50):
        op(stream(), x, y, float(step))
        assert torch.equal(y, x + step)
    assert background_is_idle(120)
    assert len(Winners().all()) == 1
    op(stream(), x, y, 7.0)
    assert torch.equal(y, x + 7) and op.tuned.chosen(x, y, 7.0).origin == "tuned"


def test_on_another_stream() -> None:
    op = add()
    x, y = arrays()
    other = torch.cuda.Stream()
    other.wait_stream(stream())
    with torch.cuda.stream(other):
        op(other, x, y, 1.0)
    torch.cuda.synchronize()
    assert torch.equal(y, x + 1)


def test_buckets_check_the_neighbour() -> None:
    """X-22."""
    from tilewright.runtime.wrapper.buckets import powers_of_two

    op = add(buckets={"x": powers_of_two, "y": powers_of_two})
    for n in (1 << 20, (1 << 20) - 4096 * 16):
        x, y = arrays(n)
        op(stream(), x, y, 1.0)
        assert torch.equal(y, x + 1)
    kept = Winners().all()
    assert {len(one.outcomes) for one in kept} <= {2, 3} and len(kept) >= 2


def test_example_rms_norm() -> None:
    module = example("rms_norm")
    x = torch.randn(512, 1000, device="cuda", dtype=torch.bfloat16)
    weight = torch.randn(1000, device="cuda", dtype=torch.bfloat16)
    expected = torch.nn.functional.rms_norm(x, (1000,), weight, 1e-6)
    for _ in range(2):
        torch.testing.assert_close(module.rms_norm(x, weight), expected, rtol=2e-2, atol=2e-2)


def test_example_autograd() -> None:
    module = example("swiglu_autograd")
    gate, up = (torch.randn(64, 1000, device="cuda", requires_grad=True) for _ in range(2))
    ours = torch.autograd.grad(module.SwiGLU.apply(gate, up).square().sum(), (gate, up))
    theirs = torch.autograd.grad((torch.nn.functional.silu(gate) * up).square().sum(), (gate, up))
    torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-3)


def test_example_torch_compile() -> None:
    module = example("softmax_compiled")
    q, k = (torch.randn(256, 64, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    expected = torch.softmax((q @ k.T) * 64**-0.5, 1)
    for _ in range(2):
        torch.testing.assert_close(module.attention_weights(q, k), expected, rtol=2e-2, atol=2e-2)


def test_later_calls_only_look_up() -> None:
    """A-21: nothing chooses any more."""
    op = add()
    x, y = arrays(4096)
    op(stream(), x, y, 1.0)
    op.tuned.chooser = None  # a miss would fail
    for _ in range(3):
        op(stream(), x, y, 2.0)
    assert torch.equal(y, x + 2)


def test_a_call_like_the_last_is_not_even_looked_up() -> None:
    """torch's private check of tensors, with this torch and tensors of the GPU: see `tensor_guards`."""
    assert tensor_guards.available()
    op = add()
    for extent in (4096, 8192):
        for _ in range(2):
            op(stream(), *arrays(extent), 1.0)
    (variant,) = op.tuned._variants.values()
    place = variant.known_calls["now"]
    known, place.calls = dict(place.calls), {}  # a look-up would fail, and a miss too
    op.tuned.chooser = None
    x, y = arrays(8192)
    op(stream(), x, y, 2.0)
    assert torch.equal(y, x + 2) and len(known) == 2
    with pytest.raises(AttributeError):
        op(stream(), *arrays(4096), 2.0)
    place.calls = known
    for extent in (4096, 8192, 8192, 4096):
        x, y = arrays(extent)
        op(stream(), x, y, 3.0)
        assert torch.equal(y, x + 3)
    with pytest.raises(AttributeError):
        op(stream(), x[1:], y[1:], 1.0)


def test_another_gpu_is_another_call() -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    check = tensor_guards.like((torch.zeros(8, device="cuda:0"),))
    assert check is not None and not check(torch.zeros(8, device="cuda:1"))
    op = add()
    for device in ("cuda:0", "cuda:1") * 2:
        with torch.cuda.device(device):
            x, y = torch.ones(4096, device=device), torch.zeros(4096, device=device)
            op(torch.cuda.current_stream(), x, y, 2.0)
            assert torch.equal(y, x + 2)
    (variant,) = op.tuned._variants.values()
    assert len(variant.known_calls["now"].table) == 2
