"""Configurations that a file writes down, and the value of what it writes: found by syntax, nothing runs."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilewright.errors import RequestError
from tilewright.source.configurations import Listed, not_reached, read
from tilewright.source.values import Unread, value_of
from tilewright.transfer.triton import transfer


def dicts(configs: Sequence[Any]) -> list[dict[str, Any]]:
    return [dict(one) for one in configs]


def lists(tmp_path: Path, text: str, language: Any = "triton", name: str | None = None) -> tuple[Listed, ...]:
    file = tmp_path / "kernels.py"
    file.write_text(dedent(text))
    return read(file, language, name)


def fields(listed: Listed) -> list[dict[str, Any]]:
    return [dict(one.fields) for one in listed.configurations]


def test_a_list_in_the_decorator(tmp_path: Path) -> None:
    (one,) = lists(
        tmp_path,
        """
        import triton, nowhere_to_be_found
        @triton.autotune(configs=[
            triton.Config({"BLOCK_M": 64, 'BLOCK_N': 2 * 64}, num_warps=4, num_stages=2),
            triton.Config(dict(BLOCK_M=1 << 7, **{"BLOCK_N": 64}), 8, 3, pre_hook=lambda args: None),
        ], key=["M"])
        @triton.jit
        def kernel(a, BLOCK_M: tl.constexpr): pass
        """,
    )
    assert (one.name, one.notes) == ("kernel", ())
    first, second = fields(one)
    assert first == {"BLOCK_M": 64, "BLOCK_N": 128, "num_warps": 4, "num_stages": 2}
    assert {**second, "pre_hook": 0} == {
        "BLOCK_M": 128, "BLOCK_N": 64, "num_warps": 8, "num_stages": 3, "pre_hook": 0,
    }  # fmt: skip


OWN_DECORATORS = """
import triton
from fla.utils import fla_cache_autotune, kwargs

@triton.heuristics({"HAS": lambda args: args["x"] is not None})
@fla_cache_autotune(configs=[triton.Config({"BK": k}, num_warps=w) for k in (32, 64) for w in (2, 4)], **kwargs)
@triton.jit(do_not_specialize=["T"])
def forward(): ...

if NEW:
    @library.tune("H", candidates=(triton.Config({"BK": 32}),), prune_configs_by={})
    @triton.jit
    def forward(): ...

class Ops:
    @triton.autotune([triton.Config({"BK": 16})], key=[])
    @triton.jit
    def backward(): ...

def late(configs=[triton.Config({"BK": 8})]): ...
"""


def test_every_decorator_is_read_and_what_is_not_reached_is_counted(tmp_path: Path) -> None:
    """flash-linear-attention has 40 decorators of its own, in 16 files."""
    first, second, third = lists(tmp_path, OWN_DECORATORS)
    assert [one.name for one in (first, second, third)] == ["forward", "forward", "backward"]
    assert fields(first) == [{"BK": k, "num_warps": w} for k in (32, 64) for w in (2, 4)]
    assert fields(second) == [{"BK": 32}] and "drops some" in second.notes[0] and fields(third) == [{"BK": 16}]
    assert not_reached(tmp_path / "kernels.py") == "1 in line 20"
    with pytest.raises(RequestError, match=r"no triton.Config\(…\) could be read; not reached: 1 in line 2"):
        lists(tmp_path, "\ndef late(configs=[triton.Config({'BK': 8})]): ...")


def test_comprehensions_names_loops_and_functions(tmp_path: Path) -> None:
    found = lists(
        tmp_path,
        """
        import itertools
        import triton as T
        from triton import Config as C, autotune
        SIZES: list = [32, 64]
        WARPS = SIZES[0] // 8
        configs = [T.Config({"BLOCK_M": m, "BLOCK_N": n}, num_warps=w)
                   for m in SIZES for n, w in itertools.product(reversed(SIZES), [WARPS, 8]) if m >= n]
        def keep(one): return one.num_warps == 4
        def pairs():
            found = []
            for size in range(16, 65, 16):
                if size in (16, 64):
                    found.append(C({"BLOCK_K": size}))
            return found
        def listed():
            return [*pairs(), C({"BLOCK_K": 256})]
        @autotune(list(filter(keep, configs)), key=[])
        @T.jit
        def one(): pass
        @autotune(configs=listed(), key=[])
        @T.jit
        def two(): pass
        spare = [C({"BLOCK": 1024})]
        """,
    )
    by_name = {one.name: one for one in found}
    assert set(by_name) == {"one", "two", "spare"}
    assert [(f["BLOCK_M"], f["BLOCK_N"], f["num_warps"]) for f in fields(by_name["one"])] == [
        (32, 32, 4), (32, 32, 8), (64, 64, 4), (64, 64, 8), (64, 32, 4), (64, 32, 8),
    ]  # fmt: skip
    assert by_name["one"].notes == (
        "a function of the file drops some configurations when it runs; here all are taken",
    )
    assert sorted(f["BLOCK_K"] for f in fields(by_name["two"])) == [16, 64, 256]
    assert fields(lists(tmp_path, (tmp_path / "kernels.py").read_text(), name="pairs")[0]) == [
        {"BLOCK_K": 16}, {"BLOCK_K": 64},
    ]  # fmt: skip


def test_what_only_running_tells_is_said_and_not_lost(tmp_path: Path) -> None:
    (one,) = lists(
        tmp_path,
        """
        from triton import Config
        def configs(sizes):
            if on_hopper():
                yield Config({"BLOCK_M": 128})
            else:
                yield Config({"BLOCK_M": 64}, num_warps=warps())
            for size in sizes:
                yield Config({"BLOCK_M": size})
            yield Config(given, num_ctas=2)
        """,
    )
    assert len(one.configurations) == 4
    assert one.notes == ("only running the file can decide `on_hopper()`; here all branches are taken",)
    done = transfer(one.configurations)
    assert dicts(done.configurations) == [{"TILE_M": 128}, {"TILE_M": 64}]
    assert [one.reason for one in done.dropped if not one.field] == [
        "BLOCK_M is `size in sizes`, whose value is not known without running the file",
        "kwargs is `given`, whose value is not known without running the file",
    ]
    assert [(one.field, one.value) for one in done.dropped if one.field] == [("num_warps", "warps()")]


def test_cutile_lists(tmp_path: Path) -> None:
    found = lists(
        tmp_path,
        """
        from types import SimpleNamespace
        def _configs():
            for m in [64, 128]:
                for occ in (1, 2):
                    yield SimpleNamespace(TILE_M=m, num_ctas=1, occupancy=occ)
        hints = lambda config: {"occupancy": config.occupancy}
        task = tw.Task(space=tw.Space(constants={"TILE_M": (64, 128)}, hints={"num_ctas": (1, 2)},
                                      shipped={"TILE_M": 64, "num_ctas": 1}))
        """,
        "cutile",
    )
    assert [(one.name, len(one.configurations)) for one in found] == [("_configs", 4), ("task", 5)]
    assert dicts(transfer(found[0].configurations, to="triton").configurations) == [
        {"BLOCK_M": 64, "num_ctas": 1}, {"BLOCK_M": 128, "num_ctas": 1},
    ]  # fmt: skip
    assert len(transfer(found[1].configurations, to="triton").configurations) == 4


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("x = 1\n", "contains no configuration: there is no triton.Config"),
        ("def f(:\n", "kernels.py:1: "),
        ("Config({'BLOCK_M': 64})\n", "there is no triton.Config"),
    ],
)
def test_files_without_configurations(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(RequestError, match=said):
        lists(tmp_path, text)
    with pytest.raises(RequestError, match="cannot read"):
        read(tmp_path / "none.py", "triton")


LITERALS = st.recursive(
    st.integers(-9, 9),
    lambda inner: (
        st.tuples(inner, st.sampled_from("+-*%<&|@"), inner).map(lambda t: f"({t[0]} {t[1]} {t[2]})")
        | st.tuples(inner, inner, inner).map(lambda t: f"({t[0]} <= {t[1]} < {t[2]})")
        | st.tuples(inner, inner, inner).map(lambda t: f"({t[0]} in {{{t[1]}, {t[2]}}})")
    ),
)


@given(LITERALS)
def test_arithmetic_is_pythons_or_is_left_unread(text: object) -> None:
    found = value_of(ast.parse(str(text), mode="eval").body, {})
    if not isinstance(found, Unread):
        assert found == eval(str(text))
