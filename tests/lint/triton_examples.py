"""For each rule about Triton a text that it finds, at the lines that end in ``# !``, and one that it leaves alone."""

from __future__ import annotations

from textwrap import dedent

from tests.lint.rule_examples import Example

HEAD = """\
import os
import torch
import triton
import triton.language as tl
from tilewright import Space

CONFIGS = [triton.Config({"BLOCK": block}, num_warps=warps) for block in (64, 128) for warps in (4, 8)]


"""

BODY = """\
@triton.jit
def scale(x, y, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(x + at, at < n) * 2, at < n)
"""


def example(bad: str, good: str) -> Example:
    return Example(HEAD + dedent(bad), HEAD + dedent(good))


def tuned(decorator: str, body: str = BODY) -> str:
    return f"@triton.autotune({decorator})\n{body}"


IN_PLACE = BODY.replace("store(y", "store(x")

KEYED = """
@triton.autotune(CONFIGS, key=[{key}])  {mark}
@triton.jit
def norm(x, y, w, n, N: tl.constexpr, HAS_W: tl.constexpr, STEPS: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * N + tl.arange(0, N)
    value = tl.load(x + at, at < n)
    if HAS_W:
        value *= tl.load(w + at, at < n)
    for _ in tl.static_range(STEPS):
        value = value + tl.load(x)
    tl.store(y + at, value, at < n)


def run(x, y, w, rows, size, steps=1):
    _, count = x.shape
    norm[(4,)](x, y, w, rows, N=triton.next_power_of_2(size), HAS_W=w is not None, STEPS=count)
"""

EXAMPLES = {
    "TW601": example(tuned('CONFIGS, key=["n"]', IN_PLACE).replace('"])', '"])  # !', 1),
                     tuned('CONFIGS, key=["n"], restore_value=["x"]', IN_PLACE)),
    "TW602": example(KEYED.format(key='"n"', mark="# !"), KEYED.format(key='"N", "STEPS"', mark="")),
    "TW603": example(
        """
        os.environ["ENABLE_TILE"] = "1"

        @triton.autotune(CONFIGS, key=["n"])  # !
        """ + BODY.replace("\n", "\n        ") + """
        SPACE = Space(
            hints={
                "route": ("tileir",),
                "num_warps": (4, 8),  # !
                "occupancy": (1, 2),
            },
        )
        """,
        """
        os.environ["ENABLE_TILE"] = "0"

        @triton.autotune(CONFIGS, key=["n"])
        """ + BODY.replace("\n", "\n        ") + """
        SPACE = Space(hints={"route": ("ptx", "tileir"), "num_warps": (4, 8)})
        ALONE = Space(hints={"route": ("tileir",), "num_warps": (None,), "occupancy": (1, 2)})
        """,
    ),
    "TW604": example(
        """
        def smaller(configs, arguments, **others):
            [config for config in configs if config.kwargs["BLOCK"] <= arguments["n"]]


        """ + "\n        ".join(tuned("""
            CONFIGS,
            key=["n"],
            prune_configs_by={
                "early_config_prune": smaller,  # !
                "early_prune": smaller,  # !
                "top_k": 4,  # !
            },
        """).splitlines()),
        """
        def smaller(configs, arguments, **others):
            return [config for config in configs if config.kwargs["BLOCK"] <= arguments["n"]]


        """ + "\n        ".join(tuned("""
            CONFIGS, key=["n"],
            prune_configs_by={"early_config_prune": smaller, "perf_model": len, "top_k": 0.5},
        """).splitlines()),
    ),
    "TW605": example(
        tuned("""
    [triton.Config({"BLOCK": 64, "GROUP": 8}), triton.Config({"BLOCK": 128, "GROUP": 8})],  # !
    key=["N"],  # !
    reset_to_zero=["z"],  # !
"""),
        tuned('[triton.Config({"BLOCK": 64, "waves_per_eu": 2}), triton.Config({"BLOCK": 8})], key=["n"]'),
    ),
    "TW606": example(
        tuned('CONFIGS, key=["n"]') + "\n\nscale[(4,)](a, b, 256, BLOCK=64)  # !\n",
        tuned('CONFIGS, key=["n"]') + "\n\nscale[(4,)](a, b, 256)\n",
    ),
    "TW610": example(
        """
        @triton.autotune(CONFIGS, key=["n", "y"])  # ! !
        """ + BODY.replace("\n", "\n        ") + """
        def run(x, y):
            scale[(4,)](x, y, x.numel())
        """,
        """
        @triton.autotune(CONFIGS, key=["n"])
        """ + BODY.replace("\n", "\n        ") + """
        def run(x, y):
            scale[(4,)](x, y, triton.next_power_of_2(x.numel()))
        """,
    ),
    "TW611": example(
        """
        @triton.autotune(  # !
            [
                triton.Config({"BLOCK": 64}, num_warps=4),
                triton.Config({"BLOCK": 128}, num_warps=4),
                triton.Config({"BLOCK": 64}),
            ],
            key=["n"],
        )
        """ + BODY.replace("\n", "\n        "),
        """
        @triton.autotune(
            [triton.Config({"BLOCK": 64}, num_warps=4), triton.Config({"BLOCK": 64}, num_warps=8)], key=["n"]
        )
        """ + BODY.replace("\n", "\n        "),
    ),
    "TW612": example(
        """
        @triton.autotune(CONFIGS, key=["n"])
        """ + BODY.replace("\n", "\n        ") + """
        def run(x, y, n):
            scale[(triton.cdiv(n, 128),)](x, y, n)  # !
        """,
        """
        @triton.autotune(CONFIGS, key=["n"])
        """ + BODY.replace("\n", "\n        ") + """
        def run(x, y, n):
            scale[lambda meta: (triton.cdiv(n, meta["BLOCK"]),)](x, y, n)
            scale[(triton.cdiv(n, 64),)](x, y, n)
        """,
    ),
    "TW607": example(
        """
        @triton.jit
        def copy(x, y, n, BLOCK: tl.constexpr):
            start = tl.program_id(0) * BLOCK
            p = tl.make_block_ptr(x, (n,), (1,), (start,), (BLOCK,), (0,))  # !
            q = tl.make_block_ptr(y, (n,), (1,), (start,), (BLOCK,), (0,))
            tl.store(q, tl.load(p, boundary_check=(0,)), boundary_check=(0,))
            p = tl.advance(p, (BLOCK,))
        """,
        """
        @triton.jit
        def copy(x, y, n, BLOCK: tl.constexpr):
            p = tl.make_tensor_descriptor(x, (n,), (1,), (BLOCK,))
            q = tl.make_tensor_descriptor(y, (n,), (1,), (BLOCK,))
            q.store((0,), p.load((0,)))
        """,
    ),
    "TW608": example(
        """
        @triton.jit
        def rows(x, y, stride, n, BLOCK: tl.constexpr):
            row = tl.program_id(0)
            y += row * stride  # !
            at = tl.arange(0, BLOCK)
            tl.store(y + at, tl.load(x + row.to(tl.int64) * stride + at, at < n), at < n)
        """,
        """
        @triton.jit
        def rows(x, y, mean, stride, mean_stride, n, BLOCK: tl.constexpr):
            row = tl.program_id(0).to(tl.int64)
            at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
            y += row * stride
            tl.store(y + at, tl.load(x + row * stride + at, at < n), at < n)
            tl.store(mean + tl.program_id(0) * mean_stride, 1.0)
        """,
    ),
    "TW609": example(
        BODY.replace("BLOCK: tl.constexpr", "BLOCK").replace("arange(0, BLOCK)", "arange(0, BLOCK)  # !")
        + "\n\nscale[(4,)](a, b, 256, 64)\n",
        BODY + "\n\nscale[(4,)](a, b, 256, 64)\n",
    ),
}  # fmt: skip
