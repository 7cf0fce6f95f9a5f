"""What the rules say about Triton is what the installed Triton does. No GPU: only the launch itself is left out."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

triton = pytest.importorskip("triton")
tl = pytest.importorskip("triton.language")
pytestmark = pytest.mark.skipif(
    tuple(map(int, triton.__version__.split(".")[:2])) < (3, 9), reason="the rules say what Triton 3.9 does"
)
CONFIGS = [triton.Config({"BLOCK": block}) for block in (64, 128)]
TENSOR = SimpleNamespace(dtype="torch.float32")


@triton.jit
def scale(x, y, n, FLAG: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(x + at, at < n) * 2, at < n)


class Tuned:
    """The tuner of ``scale``, with the launches that its trials and calls make."""

    def __init__(self, configs: list[Any] = CONFIGS, **options: Any) -> None:
        self.launched: list[int] = []
        self.tuner = triton.autotune(configs, do_bench=self.bench, **({"key": ["n"]} | options))(scale)
        self.tuner.fn = SimpleNamespace(run=lambda *args, BLOCK, **others: self.launched.append(BLOCK))

    def bench(self, launch: Any, quantiles: object) -> list[float]:
        for _ in range(3):
            launch()
        return [1.0, 1.0, 1.0]

    def __call__(self, *args: Any, **others: Any) -> int:
        """Returns the number of launches of one call."""
        before = len(self.launched)
        self.tuner.run(*args, **others)
        return len(self.launched) - before


def test_every_trial_runs_the_kernel_again_on_the_same_data() -> None:
    tuned = Tuned()
    assert tuned(TENSOR, TENSOR, 3, FLAG=True) == 7
    assert tuned(TENSOR, TENSOR, 3, FLAG=True) == 1


def test_a_single_configuration_is_never_timed() -> None:
    assert Tuned(CONFIGS[:1])(TENSOR, TENSOR, 3, FLAG=True) == 1


def test_a_constant_outside_the_key_shares_the_entry() -> None:
    tuned = Tuned()
    tuned(TENSOR, TENSOR, 3, FLAG=True)
    assert tuned(TENSOR, TENSOR, 3, FLAG=False) == 1
    assert len(tuned.tuner.cache) == 1


def test_dtypes_and_the_presence_of_a_tensor_are_in_the_key() -> None:
    tuned = Tuned()
    tuned(TENSOR, TENSOR, 3, FLAG=True)
    assert tuned(TENSOR, SimpleNamespace(dtype="torch.float16"), 3, FLAG=True) == 7
    assert tuned(TENSOR, None, 3, FLAG=True) == 7


def test_a_tensor_in_the_key_is_searched_again_for_each_object() -> None:
    tuned, tensor = Tuned(key=["x"]), type("Tensor", (), {"dtype": "torch.float32"})
    assert tuned(tensor(), TENSOR, 3, FLAG=True) == 7
    assert tuned(tensor(), TENSOR, 3, FLAG=True) == 7


def test_each_new_length_and_each_repeated_configuration_is_timed() -> None:
    tuned = Tuned([CONFIGS[0], *CONFIGS, triton.Config({"BLOCK": 64}, num_warps=4)])
    assert [tuned(TENSOR, TENSOR, length, FLAG=True) for length in (3, 4, 3)] == [13, 13, 1]
    assert [one.num_warps for one in CONFIGS] == [4, 4]
    assert CONFIGS[0].num_stages == 3


def test_a_name_that_is_no_parameter_is_refused() -> None:
    with pytest.raises(ValueError, match="not kernel arguments: m"):
        Tuned(key=["m"])
    with pytest.raises(ValueError, match="not kernel arguments: z"):
        Tuned(restore_value=["z"])


def test_an_argument_that_the_configurations_set_cannot_be_passed() -> None:
    with pytest.raises(ValueError, match="Conflicting meta-parameters"):
        Tuned()(TENSOR, TENSOR, 3, FLAG=True, BLOCK=64)


def test_pruning_must_return_configurations_under_a_known_name() -> None:
    with pytest.raises(Exception, match="No valid autotuner configs"):
        Tuned(prune_configs_by={"early_config_prune": lambda configs, args, **others: None})(
            TENSOR, TENSOR, 3, FLAG=True
        )
    ignored = {"early_prune": lambda *args, **others: [], "top_k": 1}
    assert Tuned(prune_configs_by=ignored)(TENSOR, TENSOR, 3, FLAG=True) == 7
    with pytest.raises(TypeError, match="top_k"):
        Tuned(prune_configs_by={"perf_model": lambda **others: 1.0, "top_k": 1.5})(TENSOR, TENSOR, 3, FLAG=True)


def test_block_pointers_are_gone() -> None:
    assert not hasattr(tl, "advance")
    with pytest.raises(NotImplementedError, match="tensor descriptor"):
        tl.make_block_ptr(*[None] * 6, _semantic=object())
