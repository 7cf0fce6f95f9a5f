"""What a key with a shape covers, and where a switch is read after the cache."""

from __future__ import annotations

import pytest

from tilewright.lint.rules import named
from tilewright.testing.rules import found

SEARCH = """\
import os

import cuda.tile.tune as tune

_cache = {{}}


def best(x, y, stream):
    key = ({key})
    if key not in _cache{more}:
        _cache[key] = tune.exhaustive_search(
            configs(), stream, lambda config: ({grid},), kernel, lambda config: (x, y)
        ).best.config
    return _cache.get(key)
"""


def findings(rule: str, **parts: str) -> list[str]:
    (one,) = named([rule])
    return [each.message for each in found(one, SEARCH.format(**{"key": "x.shape, x.dtype", "more": "", **parts}))]


@pytest.mark.parametrize("grid", ["x.numel()", "x.size(0)", "x.dim()", "x.ndim", "x.shape[0]"])
def test_a_shape_in_the_key_covers_what_follows_from_it(grid: str) -> None:
    left_out = "the key of _cache leaves out the device{}, the tensors' strides and alignment"
    assert findings("cache_key", grid=grid) == [left_out.format("")]
    (of_y,) = findings("cache_key", grid=grid.replace("x", "y"))
    assert of_y in (left_out.format(", y.shape"), left_out.format(", y"))


@pytest.mark.parametrize(
    ("more", "late"), [(' and not os.environ.get("DISABLE_AUTOTUNE")', True), (" and stream", False)]
)
def test_a_switch_in_the_test_of_the_cache_is_read_after_it(more: str, late: bool) -> None:
    said = findings("switch_after_cache", grid="x.shape[0]", more=more)
    assert said == (["the switch is read only if _cache misses: a stored entry wins over it"] if late else [])
