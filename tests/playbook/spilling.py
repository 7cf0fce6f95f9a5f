"""Kernels that spill registers on sm_90, in small and large sizes."""

from __future__ import annotations

from tests.playbook.plain import HEAD

PRODUCTS = (
    HEAD
    + '''
ZERO = ct.PaddingMode.ZERO


@ct.kernel
def products(x, a, b, p, q, TM: ct.Constant[int], TN: ct.Constant[int], TK: ct.Constant[int]):
    """Two products with one operand in common."""
    i, j = ct.bid(0), ct.bid(1)
    # the sums
    first = ct.zeros((TM, TN), ct.float32)
    second = ct.zeros((TM, TN), ct.float32)
    for k in range(ct.num_tiles(x, 1, (TM, TK))):
        # the common operand
        left = ct.load(x, (i, k), (TM, TK), padding_mode=ZERO)
        first = ct.mma(left, ct.load(a, (k, j), (TK, TN), padding_mode=ZERO), first)
        right = ct.load(b, (k, j), (TK, TN), padding_mode=ZERO)
        second = ct.mma(left, right, second)  # of b
    ct.store(p, (i, j), first.astype(p.dtype))
    ct.store(q, (i, j), ct.maximum(second, 0).astype(q.dtype))


def launch(x, a, b, p, q, M, N):
    return tw.Launch(products, (-(-M // TM), -(-N // TN), 1), (x, a, b, p, q, TM, TN, TK))


task = tw.Task(
    name="products",
    tensors={"x": tw.Tensor(("M", "K"), "bfloat16"), "a": tw.Tensor(("K", "N"), "bfloat16"),
             "b": tw.Tensor(("K", "N"), "bfloat16"), "p": tw.Output(("M", "N"), "bfloat16"),
             "q": tw.Output(("M", "N"), "bfloat16")},
    reference=lambda x, a, b: (x @ a, np.maximum(x @ b, 0)),
    launch=launch,
    flops=lambda M, N, K: 4 * M * N * K,
    independent=("M", "N"),
    space=tw.Space(constants={}, shipped={}),
    workloads={"one": DIMS},
)
'''
)
LARGE_PRODUCTS = (
    PRODUCTS.replace("TM, TN, TK)", "128, 128, 64)")
    .replace("// TM", "// 128")
    .replace("// TN", "// 128")
    .replace("DIMS", '{"M": 256, "N": 256, "K": 192}')
)
SMALL_PRODUCTS = (
    PRODUCTS.replace("q, TM, TN, TK)", "q, 16, 16, 16)")
    .replace("// TM", "// 16")
    .replace("// TN", "// 16")
    .replace("DIMS", '{"M": 40, "N": 24, "K": 50}')
)
NORM = (
    HEAD
    + """
@ct.kernel
def norm(x, w, g, y, dx, N: ct.Constant[int], TILE: ct.Constant[int]):
    row = ct.bid(0)
    # the row
    values = ct.load(x, (row, 0), (1, TILE), padding_mode=ct.PaddingMode.ZERO).astype(ct.float32)
    weight = ct.load(w, (0, 0), (1, TILE), padding_mode=ct.PaddingMode.ZERO).astype(ct.float32)
    scale = ct.rsqrt(ct.sum(values * values, axis=1, keepdims=True) / N + 1e-5)
    normed = values * scale
    ct.store(y, (row, 0), (normed * weight).astype(y.dtype))
    # its gradient
    gradient = ct.load(g, (row, 0), (1, TILE), padding_mode=ct.PaddingMode.ZERO).astype(ct.float32) * weight
    mean = ct.sum(gradient * normed, axis=1, keepdims=True) / N
    ct.store(dx, (row, 0), (scale * (gradient - normed * mean)).astype(dx.dtype))


def reference(x, w, g):
    scale = 1 / np.sqrt((x * x).mean(axis=1, keepdims=True) + 1e-5)
    normed, g = x * scale, g * w
    return normed * w, scale * (g - normed * (g * normed).mean(axis=1, keepdims=True))


task = tw.Task(
    name="norm",
    tensors={"x": tw.Tensor(("M", "N"), "float32"), "w": tw.Tensor((1, "N"), "float32"),
             "g": tw.Tensor(("M", "N"), "float32"), "y": tw.Output(("M", "N"), "float32"),
             "dx": tw.Output(("M", "N"), "float32")},
    reference=reference,
    launch=lambda x, w, g, y, dx, M, N: tw.Launch(norm, (M,), (x, w, g, y, dx, N, 1 << (N - 1).bit_length())),
    flops=lambda M, N: 9 * M * N,
    independent=("M",),
    space=tw.Space(constants={}, shipped={}),
    workloads={"rows": {"M": 5, "N": LENGTH}},
)
"""
)
LONG_NORM, SHORT_NORM = NORM.replace("LENGTH", "32768"), NORM.replace("LENGTH", "300")
