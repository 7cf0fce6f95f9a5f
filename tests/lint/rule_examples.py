"""For each rule a text that it finds, at the lines that end in ``# !``, and one that it leaves alone.

Every text is whole: imports included, so that names resolve as in a user's file.
"""

from __future__ import annotations

from dataclasses import dataclass
from textwrap import dedent

HEAD = """\
import math
import os
from types import SimpleNamespace
import cuda.tile as ct
import torch
from cuda.tile.tune import exhaustive_search

ConstInt = ct.Constant[int]
_cache: dict = {}


def is_autotune_disabled():
    return os.environ.get("TILEGYM_DISABLE_AUTOTUNE") == "1"


"""

COPY = """\
@ct.kernel
def copy(x, y, TILE: ConstInt):
    ct.store(y, (ct.bid(0),), ct.load(x, (ct.bid(0),), (TILE,)))


"""

SCALE = """\
@ct.kernel
def scale(x, TILE: ConstInt):
    ct.store(x, (ct.bid(0),), ct.load(x, (ct.bid(0),), (TILE,)) * 2)


"""


@dataclass(frozen=True)
class Example:
    bad: str
    good: str


def _both(bad: str, good: str, before: str = COPY) -> Example:
    return Example(HEAD + before + dedent(bad), HEAD + before + dedent(good))


def _launcher(kernel: str, arguments: str, hints: str = "", after: str = "pass", grid: str = "(n,)") -> str:
    """A function that searches where its cache misses."""
    return f"""\
def run(x, y, n, stream):
    key = (n, x.dtype, str(x.device), x.stride(), x.data_ptr() % 16)
    if key not in _cache:
        result = exhaustive_search(
            [SimpleNamespace(TILE=64, occupancy=1), SimpleNamespace(TILE=64, occupancy=2)],
            stream,
            lambda cfg: {grid},
            {kernel},
            lambda cfg: {arguments},
            {hints}
        )
        best = result.best.config
        _cache[key] = (best, {kernel})
        {after}
    best, tuned = _cache[key]
    ct.launch(stream, (n,), tuned, (x, y, best.TILE))
"""


HINTS = 'lambda cfg: {"occupancy": cfg.occupancy},'
GOOD = _launcher("copy", "(x, y, cfg.TILE)", HINTS)

EXAMPLES: dict[str, Example] = {
    "TW101": _both(
        _launcher("scale", "(\n                x,  # !\n                cfg.TILE)", HINTS),
        _launcher("scale", "(x.clone(), cfg.TILE)", HINTS),
        SCALE,
    ),
    "TW102": _both(
        _launcher("copy", "(x, y, cfg.TILE)").replace("= exhaustive_search(", "= exhaustive_search(  # !"), GOOD
    ),
    "TW103": _both(
        _launcher("copy", "(x, y, cfg.TILE)", HINTS, after="tuned = copy.replace_hints(occupancy=2, num_ctas=2)  # !"),
        _launcher("copy", "(x, y, cfg.TILE)", HINTS, after="tuned = copy.replace_hints(occupancy=best.occupancy)"),
    ),
    "TW104": _both(
        """\
        def configs():
            yield SimpleNamespace(TILE=64)
            yield SimpleNamespace(TILE=128)


        def tune(x, y, stream):
            first = exhaustive_search(
                configs(),  # !
                stream, lambda cfg: (8,), copy, lambda cfg: (x, y, cfg.TILE))
            second = exhaustive_search(
                {"small": 64, "large": 128},  # !
                stream, lambda cfg: (8,), copy, lambda cfg: (x, y, cfg))
            return first, second
        """,
        """\
        def configs():
            yield SimpleNamespace(TILE=64)
            yield SimpleNamespace(TILE=128)


        def tune(x, y, stream):
            return exhaustive_search(list(configs()), stream, lambda cfg: (8,), copy, lambda cfg: (x, y, cfg.TILE))
        """,
    ),
    "TW105": _both(
        """\
        def tune(x, y, stream):
            result = exhaustive_search([64, 128], stream, lambda t: (8,), copy, lambda t: (x, y, t))
            return result.best_config, result.timings  # ! !
        """,
        """\
        def tune(x, y, stream):
            result = exhaustive_search([64, 128], stream, lambda t: (8,), copy, lambda t: (x, y, t))
            return result.best.config, result.successes
        """,
    ),
    "TW106": Example(
        HEAD + COPY.replace("@ct.kernel", "@ct.kernel(occupancy=2)  # !") + GOOD,
        HEAD + COPY.replace("@ct.kernel", "@ct.kernel(num_worker_warps=8)") + GOOD,
    ),
    "TW107": Example(
        HEAD
        + COPY.replace("@ct.kernel", "@ct.kernel(opt_level=2)")
        + _launcher(
            "copy", "(x, y, cfg.TILE)", HINTS, after="t = ct.kernel(copy._pyfunc, occupancy=best.occupancy)  # !"
        ),
        HEAD
        + COPY.replace("@ct.kernel", "@ct.kernel(opt_level=2)")
        + _launcher("copy", "(x, y, cfg.TILE)", HINTS, after="t = copy.replace_hints(occupancy=best.occupancy)"),
    ),
    "TW108": _both(
        """\
        def tune(x, y, stream):
            with ct.compiler_timeout(5):  # !
                return exhaustive_search([64, 128], stream, lambda t: (8,), copy, lambda t: (x, y, t))
        """,
        """\
        def tune(x, y, stream):
            with ct.compiler_timeout(5):
                result = exhaustive_search([64, 128], stream, lambda t: (8,), copy, lambda t: (x, y, t))
            for config, error, message in result.failures:
                print("dropped:", config, error, message)
            return result
        """,
    ),
    "TW109": _both(
        """\
        def configs():
            capability = torch.cuda.get_device_capability()
            if capability in [(12, 0), (12, 1)]:
                yield SimpleNamespace(TILE_M=64, TILE_N=64, num_ctas=1)
            elif capability[0] < 9:
                yield SimpleNamespace(TILE_M=64, TILE_N=128, num_ctas=1)
            else:
                yield SimpleNamespace(TILE_M=256, TILE_N=256, num_ctas=1)  # !


        def tune(x, y, stream):
            return exhaustive_search(list(configs()), stream, lambda c: (8,), copy, lambda c: (x, y, c.TILE_M))
        """,
        """\
        def configs():
            capability = torch.cuda.get_device_capability()
            if capability[0] == 9:
                yield SimpleNamespace(TILE_M=128, TILE_N=128, num_ctas=1)
            elif capability[0] < 9:
                yield SimpleNamespace(TILE_M=64, TILE_N=128, num_ctas=1)
            else:
                yield SimpleNamespace(TILE_M=256, TILE_N=256, num_ctas=1)


        def tune(x, y, stream):
            return exhaustive_search(list(configs()), stream, lambda c: (8,), copy, lambda c: (x, y, c.TILE_M))
        """,
    ),
    "TW110": _both(
        """\
        def configs():
            for m in (16, 32, 64, 128):
                for n in (16, 32, 64, 128):
                    for occupancy in (1, 2, 4, 8, 16):
                        yield SimpleNamespace(TILE=m, N=n, occupancy=occupancy)  # !


        def tune(x, y, stream):
            return exhaustive_search(list(configs()), stream, lambda c: (8,), copy, lambda c: (x, y, c.TILE))
        """,
        """\
        def configs():
            for m in (16, 32, 64, 128):
                for n in (16, 32, 64, 128):
                    for occupancy in (1, 2, 4):
                        yield SimpleNamespace(TILE=m, N=n, occupancy=occupancy)


        def tune(x, y, stream):
            return exhaustive_search(list(configs()), stream, lambda c: (8,), copy, lambda c: (x, y, c.TILE))
        """,
    ),
    "TW111": _both(
        """\
        def tune(x, y, stream):
            space = [SimpleNamespace(TILE=64, occupancy=o) for o in (1, 2)]
            hints = lambda cfg: {"occupancy": cfg.occupancy}
            found = exhaustive_search(space, stream, lambda cfg: (8,), copy, lambda cfg: (x, y, cfg.TILE), hints)
            best = found.best.config
            ct.launch(stream, (8,), copy, (x, y, best.TILE))  # !
        """,
        """\
        def tune(x, y, stream):
            space = [SimpleNamespace(TILE=64, occupancy=o) for o in (1, 2)]
            hints = lambda cfg: {"occupancy": cfg.occupancy}
            found = exhaustive_search(space, stream, lambda cfg: (8,), copy, lambda cfg: (x, y, cfg.TILE), hints)
            best = found.best.config
            ct.launch(stream, (8,), copy.replace_hints(occupancy=best.occupancy), (x, y, best.TILE))
        """,
    ),
    "TW112": _both(
        """\
        def run(x, y, n, stream):
            key = (n, x.dtype, str(x.device), x.stride(), x.data_ptr() % 16)
            some = torch.randn(64)
            if key not in _cache:
                result = exhaustive_search([64, 128], stream, lambda t: (8,), copy, lambda t: (some, y, t))
                _cache[key] = result.best.config
            ct.launch(stream, (16,), copy, (x, y, _cache[key]))  # ! !
        """,
        """\
        def run(x, y, n, stream):
            key = (n, x.dtype, str(x.device), x.stride(), x.data_ptr() % 16)
            some = torch.randn(x.shape)
            if key not in _cache:
                result = exhaustive_search([64, 128], stream, lambda t: (n // t,), copy, lambda t: (some, y, t))
                _cache[key] = result.best.config
            ct.launch(stream, (n // _cache[key],), copy, (x, y, _cache[key]))
        """,
    ),
    "TW201": _both(
        GOOD.replace(
            "key = (n, x.dtype, str(x.device), x.stride(), x.data_ptr() % 16)", "key = (x.dtype, str(x.device))  # !"
        ),
        GOOD,
    ),
    "TW202": Example(
        (HEAD + COPY + GOOD).replace("_cache: dict = {}", "_cache: dict = {}  # !"),
        HEAD + COPY + "\ndef run(x, y, stream):\n    ct.launch(stream, (8,), copy, (x, y, 64))\n",
    ),
    "TW203": _both(
        """\
        def run(x, y, n, stream, occupancy):
            if is_autotune_disabled():
                ct.launch(stream, (n,), copy.replace_hints(occupancy=1), (x, y, 64))  # !
                return
            ct.launch(stream, (n,), ct.kernel(copy._pyfunc, occupancy=occupancy), (x, y, 64))  # !
        """,
        """\
        small = copy.replace_hints(occupancy=1)


        def made(occupancy):
            # for a caller that keeps it
            return copy.replace_hints(occupancy=occupancy)


        def run(x, y, n, stream, occupancy):
            tuned = _cache.get(occupancy)
            if tuned is None:
                tuned = _cache[occupancy] = copy.replace_hints(occupancy=occupancy)
            ct.launch(stream, (n,), tuned if occupancy else small, (x, y, 64))
        """,
    ),
    "TW204": _both(
        """\
        def run(x, y, n, stream):
            result = exhaustive_search([64, 128], stream, lambda t: (8,), copy, lambda t: (x, y, t))  # !
            ct.launch(stream, (n,), copy, (x, y, result.best.config))
        """,
        """\
        def _searched(x, y, stream):
            return exhaustive_search([64, 128], stream, lambda t: (8,), copy, lambda t: (x, y, t)).best.config


        def run(x, y, n, stream):
            if n not in _cache:
                _cache[n] = _searched(x, y, stream)
            ct.launch(stream, (n,), copy, (x, y, _cache[n]))
        """,
    ),
    "TW205": _both(
        """\
        def run(x, y, n, stream):
            if n not in _cache:
                if is_autotune_disabled():  # !
                    _cache[n] = 64
                else:
                    result = exhaustive_search([64, 128], stream, lambda t: (8,), copy, lambda t: (x, y, t))
                    _cache[n] = result.best.config
            ct.launch(stream, (n,), copy, (x, y, _cache[n]))
        """,
        """\
        def run(x, y, n, stream):
            if is_autotune_disabled():
                ct.launch(stream, (n,), copy, (x, y, 64))
                return
            if n not in _cache:
                result = exhaustive_search([64, 128], stream, lambda t: (8,), copy, lambda t: (x, y, t))
                _cache[n] = result.best.config
            ct.launch(stream, (n,), copy, (x, y, _cache[n]))
        """,
    ),
    "TW206": Example(
        """\
import cuda.tile as ct
from cuda.tile.tune import exhaustive_search


"""
        + COPY.replace("ConstInt", "ct.Constant[int]")
        + """\
def tune(x, y, stream):
    return exhaustive_search([64, 128], stream, lambda t: (8,), copy, lambda t: (x, y, t))  # !
""",
        HEAD
        + COPY
        + """\
def tune(x, y, stream):
    if is_autotune_disabled():
        return 64
    return exhaustive_search([64, 128], stream, lambda t: (8,), copy, lambda t: (x, y, t)).best.config
""",
    ),
    "TW207": _both(
        """\
        os.environ["DISABLE_CUTILE_TUNE"] = "1"  # !
        os.environ.setdefault("TILEIR_ENABLE_FTZ", "1")  # !
        """,
        """\
        os.environ["TILEGYM_DISABLE_AUTOTUNE"] = "1"
        os.environ["CUDA_TILE_CACHE_DIR"] = "/tmp/cache"
        """,
    ),
    "TW208": _both(
        """\
        def run(x, y, stream):
            sms = torch.cuda.get_device_properties("cuda").multi_processor_count  # !
            ct.launch(stream, (sms,), copy, (x, y, 64))
        """,
        """\
        def run(x, y, stream):
            sms = torch.cuda.get_device_properties(x.device).multi_processor_count
            ct.launch(stream, (sms,), copy, (x, y, 64))
        """,
    ),
    "TW209": _both(
        """\
        def run(x, y, n: int, eps: float, stream):
            key = (x.shape, x.dtype, x.device, eps, x.data_ptr())  # ! !
            if key not in _cache:
                result = exhaustive_search([64, 128], stream, lambda t: (8,), copy, lambda t: (x, y, t))
                _cache[key] = result.best.config
            ct.launch(stream, (n,), copy, (x, y, _cache[key]))
        """,
        """\
        def run(x, y, n: int, eps: float, stream):
            key = (x.shape, x.dtype, x.device, n, x.data_ptr() % 16)
            if key not in _cache:
                result = exhaustive_search([64, 128], stream, lambda t: (8,), copy, lambda t: (x, y, t))
                _cache[key] = result.best.config
            ct.launch(stream, (n,), copy, (x, y, _cache[key]))
        """,
    ),
    "TW301": _both(
        """\
        def halved(tile):
            return tile.to(ct.float16)  # !


        @ct.kernel
        def half(x, y):
            ct.store(y, (ct.bid(0),), halved(ct.load(x, (ct.bid(0),), (64,))).cast(y.dtype))  # !
        """,
        """\
        @ct.kernel
        def half(x, y):
            ct.store(y, (ct.bid(0),), ct.load(x, (ct.bid(0),), (64,)).astype(y.dtype))


        def run(x, y, stream):
            ct.launch(stream, (8,), half, (x.to(torch.float32), y))
        """,
    ),
    "TW302": _both(
        """\
        @ct.kernel
        def soft(x, y, TILE: ct.constexpr):  # !
            ct.store(y, (ct.bid(0),), ct.sigmoid(ct.load(x, (ct.bid(0),), (TILE,))))  # !
        """,
        """\
        @ct.kernel
        def soft(x, y, TILE: ct.Constant[int]):
            tile = ct.load(x, (ct.bid(0),), (TILE,))
            ct.store(y, (ct.bid(0),), ct.exp(tile, rounding_mode=ct.RoundingMode.APPROX))
            old = ct.tune
        """,
    ),
    "TW303": _both(
        """\
        @ct.kernel
        def outer(x, y):
            copy(x, y, 64)  # !


        def run(x, y):
            copy(x, y, 64)  # !
        """,
        """\
        def inner(x, y):
            ct.store(y, (0,), ct.load(x, (0,), (64,)))


        @ct.kernel
        def outer(x, y):
            inner(x, y)


        def run(x, y, stream):
            ct.launch(stream, (8,), outer, (x, y))
        """,
    ),
    "TW304": _both(
        """\
        def run(x, y, n, stream):
            ct.launch(stream, (ct.minimum(ct.cdiv(n, 64), 132),), copy, (x, y, 64))  # !
        """,
        """\
        def run(x, y, n, stream):
            ct.launch(stream, (min(ct.cdiv(n, 64), 132),), copy, (x, y, 64))
        """,
    ),
    "TW305": _both(
        """\
        @ct.kernel
        def product(a, c, num_m: int, num_n: int, GROUP: ConstInt):
            bid = ct.bid(0)
            in_group = GROUP * num_n
            group = bid // in_group
            first = group * GROUP
            row = first + (bid % in_group) % GROUP  # !
            column = (bid % in_group) // GROUP
            ct.store(c, (row, column), ct.load(a, (row, column), (64, 64)))
        """,
        """\
        @ct.kernel
        def product(a, c, num_m: int, num_n: int, GROUP: ConstInt):
            bid = ct.bid(0)
            in_group = GROUP * num_n
            group = bid // in_group
            first = group * GROUP
            height = min(num_m - first, GROUP)
            row = first + (bid % in_group) % height
            column = (bid % in_group) // height
            ct.store(c, (row, column), ct.load(a, (row, column), (64, 64)))
        """,
    ),
    "TW306": _both(
        """\
        @ct.kernel
        def product(a, b, c, K: int):
            total = ct.full((64, 64), 0, dtype=ct.float32)
            for k in range(ct.cdiv(K, 32)):
                left = ct.load(a, (ct.bid(0), k), (64, 32))  # !
                right = ct.load(b, index=(k, ct.bid(1)), shape=(32, 64)).astype(ct.float16)  # !
                total = ct.mma(left, right, total)
            ct.store(c, (ct.bid(0), ct.bid(1)), total)
        """,
        """\
        @ct.kernel
        def product(a, b, c, K: int):
            total = ct.full((64, 64), 0, dtype=ct.float32)
            for k in range(ct.cdiv(K, 32)):
                left = ct.load(a, (ct.bid(0), k), (64, 32), padding_mode=ct.PaddingMode.ZERO)
                right = ct.load(b, (k, ct.bid(1)), (32, 64), padding_mode=ct.PaddingMode.ZERO)
                total = ct.mma(left, right, total)
            for k in range(K // 32):
                left = ct.load(a, (ct.bid(0), k), (64, 32))
                total = ct.mma(left, ct.load(b, (k, 0), (32, 64), check_bounds=False), total)
            ct.store(c, (ct.bid(0), ct.bid(1)), total)
        """,
    ),
    "TW307": _both(
        """\
        @ct.kernel
        def rows(x, y):
            ct.store(y, (ct.bid(0),), ct.load(x, (ct.bid(0),), (96,)))  # !
        """,
        """\
        @ct.kernel
        def rows(x, y):
            ct.store(y, (ct.bid(0),), ct.load(x, (ct.bid(0),), (128,)) + 96)
        """,
    ),
    "TW308": _both(
        """\
        @ct.kernel
        def quantise(x, y, scale):
            tile = ct.load(x, (ct.bid(0),), (64,))
            quotient = ct.truediv(tile, 448.0, rounding_mode=ct.RoundingMode.APPROX)  # !
            ct.store(y, (ct.bid(0),), quotient.astype(ct.float8_e4m3fn))
        """,
        """\
        @ct.kernel
        def quantise(x, y, scale):
            tile = ct.load(x, (ct.bid(0),), (64,))
            ct.store(y, (ct.bid(0),), (tile / 448.0).astype(ct.float8_e4m3fn))


        @ct.kernel
        def sigmoid(x, y):
            tile = ct.load(x, (ct.bid(0),), (64,))
            ct.store(y, (ct.bid(0),), ct.truediv(1.0, 1.0 + ct.exp(-tile), rounding_mode=ct.RoundingMode.APPROX))
        """,
    ),
    "TW309": _both(
        """\
        @ct.kernel
        def rows(x, y, TILE: ConstInt):
            ct.store(y, (ct.bid(0),), ct.load(x, (ct.bid(0) * TILE,), (TILE,)))  # !
        """,
        """\
        @ct.kernel
        def rows(x, y, TILE: ConstInt):
            at = ct.bid(0) * TILE + ct.arange(TILE, dtype=ct.int32)
            ct.scatter(y, at, ct.gather(x, at) + ct.load(x, (ct.bid(0) * 2,), (TILE,)))
        """,
    ),
    "TW310": _both(
        """\
        @ct.kernel
        def rows(x, y, width: int):
            ct.store(y, (ct.bid(0),), ct.load(x, (ct.bid(0),), (width,)))  # !
        """,
        """\
        @ct.kernel
        def rows(x, y, width: ConstInt, n: int):
            ct.store(y, (ct.bid(0) + n,), ct.load(x, (ct.bid(0),), (width,)))
        """,
    ),
    "TW311": _both(
        """\
        @ct.kernel
        def rows(x, y, unused: int):  # !
            ct.store(y, (ct.bid(0),), ct.load(x, (ct.bid(0),), (64,)))
        """,
        """\
        @ct.kernel
        def rows(x, y, _reserved: int):
            ct.store(y, (ct.bid(0),), ct.load(x, (ct.bid(0),), (64,)))
        """,
    ),
    "TW401": _both(
        """\
        def run(x, y, bias, stream):
            ct.launch(stream, (8,), copy, (x, y if bias else None, "fast"))  # ! !
        """,
        """\
        def run(x, y, bias, stream):
            ct.launch(stream, (8,), copy, (x, y, bias is not None))
        """,
    ),
    "TW402": _both(
        """\
        def run(x, y, n, stream):
            ct.launch(stream, n // 64, copy, (x, y, 64))  # !
            ct.launch(stream, [n], copy, (x, y, 64))  # !
            ct.launch(stream, (n / 64, 1), copy, (x, y, 64))  # !
            ct.launch(stream, (1, 2, 3, n), copy, (x, y, 64))  # !
        """,
        """\
        def run(x, y, n, stream):
            grid = (n // 64,) + (1, 1)
            ct.launch(stream, grid, copy, (x, y, 64))
            ct.launch(stream, (math.ceil(n / 64), 1, 1), copy, (x, y, 64))
        """,
    ),
    "TW403": _both(
        """\
        from cuda.tile_experimental import autotune_launch


        def run(x, y, stream):
            autotune_launch(stream, lambda c: (8,), copy, lambda c: (x, y, c))  # !
        """,
        """\
        from mine import autotune_launch


        def run(x, y, stream):
            autotune_launch(stream, lambda c: (8,), copy, lambda c: (x, y, c))
        """,
    ),
}
