"""Task files with kernels that nobody tuned for the playbook. In each, one entry of `test_untuned` finds room.

TOKEN_QUANT is the kernel of TileGym 1.5.1 that quantizes groups of a flat array (suites/flashinfer), with one group a
token and without the bounds for arrays that end within a group. The others are written as one writes them first.
"""

from __future__ import annotations

from tests.playbook.plain import HEAD

TOKEN_QUANT = (
    HEAD
    + """
@ct.kernel
def group_quant(y_input, y_quantized, y_scale, y_stride, eps, bit8_min, bit8_max, BLOCK: ct.Constant[int]):
    g_id = ct.bid(0)
    y_base = g_id * y_stride
    cols = ct.arange(BLOCK, dtype=ct.int32)
    y = ct.gather(y_input, (y_base + cols,), check_bounds=True, padding_value=0.0)
    y = ct.astype(y, ct.float32)
    absmax = ct.maximum(ct.max(ct.abs(y), axis=0), eps)
    y_s = absmax / bit8_max
    y_q = ct.minimum(ct.maximum(y * (1.0 / y_s), bit8_min), bit8_max)
    ct.scatter(y_quantized, (y_base + cols,), ct.astype(y_q, y_quantized.dtype), check_bounds=True)
    ct.scatter(y_scale, (g_id,), y_s)


def reference(y_input):
    groups = y_input.reshape(-1, 2048)
    scale = np.maximum(abs(groups).max(axis=1, keepdims=True), 1e-10) / 127.0
    return np.clip(groups / scale, -128.0, 127.0).reshape(-1), scale.reshape(-1)


def launch(y_input, y_quantized, y_scale, G):
    return tw.Launch(group_quant, (G,), (y_input, y_quantized, y_scale, 2048, 1e-10, -128.0, 127.0, 2048))


task = tw.Task(
    name="group_quant",
    tensors={
        "y_input": tw.Tensor(("G * 2048",), "bfloat16"),
        "y_quantized": tw.Output(("G * 2048",), "float16"),
        "y_scale": tw.Output(("G",), "float32"),
    },
    reference=reference,
    launch=launch,
    flops=lambda G: 4 * 2048 * G,
    independent=("G",),
    space=tw.Space(constants={}, shipped={}),
    workloads={"tokens": {"G": 4096}},
)
"""
)

QK_NORM = (
    HEAD
    + """
@ct.kernel
def qk_norm(qkv, q_weight, k_weight, D: ct.Constant[int]):
    token, head = ct.bid(0), ct.bid(1)
    q = ct.load(qkv, (token, 0, head, 0), (1, 1, 1, D)).reshape((D,)).astype(ct.float32)
    q = q * ct.rsqrt(ct.sum(q * q) / D + 1e-6) * ct.load(q_weight, (0,), (D,))
    ct.store(qkv, (token, 0, head, 0), q.reshape((1, 1, 1, D)).astype(qkv.dtype))
    k = ct.load(qkv, (token, 1, head, 0), (1, 1, 1, D)).reshape((D,)).astype(ct.float32)
    k = k * ct.rsqrt(ct.sum(k * k) / D + 1e-6) * ct.load(k_weight, (0,), (D,))
    ct.store(qkv, (token, 1, head, 0), k.reshape((1, 1, 1, D)).astype(qkv.dtype))


def reference(packed, q_weight, k_weight):
    normed = packed / np.sqrt((packed * packed).mean(axis=3, keepdims=True) + 1e-6)
    return np.stack((normed[:, 0] * q_weight, normed[:, 1] * k_weight, packed[:, 2]), axis=1)


task = tw.Task(
    name="qk_norm",
    tensors={
        "packed": tw.Tensor(("T", 3, "H", 128), "bfloat16"),
        "q_weight": tw.Tensor((128,), "float32"),
        "k_weight": tw.Tensor((128,), "float32"),
        "qkv": tw.Output(("T", 3, "H", 128), "bfloat16", updates="packed"),
    },
    reference=reference,
    launch=lambda qkv, q_weight, k_weight, T, H: tw.Launch(qk_norm, (T, H), (qkv, q_weight, k_weight, 128)),
    flops=lambda T, H: 8 * T * H * 128,
    independent=("T", "H"),
    space=tw.Space(constants={}, shipped={}),
    workloads={"prefill": {"T": 4096, "H": 16}},
)
"""
)

RETENTION = (
    HEAD
    + """
@ct.kernel
def retention(x, log_decay, y, TILE: ct.Constant[int]):
    head = ct.bid(0)
    state = ct.zeros((1, 1), ct.float32)
    for n in range(ct.cdiv(x.shape[1], TILE)):
        chunk = ct.load(x, (head, n), (1, TILE), padding_mode=ct.PaddingMode.ZERO)
        if n > 0:
            decay = ct.exp(ct.load(log_decay, (head,), (1,)).astype(ct.float32))  # the head's own
            state = state * decay
        state = state + ct.sum(chunk, axis=1, keepdims=True)
        ct.store(y, (head, n), state)


def reference(x, log_decay):
    state, decay, states = 0.0, np.exp(log_decay), []
    for n in range(x.shape[1] // 128):
        state = state * decay + x[:, n * 128 : n * 128 + 128].sum(axis=1)
        states.append(state)
    return np.stack(states, axis=1)


task = tw.Task(
    name="retention",
    tensors={
        "x": tw.Tensor(("H", "C * 128"), "float32"),
        "log_decay": tw.Tensor(("H",), "float32", tw.uniform(-2.0, 0.0)),
        "y": tw.Output(("H", "C"), "float32"),
    },
    reference=reference,
    launch=lambda x, log_decay, y, H: tw.Launch(retention, (H,), (x, log_decay, y, 128)),
    flops=lambda H, C: 128 * H * C,
    independent=("H",),
    space=tw.Space(constants={}, shipped={}),
    workloads={"heads": {"H": 4096, "C": 32}},
)
"""
)

ROUTER = (
    HEAD
    + """
@ct.kernel
def router(logits, weights, EXPERTS: ct.Constant[int]):
    token = ct.bid(0)
    row = ct.load(logits, (token, 0), (1, EXPERTS), padding_mode=ct.PaddingMode.NEG_INF)
    part = ct.exp(row - ct.max(row, axis=1, keepdims=True))
    ct.store(weights, (token, 0), part / ct.sum(part, axis=1, keepdims=True))


def reference(logits):
    part = np.exp(logits - logits.max(axis=1, keepdims=True))
    return part / part.sum(axis=1, keepdims=True)


task = tw.Task(
    name="router",
    tensors={"logits": tw.Tensor(("T", "E"), "float32"), "weights": tw.Output(("T", "E"), "float32")},
    reference=reference,
    launch=lambda logits, weights, T, E: tw.Launch(router, (T,), (logits, weights, 1 << (E - 1).bit_length())),
    flops=lambda T, E: 5 * T * E,
    independent=("T",),
    serves=lambda E: E in (64, 128, 256),
    space=tw.Space(constants={}, shipped={}),
    workloads={"of 128": {"T": 16384, "E": 128}},
)
"""
)

PEAKS = (
    HEAD
    + """
@ct.kernel
def peaks(x, y, TILE_M: ct.Constant[int], TILE_N: ct.Constant[int]):
    column = ct.bid(0)
    peak = ct.full((1, TILE_N), -np.inf, ct.float32)
    for m in range(ct.cdiv(x.shape[0], TILE_M)):
        tile = ct.load(x, (m, column), (TILE_M, TILE_N), padding_mode=ct.PaddingMode.NEG_INF).astype(ct.float32)
        peak = ct.maximum(peak, ct.max(tile, axis=0, keepdims=True))
    ct.store(y, (0, column), peak)


task = tw.Task(
    name="peaks",
    tensors={"x": tw.Tensor(("M", "N"), "bfloat16"), "y": tw.Output((1, "N"), "float32")},
    reference=lambda x: x.max(axis=0, keepdims=True),
    launch=lambda x, y, N: tw.Launch(peaks, (N // 128,), (x, y, 64, 128)),
    flops=lambda M, N: M * N,
    independent=("N",),
    serves=lambda M, N: M % 256 == 0 and N % 256 == 0,
    space=tw.Space(constants={}, shipped={}),
    workloads={"calibration": {"M": 8192, "N": 16384}},
)
"""
)
