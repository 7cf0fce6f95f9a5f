"""What of the environment can be asked without a GPU."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from tilewright.runtime.environment import device_of

torch = pytest.importorskip("torch")


def test_the_first_array_that_a_gpu_holds_names_it() -> None:
    """A tensor of the CPU says -1, and is not asked any further."""
    on_gpu = SimpleNamespace(get_device=lambda: 3)
    assert device_of(torch.zeros(1)) is device_of(1) is device_of([]) is None
    assert device_of([torch.zeros(1), on_gpu]) == device_of((1, [on_gpu])) == 3
    assert device_of(SimpleNamespace(__cuda_array_interface__={})) == 0
