"""Gets seeds for a matmul from NVIDIA's analytic model, if the extra ``heuristics`` is installed (proprietary licence).

A seed is a tile that the model ranks high. The package ``nvidia-matmul-heuristics`` needs no GPU. A second query in the
same process crashes (version 0.1.0.27), so each query runs in a child process, `_heuristics_query.py`. The model's
tiles are CTA tiles of CUTLASS. Seeds are screened like all other candidates.
"""

from __future__ import annotations

import importlib.util
import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict

from tilewright.errors import MachineError, RequestError, ToolFailed, UnknownChoice
from tilewright.records import Configuration, PredictedTime, Value
from tilewright.space.kinds import template_for
from tilewright.space.knobs import is_power_of_two
from tilewright.space.space import Space
from tilewright.space.templates import place, template
from tilewright.tools import child

PACKAGE = "nvMatmulHeuristics"
INSTALL = "pip install 'tilewright[heuristics]' (under NVIDIA's proprietary licence)"

SEEDS = ("templates", "heuristics")
"""The values of ``tilewright tune --seeds``: sources of configurations beyond the space's lists. Several are separated
by commas. ``templates``: what others tuned for kernels of this kind (`templates`)."""

QUERY_SECONDS = 30.0
"""Limit of processor time of the child process. A query takes 0.03 to 0.2 s, mostly to start Python."""

PRECISIONS: Mapping[str, str] = {
    "bfloat16": "TST", "float16": "TST", "float8_e4m3fn": "QST", "float8_e5m2": "RST", "int8": "BII",
}  # fmt: skip
"""Maps a dtype to the letters of the input, accumulator and output types, as in cuBLAS.

A query for float16 uses the letters of bfloat16, which has the same size and rate. For 4096³ on an H200 the package
predicts 267 µs for HSH and 156 µs for TST; only TST is near the hardware (0.1.0.27, 2026-11-21).
"""

GPUS: tuple[tuple[str, str], ...] = (
    ("H200", "H200_SXM"), ("H100 PCIE", "H100_PCIE"), ("H100 NVL", "H100_NVL"), ("H100", "H100_SXM"),
    ("H20", "H20_SXM"), ("GB300", "GB300_NVL"), ("GB200", "GB200_NVL"), ("B200", "B200"), ("RTX 5090", "RTX_5090"),
    ("RTX 5080", "RTX_5080"), ("RTX PRO 6000", "RTX_PRO_6000"), ("RTX 4090", "RTX_4090"),
    ("RTX 6000 ADA", "RTX_6000_ADA"), ("L40S", "L40S"), ("L40", "L40"), ("L20", "L20"), ("L4", "L4"),
    ("A100 PCIE", "A100_PCIE_80GB"), ("A100", "A100_SXM_80GB"), ("A30", "A30_PCIE"), ("A40", "A40_PCIE"),
    ("A10", "A10_PCIE"), ("RTX A6000", "RTX_A6000"), ("RTX 3090", "RTX_3090"),
)  # fmt: skip
"""Maps words of a marketing name to the package's name. The first entry whose words all occur is taken."""


class Answer(TypedDict):
    """The child process's result for one tile."""

    tile: list[int]
    cluster: list[int]
    split_k: int
    seconds: float


@dataclass(frozen=True)
class Seed:
    """A tile that the model ranks high. ``tile``: M, N, K of one CTA, powers of two. ``cluster``: CTAs along M and N
    that share loads by multicast."""

    tile: tuple[int, int, int]
    cluster: tuple[int, int]
    predicted: PredictedTime

    def points(self) -> tuple[Configuration, ...]:
        """Returns the points of cuTile that correspond to this seed. In cuTile, one element of the grid is a whole
        cluster.

        The first point is the tile without a cluster. The second point is the same tile, shared by the CTAs of the
        cluster. (For example, 256x128 spills only without a cluster.) The third point is a larger tile for the whole
        cluster, so that each CTA gets the model's tile.
        """
        m, n, k = self.tile
        along_m, along_n = self.cluster
        ctas = along_m * along_n
        readings = [(m, n, 1), (m, n, ctas), (m * along_m, n * along_n, ctas)]
        points = ({"M": a, "N": b, "K": k, "num_ctas": c} for a, b, c in dict.fromkeys(readings))
        return tuple(Configuration.of(point) for point in points)


def missing() -> str | None:
    """Returns None if the package is installed, else the reason and the fix in one line."""
    if importlib.util.find_spec(PACKAGE) is not None:
        return None
    return f"nvidia-matmul-heuristics is not installed; {INSTALL}"


def matmul_seeds(m: int, n: int, k: int, dtype: str, gpu: str, count: int = 8) -> tuple[Seed, ...]:
    """Returns the model's best tiles for the row-major product C[m, n] = A[m, k] · B[k, n], best first.

    dtype: a key of `PRECISIONS`.
    gpu: a marketing name such as ``"NVIDIA H200"``.
    count: the most tiles to return. Tiles with split-K, or with sizes that are no powers of two, are skipped.
    Raises `UnknownChoice`, `RequestError` for sizes below 1, `MachineError` if the package is missing or fails.
    """
    if min(m, n, k, count) < 1:
        raise RequestError(f"matmul_seeds: m={m}, n={n}, k={k}, count={count}; each must be at least 1")
    if dtype not in PRECISIONS:
        raise UnknownChoice("dtype", dtype, PRECISIONS)
    sizes: dict[str, Value] = {"m": m, "n": n, "k": k, "count": 8 * count}
    query = sizes | {"precision": PRECISIONS[dtype], "gpu": gpu_name(gpu)}
    if reason := missing():
        raise MachineError(reason)
    best: dict[object, Seed] = {}
    for seed in sorted(_seeds(_ask(query), gpu), key=lambda seed: seed.predicted.us):
        best.setdefault((seed.tile, seed.cluster), seed)
    return tuple(best.values())[:count]


def place_seeds(
    space: Space, seeds: tuple[Seed, ...], arch: int, dims: Mapping[str, Value]
) -> tuple[Configuration, ...]:
    """Returns the configurations of all seeds. Configurations that ``space`` does not allow are omitted."""
    return place(space, (point for each in seeds for point in each.points()), arch, dims)


def seeds_of(
    space: Space, names: str | None, dims: Mapping[str, Value], *, dtype: str, gpu: str, arch: int,
    kind: Callable[[], str | None],
) -> tuple[Configuration, ...]:  # fmt: skip
    """Returns the seeds for a workload that ``space`` allows.

    names: sources in `SEEDS`, separated by commas, or None for no seeds.
    kind: returns the kind of kernel, a name in `kinds.KINDS`, or None if it is unknown. Called for templates only.
    Raises UnknownChoice for another source, RequestError if a source cannot serve the task, and the errors of
    `matmul_seeds`.
    """
    found: dict[Configuration, None] = {}
    for name in (part.strip() for part in (names or "").split(",") if names is not None):
        if name not in SEEDS:
            raise UnknownChoice("seeds", name, SEEDS)
        more = _template_seeds(space, kind(), dims, arch) if name == "templates" else None
        found |= dict.fromkeys(more if more is not None else _matmul_seeds_of(space, dims, dtype, gpu, arch))
    return tuple(found)


def _template_seeds(space: Space, kind: str | None, dims: Mapping[str, Value], arch: int) -> tuple[Configuration, ...]:
    if kind is None:
        raise RequestError("seeds 'templates' need the kind of kernel, which is read from Tile IR, and this kernel has "
                           "none; fix: tune without seeds")  # fmt: skip
    return place(space, template(template_for(kind), arch), arch, dims)


def _matmul_seeds_of(
    space: Space, dims: Mapping[str, Value], dtype: str, gpu: str, arch: int
) -> tuple[Configuration, ...]:
    m, n, k = map(dims.get, "MNK")
    if not (isinstance(m, int) and isinstance(n, int) and isinstance(k, int)):
        raise RequestError("seeds 'heuristics' are for matrix products: they need the dimensions M, N and K, and the "
                           f"workload has {', '.join(dims)}; fix: tune without seeds")  # fmt: skip
    return place_seeds(space, matmul_seeds(m, n, k, dtype, gpu), arch, dims)


def gpu_name(marketing: str) -> str:
    """Returns the package's name of a GPU: ``"H100_SXM"`` for ``"NVIDIA H100 80GB HBM3"``. Raises `UnknownChoice`."""
    words = set(re.split(r"[\s_-]+", marketing.upper()))
    for wanted, name in GPUS:
        if marketing == name or words >= set(wanted.split()):
            return name
    raise UnknownChoice("GPU of nvidia-matmul-heuristics", marketing, (wanted for wanted, _ in GPUS))


def _seeds(answers: list[Answer], gpu: str) -> Iterator[Seed]:
    for answer in answers:
        (m, n, k), (along_m, along_n) = answer["tile"], answer["cluster"]
        usable = all(map(is_power_of_two, (m, n, k, along_m * along_n)))
        if usable and answer["split_k"] == 1 and answer["seconds"] > 0:
            why = f"nvMatmulHeuristics for {gpu}, in a cluster of {along_m}x{along_n}"
            yield Seed((m, n, k), (along_m, along_n), PredictedTime(answer["seconds"] * 1e6, why))


def _ask(query: Mapping[str, Value]) -> list[Answer]:
    """Runs the query in a child process. Raises `MachineError` if it crashes or times out."""
    script = Path(__file__).with_name("_heuristics_query.py")
    command = [sys.executable, str(script), json.dumps(query)]
    try:
        done = child.run(command, QUERY_SECONDS, patience=1.0)
        answers: list[Answer] = json.loads((done.stdout.splitlines() or [""])[-1])
    except ToolFailed as error:
        raise MachineError(f"nvidia-matmul-heuristics: {error}") from None
    except ValueError:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise MachineError(f"nvidia-matmul-heuristics failed with code {done.returncode}: {last}") from None
    return answers
