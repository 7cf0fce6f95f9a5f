"""A task file whose loop loads the number of a page, and then the page."""

from __future__ import annotations

import textwrap

from tests.playbook.plain import HEAD

PAGED = (
    HEAD
    + """
ConstInt = ct.Constant[int]


@ct.kernel
def paged(
    keys, values, pages, lengths, out, OFFSET: ConstInt, PAGE: ConstInt, TILE_N: ConstInt, IS_PAGED: ct.Constant[bool]
):
    sequence = ct.bid(0)
    steps = ct.gather(lengths, (sequence,), padding_value=0).item()
    total = ct.zeros((PAGE, TILE_N), ct.float32)
    # all pages of a sequence
    for step in range(steps):
        place = OFFSET + step * 2

        if IS_PAGED:
            # the same page of both
            page = ct.gather(pages, (sequence, place // 2), padding_value=0).item()

            k = ct.reshape(
                ct.load(
                    keys,
                    index=(page, 0, 0),
                    shape=(1, PAGE, TILE_N),
                    latency=2,
                ),
                (PAGE, TILE_N),
            )
        else:
            k = total
        total = total * 0.5 + k * k
        if IS_PAGED:
            v = ct.reshape(ct.load(values, (page, 0, 0), (1, PAGE, TILE_N)), (PAGE, TILE_N))
        else:
            v = k
        total = total * v
    ct.store(out, (sequence, 0, 0), ct.reshape(total, (1, PAGE, TILE_N)))


def reference(keys, values, pages, lengths):
    out = np.zeros((len(lengths), *keys.shape[1:]))
    for total, row, length in zip(out, pages, lengths):
        for page in row[:length]:
            total[:] = (total * 0.5 + keys[page] ** 2) * values[page]
    return out


def launch(keys, values, pages, lengths, out, B, S, P):
    return tw.Launch(paged, (B,), (keys, values, pages, lengths, out, 0, 16, 32, True))


task = tw.Task(
    name="paged",
    tensors={
        "keys": tw.Tensor(("P", 16, 32), "float32"),
        "values": tw.Tensor(("P", 16, 32), "float32"),
        "pages": tw.Tensor(("B", "S"), "int32", tw.integers(0, "P")),
        "lengths": tw.Tensor(("B",), "int32", tw.integers(0, "S + 1")),
        "out": tw.Output(("B", 16, 32), "float32"),
    },
    reference=reference,
    launch=launch,
    flops=lambda B, S: 4 * B * S * 512,
    independent=("B",),
    space=tw.Space(constants={}, shipped={}),
    workloads={"sequences": {"B": 6, "S": 5, "P": 20}},
)
"""
)
WRITES_PAGES = PAGED.replace(
    "        total = total * v\n", "        total = total * v\n        ct.scatter(pages, (sequence, step), 0)\n"
)
DEPENDS_ON_DATA = PAGED.replace("if IS_PAGED:", "if steps > 2:")
DEPENDS_ON_THE_LOOP = PAGED.replace("if IS_PAGED:", "if place > 2:")
UNCHECKED_PAGES = PAGED.replace("place // 2), padding_value=0", "place // 2), check_bounds=False")
UNREACHED = PAGED.replace(
    "    # all pages",
    """    if not IS_PAGED:
        for other in range(steps):
            first = ct.load(keys, (other, 0, 0), (1, PAGE, TILE_N))
            total = total + ct.reshape(first, (PAGE, TILE_N))
    # all pages""",
)
TWO_PAGE_TABLES = PAGED.replace(
    "(sequence, place // 2), padding_value=0)", "(sequence, ct.gather(pages, (0, step)).item() % 5), padding_value=0)"
)
STEPS_CHANGE = PAGED.replace("        total = total * v\n", "        total = total * v\n        steps = steps + 0\n")
TEST_OF_THE_LOOP = PAGED.replace("if IS_PAGED:", "if is_paged:").replace(
    "        place =", "        is_paged = IS_PAGED\n        place ="
)
PAGE_OUTSIDE = PAGED.replace("    # all pages", "    page = 0\n    # all pages").replace(
    "    ct.store(out", "    if IS_PAGED:\n        total = total + page\n    ct.store(out"
)
TWO_BRANCHES = PAGED.replace(
    "            k = total\n",
    "            k = ct.reshape(ct.load(values, (step, 0, 0), (1, PAGE, TILE_N)), (PAGE, TILE_N))\n",
)
PAGE_OF_A_BRANCH = PAGED.replace(
    """        if IS_PAGED:
            v = ct.reshape(ct.load(values, (page, 0, 0), (1, PAGE, TILE_N)), (PAGE, TILE_N))
        else:
            v = k
""",
    "        v = ct.reshape(ct.load(values, (page, 0, 0), (1, PAGE, TILE_N)), (PAGE, TILE_N))\n",
)
_LOOP = PAGED[PAGED.index("    for step") : PAGED.index("    ct.store(out")]
EITHER_LOOP = PAGED.replace(
    _LOOP, "    if TILE_N == 32:\n" + textwrap.indent(_LOOP, "    ") + "    else:\n" + textwrap.indent(_LOOP, "    ")
)
