"""The tests of the translator from Triton, with the GPU in place of the interpreter."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from tests.languages.tileir_from_triton import kit  # noqa: E402
from tests.languages.tileir_from_triton.test_by_hand import *  # noqa: E402, F403
from tests.languages.tileir_from_triton.test_control import *  # noqa: E402, F403
from tests.languages.tileir_from_triton.test_elementwise import *  # noqa: E402, F403
from tests.languages.tileir_from_triton.test_kernels import (  # noqa: E402
    test_attention_that_sees_all as test_attention_that_sees_all,
)
from tests.languages.tileir_from_triton.test_kernels import (  # noqa: E402
    test_right_against_float64 as test_right_against_float64,
)
from tests.languages.tileir_from_triton.test_memory import *  # noqa: E402, F403
from tests.languages.tileir_from_triton.test_shapes import *  # noqa: E402, F403

from tilewright.hardware.gpu import detect  # noqa: E402

pytestmark = pytest.mark.gpu
del test_print, test_control_flow_compiles, test_what_is_not_covered_is_named_with_its_line  # noqa: F821
FORMATS = {"i32": "i", "i64": "q", "fp32": "f", "fp64": "d", "i8": "b", "i16": "h"}


def on_gpu(code: Any, arguments: Sequence[Any], grid: tuple[int, ...]) -> Any:
    """Compiles for this GPU, launches through the driver, and copies all arrays back."""
    found = detect()
    assert found is not None
    torch.cuda.init()
    torch.cuda.current_stream().synchronize()
    driver, module, function = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p(), ctypes.c_void_p()
    cubin = kit.compiled(code, found.board.arch).cubin
    assert driver.cuModuleLoadData(ctypes.byref(module), cubin) == 0
    assert driver.cuModuleGetFunction(ctypes.byref(function), module, code.symbol.encode()) == 0
    copies: list[tuple[Any, Any]] = []
    packed = [ctypes.create_string_buffer(_packed(value, copies)) for value in arguments]
    addresses = (ctypes.c_void_p * len(packed))(*(ctypes.addressof(one) for one in packed))
    size = (*grid, 1, 1)[:3]
    assert driver.cuLaunchKernel(function, *size, 1, 1, 1, 0, None, addresses, None) == 0
    torch.cuda.synchronize()
    for array, copy in copies:
        array.reshape(-1).view(np.uint8)[...] = copy.cpu().numpy()
    assert driver.cuModuleUnload(module) == 0
    return SimpleNamespace(findings=(), prints=())


def _packed(value: Any, copies: list[tuple[Any, Any]]) -> bytes:
    """The bytes of an argument. An array is copied to the GPU, and its address is passed."""
    if isinstance(value, np.ndarray):
        assert value.flags.c_contiguous
        copy = torch.from_numpy(value.reshape(-1).view(np.uint8).copy()).cuda()
        copies.append((value, copy))
        return struct.pack("P", copy.data_ptr())
    return struct.pack(FORMATS[kit.kind_of(value)], value)


@pytest.fixture(autouse=True)
def _on_the_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kit, "run_on", on_gpu)
