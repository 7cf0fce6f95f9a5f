"""Each part of a key changes it, and nothing else does (A-15, X-21)."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, IntEnum
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import cuda.tile as ct
import pytest

from tilewright.errors import RequestError
from tilewright.runtime.key import array_part, board_of, digest, flag_part, toolkit
from tilewright.source.digest import source_of

torch = pytest.importorskip("torch")

HELPERS = "SCALE = 2\n\ndef scaled(tile):\n    return tile * SCALE\n"
KERNEL = """\
from dataclasses import dataclass
from enum import Enum
import math
import cuda.tile as ct
import helpers_of_the_key as helpers

WIDTH = 8
UNUSED = 1
TABLE = {"a": (1, 2)}

class Way(Enum):
    UP = 1

@dataclass(frozen=True)
class Sizes:
    tile: int = 4

SIZES = Sizes()

def inner(tile):
    return tile + WIDTH

def outer(tile):
    return inner(tile) * math.pi

@ct.function
def marked(tile):
    return tile - TABLE["a"][0]

@ct.kernel
def kernel(x, TILE: ct.Constant[int]):
    # a remark
    tile = ct.load(x, (0,), (TILE,))
    if Way.UP == Way.UP:
        tile = tile + SIZES.tile
    ct.store(x, (0,), marked(helpers.scaled(outer(tile))))
"""

Load = Callable[..., ModuleType]


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Load:
    """The modules with some text replaced, from files of their own."""
    count = iter(range(1000))

    def executed(name: str, text: str) -> ModuleType:
        path = tmp_path / f"{name}_{next(count)}.py"
        path.write_text(text)
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec and spec.loader
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, name, module)
        spec.loader.exec_module(module)
        return module

    def make(*changes: tuple[str, str]) -> ModuleType:
        texts = [HELPERS, KERNEL]
        for before, after in changes:
            assert any(before in text for text in texts), before
            texts = [text.replace(before, after) for text in texts]
        executed("helpers_of_the_key", texts[0])
        return executed("kernel_of_the_key", texts[1])

    return make


@pytest.mark.parametrize(
    "change",
    [
        ("tile = ct.load(x, (0,)", "tile = ct.load(x, (1,)"),
        ("WIDTH = 8", "WIDTH = 16"),
        ("return inner(tile)", "return 2 * inner(tile)"),
        ("return tile + WIDTH", "return tile - WIDTH"),
        ("SCALE = 2", "SCALE = 3"),
        ("return tile * SCALE", "return tile / SCALE"),
        ("math.pi", "math.e"),
        ('{"a": (1, 2)}', '{"a": (3, 2)}'),
        ("return tile - TABLE", "return tile + TABLE"),
        ("tile: int = 4", "tile: int = 8"),
        ("UP = 1", "UP = 2"),
        ("@ct.kernel\n", "@ct.kernel(occupancy=2)\n"),
    ],
    ids=lambda change: change[0],
)
def test_source_helpers_and_constants_change_it(change: tuple[str, str], load: Load) -> None:
    assert source_of(load().kernel) != source_of(load(change).kernel)


@pytest.mark.parametrize(
    "change",
    [("# a remark", "# another remark"), ("UNUSED = 1", "UNUSED = 2"), ("\ndef outer", "\n\n\ndef outer")],
    ids=["a comment", "what is not used", "layout"],
)
def test_what_does_not_reach_the_compiler_does_not(change: tuple[str, str], load: Load) -> None:
    assert source_of(load().kernel) == source_of(load(change).kernel)


def test_a_constant_that_is_set_later_counts(load: Load) -> None:
    module = load()
    before = source_of(module.kernel)
    module.WIDTH = 32
    assert source_of(module.kernel) != before
    module.WIDTH = 8
    assert source_of(module.kernel) == before


def test_it_is_the_same_in_another_process_and_for_a_hinted_kernel(load: Load) -> None:
    module = load()
    assert source_of(module.kernel.replace_hints(occupancy=4)) == source_of(module.kernel)
    assert "0x" not in source_of(module.kernel) and len(source_of(module.kernel)) == 64


def closed_over(value: int) -> Any:
    def function() -> int:
        return value

    return function


def test_a_closure_counts() -> None:
    assert source_of(closed_over(1)) != source_of(closed_over(2))
    assert source_of(closed_over(1)) == source_of(closed_over(1))


FUNCTIONS = """\
def blocks(a, b):
    return -(-a // b)

HELPED = lambda call, config: sum(blocks(s, 2) for s in call.shape)
TABLE = {{
    "n": lambda call, config: {body},
}}
"""


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("sum(-(-s // config.TILE) for s in call.shape)", "sum(-(-s // (2 * config.TILE)) for s in call.shape)"),
        ("call.x in (1, 2)", "call.x in (1, 3)"),
        ("sum(blocks(s, 2) for s in call.shape)", "sum(blocks(s, 3) for s in call.shape)"),
        ("[s for s in call.shape if s in {1, 2}]", "[s for s in call.shape if s in {1, 3}]"),
    ],
)
def test_a_lambda_in_a_table_over_lines_counts_whole(one: str, other: str, tmp_path: Path) -> None:
    """Such a line is no statement by itself: its bytecode counts, with that of the generators in it."""
    sources = []
    for number, body in enumerate((one, other, one)):
        file = tmp_path / f"table_{number}.py"
        file.write_text(FUNCTIONS.format(body=body))
        spec = importlib.util.spec_from_file_location(file.stem, file)
        assert spec and spec.loader
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        sources.append(source_of(module.TABLE["n"]))
    assert sources[0] == sources[2] != sources[1]


def test_a_helper_inside_a_generator_of_a_table_is_followed(tmp_path: Path) -> None:
    sources = []
    for step in ("// b", "// (b + 1)"):
        scope: dict[str, Any] = {}
        text = FUNCTIONS.format(body="sum(blocks(s, 2) for s in call.shape)").replace("// b", step)
        exec(compile(text, str(tmp_path / "no_file.py"), "exec"), scope)
        sources.append(source_of(scope["TABLE"]["n"]))
    assert sources[0] != sources[1]


def test_methods_partials_and_callable_objects_count_by_their_function() -> None:
    class Grid:
        def __call__(self, call: Any) -> int:
            return 1

        def other(self, call: Any) -> int:
            return 2

    assert source_of(Grid()) == source_of(Grid.__call__) != source_of(Grid().other)
    assert source_of(partial(closed_over, 1)) == source_of(partial(closed_over, 1))
    assert len({source_of(one) for one in (closed_over, partial(closed_over, 1), partial(closed_over, 2))}) == 3


def test_recursion_ends() -> None:
    def odd(n: int) -> bool:
        return n != 0 and even(n - 1)

    def even(n: int) -> bool:
        return n == 0 or odd(n - 1)

    assert source_of(odd) != source_of(even)


def test_what_is_no_kernel_is_said() -> None:
    with pytest.raises(TypeError, match="is not a kernel"):
        source_of(3)


def test_toolkit_names_front_end_and_compiler() -> None:
    import re

    assert re.fullmatch(r"cuda-tile \d+\.\d+\S*, tileiras (\d+\.\d+(\.\d+)?|none)", toolkit())


def test_board_without_a_gpu_is_an_error() -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    with pytest.raises(Exception, match="no GPU 7"):
        board_of(7)


def parts(tensor: Any) -> str:
    return digest({"arrays": {"x": array_part(tensor)}})


def test_an_array_counts_with_dtype_shape_strides_and_alignment() -> None:
    """W3: strides and alignment are what TileGym's keys omit."""
    base = torch.zeros(64, 64)
    assert array_part(base) == {"dtype": "float32", "shape": [64, 64], "strides": [64, 1], "alignment": 0}
    others = [base.to(torch.bfloat16), torch.zeros(64, 32), base.T, torch.zeros(65 * 64)[1 : 1 + 64 * 64].view(64, 64)]
    assert array_part(others[3])["alignment"] == 4
    assert len({parts(one) for one in (base, *others)}) == 5
    assert parts(base) == parts(torch.ones(64, 64))


def test_flags_count_by_value_and_floats_by_type() -> None:
    """A-15: `is_causal` decides, an ε does not."""
    values = [flag_part(one) for one in (True, 1, False, None, "row", 2, 1.0)]
    assert len({digest({"flag": value}) for value in values}) == 7
    assert flag_part(1e-5) == flag_part(1e-6) == "<float>"
    assert flag_part(17, by_value=False) == flag_part(18, by_value=False) == "<int>"
    assert flag_part([1]) == flag_part([2]) == "<list>", "it may change"


def test_flags_of_other_kinds_count_by_value() -> None:
    class Mask(Enum):
        NONE = 0
        CAUSAL = 1

    class Level(IntEnum):
        LOW = 0

    @dataclass(frozen=True)
    class Window:
        left: int
        scale: float = 1.0

    values = [Mask.NONE, Mask.CAUSAL, Level.LOW, 0, (1, 2), (1, 3), (1, (2, 3)), torch.float16, torch.bfloat16]
    values += [ct.float16, ct.bfloat16, Window(1), Window(2)]
    assert len({digest({"flag": flag_part(one)}) for one in values}) == len(values)
    assert flag_part(Window(1, 2.0)) == flag_part(Window(1, 3.0)), "a float by its type, here too"
    assert flag_part(Mask.NONE, by_value=False) == "<test_flags_of_other_kinds_count_by_value.<locals>.Mask>"


def test_a_digest_does_not_depend_on_the_order_of_the_parts() -> None:
    assert digest({"a": 1, "b": (2, 3)}) == digest({"b": [2, 3], "a": 1})
    assert digest({"a": True}) != digest({"a": 1})
    with pytest.raises(RequestError, match="not plain data"):
        digest({"a": object()})
