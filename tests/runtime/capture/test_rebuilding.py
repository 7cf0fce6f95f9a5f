"""A launch made again from its description."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.runtime import captured_kernels as kernels

from tilewright.errors import RequestError
from tilewright.runtime.capture.data import elements
from tilewright.runtime.capture.described import described
from tilewright.runtime.capture.rebuilding import rebuilt

torch = pytest.importorskip("torch")


def again(*args: Any, kernel: Any = kernels.scale, **more: Any) -> tuple[Any, Any, Any]:
    return rebuilt(described(kernel, (8,), args), device="cpu", **more)


def test_what_is_described_is_rebuilt_as_it_was() -> None:
    base = torch.zeros(100, dtype=torch.bfloat16)
    hinted = kernels.scale.replace_hints(occupancy=2)
    one = described(hinted, (8,), (base[3:33].view(5, 6).t(), base[20:], 128, 0.5))
    kernel, grid, args = rebuilt(one, device="cpu")
    assert described(kernel, grid, args) == one


def test_the_kernel_is_the_one_of_its_module() -> None:
    kernel, _, _ = again(torch.zeros(8), torch.zeros(8), 8, 1.0)
    assert kernel._pyfunc is kernels.scale._pyfunc


def test_numbers_are_drawn_and_equal_seeds_draw_equal_ones() -> None:
    launch = (torch.zeros(64), torch.zeros(64, dtype=torch.int64).repeat(200), 8, 1.0)
    first, second, other = (again(*launch, seed=seed)[2] for seed in (1, 1, 2))
    assert torch.equal(first[0], second[0]) and not torch.equal(first[0], other[0])
    assert first[0].std() > 0.5
    assert not first[1].any(), "an index that was not recorded is zero, which lies in every array"


def test_tables_have_their_contents() -> None:
    table = torch.tensor([3, 1, 2])
    assert torch.equal(again(table, torch.zeros(8), 8, 1.0)[2][0], table)


def test_lists_are_rebuilt_array_by_array() -> None:
    """Two of one memory share it again, and each has its own numbers."""
    base = torch.zeros(64)
    xs, ys = [base[:40], base[32:64], torch.zeros(7)], [torch.zeros(extent) for extent in (40, 32, 7)]
    one = described(kernels.grouped, (4,), (xs, ys, 8, 4))
    kernel, grid, args = rebuilt(one, device="cpu")
    assert [tuple(x.shape) for x in args[0]] == [(40,), (32,), (7,)] and args[2:] == (8, 4)
    assert args[0][1].data_ptr() - args[0][0].data_ptr() == 32 * 4
    assert args[0][2].std() > 0
    assert [argument.kind for argument in described(kernel, grid, args).arguments[:2]] == ["list", "list"]


def test_a_table_and_what_is_updated_are_rebuilt() -> None:
    offsets, x = torch.tensor([0, 5, 9, 16], dtype=torch.int32), torch.zeros(16, 4)
    one = described(kernels.by_sequence, (3, 1), (x, offsets, x, 8, 4))
    kernel, _, args = rebuilt(one, device="cpu")
    assert torch.equal(args[1], offsets) and args[0].data_ptr() == args[2].data_ptr()
    assert kernel._pyfunc is kernels.by_sequence._pyfunc


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float8_e4m3fn, torch.int8])
def test_recorded_data_is_used(tmp_path: Path, dtype: Any) -> None:
    import numpy as np

    x = torch.arange(24).to(dtype).view(4, 6).t()
    np.save(tmp_path / "x.npy", elements(x))
    _, _, args = again(x, torch.zeros(8), 8, 1.0, data={"x": str(tmp_path / "x.npy")})
    assert torch.equal(args[0].float(), x.float()) and args[0].stride() == x.stride()


def program(folder: Path, text: str) -> Any:
    """The description of a launch of ``scale`` of a program of this text."""
    file = folder / "program.py"
    file.write_text(text)
    namespace: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(text, str(file), "exec"), namespace)
    x = torch.zeros(8)
    return described(namespace["scale"], (1,), (x, torch.zeros(8), 8))


PROGRAM = """
import cuda.tile as ct

TWICE = 2.0

def by(x):
    return x * TWICE

@ct.kernel
def scale(x, y, TILE: ct.Constant[int]):
    ct.store(y, (ct.bid(0),), by(ct.load(x, (ct.bid(0),), (TILE,))))

print("runs")
"""


def test_of_a_program_only_the_kernel_is_loaded(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """To rebuild a launch is not to run the program again."""
    one = program(tmp_path, PROGRAM)
    capsys.readouterr()
    kernel, _, _ = rebuilt(one, device="cpu")
    assert kernel._pyfunc.__globals__["TWICE"] == 2.0
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("change", [("x * TWICE", "x + TWICE"), ("TWICE = 2.0", "TWICE = 3.0")])
def test_a_changed_source_is_a_clear_error(tmp_path: Path, change: tuple[str, str]) -> None:
    """Of the kernel, of a helper, of a constant (X-21)."""
    one = program(tmp_path, PROGRAM)
    (tmp_path / "program.py").write_text(PROGRAM.replace(*change))
    sys.modules["linecache"].checkcache()  # type: ignore[attr-defined]
    with pytest.raises(RequestError, match="has changed since it was launched"):
        rebuilt(one, device="cpu")
    rebuilt(one, device="cpu", changed=True)


def test_what_is_gone_is_a_clear_error(tmp_path: Path) -> None:
    one = program(tmp_path, PROGRAM)
    with pytest.raises(RequestError, match="no longer defines a kernel|does not define"):
        rebuilt(replace(one, qualname="other"), device="cpu")
    (tmp_path / "program.py").unlink()
    with pytest.raises(RequestError, match="file is gone"):
        rebuilt(one, device="cpu")


def test_a_record_of_another_machine_needs_the_module_here() -> None:
    """Its paths are those of the other machine. The source says whether the module is the same."""
    x = torch.zeros(64)
    one = replace(described(kernels.scale, (8,), (x, x, 8, 1.0)), file="/elsewhere/captured_kernels.py")
    kernel, _, _ = rebuilt(one, device="cpu")
    assert kernel._pyfunc is kernels.scale._pyfunc
    with pytest.raises(RequestError, match="has changed since it was launched"):
        rebuilt(replace(one, source="of another version"), device="cpu")
    with pytest.raises(RequestError, match="is not on this machine, and nowhere.kernels cannot be imported"):
        rebuilt(replace(one, module="nowhere.kernels"), device="cpu")


def test_what_cannot_be_described_says_why() -> None:
    with pytest.raises(RequestError, match="cannot be launched again: the kernel is defined inside nested"):
        again(torch.zeros(8), 8, kernel=kernels.nested())
