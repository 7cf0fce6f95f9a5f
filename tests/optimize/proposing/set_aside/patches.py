"""Patches that nobody tuned the gate of proposals on: committed before the gate existed (`../kinds.md`).

A patch is the replacements in the text of `centred.py`, or the whole patch where it changes another file.
"""

from __future__ import annotations

Edit = tuple[tuple[str, str], ...] | str

HOSTILE: dict[str, Edit] = {
    "the declared precision is coarser": (
        ('    independent=("M",),', '    independent=("M",), precision="float8_e5m2",'),
    ),
    "fewer shapes are supported": (('    independent=("M",),', '    independent=("M",), serves=lambda M: M == 24,'),),
    "the patch leaves the folder with ..": """\
--- a/../elsewhere.py
+++ b/../elsewhere.py
@@ -0,0 +1 @@
+print("elsewhere")
""",
    "a variable of the environment is set": (
        ("import cuda.tile as ct\n", "import os\n\nimport cuda.tile as ct\n"),
        ("\n\n@ct.kernel\n", '\nos.environ["CUDA_TILE_CACHE"] = "off"\n\n\n@ct.kernel\n'),
    ),
    "the launch keeps results between calls": (
        ("\n\ndef launch(", "\n\nknown = {}\n\n\ndef launch("),
        (
            "    return tw.Launch(centre, (M,), (x, y, N, config.TILE))\n",
            "    if (M, N) not in known:\n"
            "        known[M, N] = tw.Launch(centre, (M,), (x, y, N, config.TILE))\n"
            "    return known[M, N]\n",
        ),
    ),
    "the answer is stored in the kernel": (
        ("        ct.store(y, (row, chunk), part - mean)\n", "        ct.store(y, (row, chunk), part * 0.0 + 0.125)\n"),
    ),
    "the launch computes the expected output with the reference": (
        (
            "    return tw.Launch(centre, (M,),",
            "    expected = centred(np.zeros((M, N)))\n    return tw.Launch(centre, (M,),",
        ),
        ("(x, y, N, config.TILE))", "(x, y, N, config.TILE + int(expected.sum())))"),
    ),
}

USEFUL: dict[str, Edit] = {
    "all of the row in one tile": (('shipped={"TILE": 128}', 'shipped={"TILE": 512}'),),
    "the sum is multiplied by 1 / N": (("keepdims=True) / N\n", "keepdims=True) * (1.0 / N)\n"),),
    "two rows a block": (
        ("ct.zeros((1, TILE), ct.float32)", "ct.zeros((2, TILE), ct.float32)"),
        (
            "(row, chunk), (1, TILE), padding_mode=ZERO)\n    mean",
            "(row, chunk), (2, TILE), padding_mode=ZERO)\n    mean",
        ),
        ("        part = ct.load(x, (row, chunk), (1, TILE)", "        part = ct.load(x, (row, chunk), (2, TILE)"),
        ("tw.Launch(centre, (M,),", "tw.Launch(centre, (-(-M // 2),),"),
    ),
}
