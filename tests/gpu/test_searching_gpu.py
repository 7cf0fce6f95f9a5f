"""The search on a GPU: real launches, the real clock, live tensors (requirements A-41, X-08, X-23, X-24)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import cuda.tile as ct
import pytest
from tests.runtime.caller_kernels import double_in_place, doubled, scale, torch

from tilewright.languages.cutile import cutile, private
from tilewright.runtime.search.cutile_trials import trials
from tilewright.runtime.search.searching import SearchResult, search
from tilewright.task.loading import load_task

EXAMPLES = Path(__file__).parent.parent.parent / "examples"


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from cuda.tile._cext import default_tile_context

    monkeypatch.setattr(default_tile_context.config, "cache_dir", str(tmp_path), raising=False)


def searched(configs: Any, grid_fn: Any, kernel: Any, args_fn: Any, hints_fn: Any = None, **more: Any) -> SearchResult:
    return search(trials(configs, grid_fn, kernel, args_fn, hints_fn), stream=torch.cuda.current_stream(), **more)


def matmul() -> tuple[Any, Any, Any, Any, Any]:
    """Configurations, grid, kernel, arguments, and the product that the output should be."""
    task = load_task(str(EXAMPLES / "matmul.py"))
    kernel = task.launch.__globals__["matmul"]
    a, b = (torch.randn(2048, 2048, device="cuda").bfloat16() for _ in "ab")
    c = torch.full_like(a, 7.0)
    configs = [(64, 64, 64), (128, 128, 64), (64, 128, 64), (128, 64, 32)]
    return (configs, lambda t: (2048 // t[0] * (2048 // t[1]),), kernel, lambda t: (a, b, c, *t, 8), c)


@pytest.mark.parametrize("mode", ["graph", "eager"])
def test_agrees_with_exhaustive_search(mode: str) -> None:
    """X-23: the same winner, or one that is no slower than its own noise; the output is untouched."""
    from cuda.tile.tune import exhaustive_search

    configs, grid, kernel, args, c = matmul()
    found = searched(configs, grid, kernel, args, launch_mode=mode)
    assert bool((c == 7.0).all()) and {one.status for one in found.outcomes} == {"timed"}
    theirs = exhaustive_search(configs, torch.cuda.current_stream(), grid, kernel, args, quiet=True)
    by_config = {one.config: one.mean_us for one in theirs.successes}
    assert by_config[configs[found.best]] <= 1.02 * theirs.best.mean_us
    if mode == "graph":
        assert found.outcomes[found.best].us == pytest.approx(by_config[configs[found.best]], rel=0.05)


@pytest.mark.parametrize("where", ["memory", "disk"])
def test_the_launch_finds_the_cubin_that_was_compiled(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """measured.md: a wrong signature silently misses the cache, and the launch compiles once more. Also in place
    and with an alias, where sharing of memory is part of the signature. In memory, it is found without the front end,
    also by a new kernel object after the search."""
    from cuda.tile import _compile

    real, compiled = _compile.subprocess.run, []
    lowered: list[object] = []
    front_end = _compile.hir2ir

    def counting(command: Any, *rest: Any, **more: Any) -> Any:
        compiled.append(command)
        return real(command, *rest, **more)

    monkeypatch.setattr(_compile.subprocess, "run", counting)
    monkeypatch.setattr(_compile, "hir2ir", lambda *given: (lowered.append(given), front_end(*given))[1])
    if where == "disk":
        monkeypatch.setattr(ct.kernel, "_compile", getattr(ct.kernel._compile, "__wrapped__", ct.kernel._compile))
        monkeypatch.setattr(private, "launch_with", lambda find: None)
    x = torch.randn(4096, device="cuda")
    y = torch.empty_like(x)
    space = [256, 512]
    for args in (lambda t: (x, y, t, 0), lambda t: (x, x, t, 0)):
        compiled.clear()
        cutile._EXPORTED.clear(), cutile._FRONT_ENDS.clear(), lowered.clear()
        found = searched(space, lambda t: (4096 // t,), scale, args, lambda t: {"occupancy": 2})
        assert [one.status for one in found.outcomes] == ["timed", "timed"]
        stream = torch.cuda.current_stream().cuda_stream
        ct.launch(stream, (16,), scale.replace_hints(occupancy=2), args(256))
        assert len(lowered) == (2 if where == "memory" else 5), "two in the search, and one of each kernel object"
        kernels = [command for command in compiled if "probe" not in str(command)]  # cuda-tile asks for its version
        assert not [command for command in kernels if "tileiras" in str(command[0]) and "--gpu-name" in command]


@pytest.mark.parametrize("mode", ["graph", "eager"])
def test_in_place_data_is_intact_afterwards(mode: str) -> None:
    """A-41: `x *= 2` on the caller's own tensor, hundreds of times."""
    x = torch.randn(1 << 20, device="cuda")
    before = x.clone()
    found = searched([256, 1024], lambda t: ((1 << 20) // t,), double_in_place, lambda t: (x, t), launch_mode=mode)
    assert {one.status for one in found.outcomes} == {"timed"} and torch.equal(x, before)


def test_a_wrong_configuration_is_rejected() -> None:
    """X-24: half of the blocks are not launched; the output held the right answer before."""
    x = torch.randn(1 << 16, device="cuda")
    y = x * 2
    found = searched([(256, 1), (256, 2)], lambda c: ((1 << 16) // c[0] // c[1],), scale, lambda c: (x, y, c[0], 0))
    assert [one.status for one in found.outcomes] == ["timed", "wrong"] and found.best == 0
    assert torch.equal(y, x * 2)


def test_lists_of_tensors_are_timed_one_by_one() -> None:
    """cuda-tile 1.7 does not capture a launch with lists into a graph."""
    sources = [torch.randn(rows, 16, device="cuda") for rows in (4096, 2048)]
    targets = [torch.zeros_like(one) for one in sources]
    found = searched([8, 16], lambda t: (64,), doubled, lambda t: (sources, targets, t), launch_mode="graph")
    assert {one.status for one in found.outcomes} == {"timed"}
    assert all(not bool(one.any()) for one in targets)
    assert found.outcomes[0].us is not None and found.outcomes[0].us > 0


def test_clones_and_a_stream_of_the_callers_own() -> None:
    """X-08: work queued on the stream comes before the search, and the clones are made on it."""
    stream = torch.cuda.Stream()
    x, y = torch.zeros(1 << 20, device="cuda"), torch.zeros(1 << 20, device="cuda")
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(20_000_000)
        x.fill_(3.0)
    found = search(
        trials([256, 1024], lambda t: ((1 << 20) // t,), scale, lambda t: (x, y.clone(), t, 0)), stream=stream
    )
    assert {one.status for one in found.outcomes} == {"timed"}
    assert bool((x == 3.0).all()) and bool((y == 0.0).all())


@pytest.mark.parametrize("mode", ["graph", "eager"])
def test_of_many_configurations_the_best_predicted_are_raced(mode: str) -> None:
    """The board is known, the work is counted, and nvdisasm reads the code: at most ten and the shipped one."""
    x = torch.randn(1 << 22, device="cuda")
    y = torch.full_like(x, 7.0)
    space = [(tile, occupancy) for tile in (256, 512, 1024, 2048, 4096) for occupancy in (None, 1, 2, 4)]
    found = searched(
        space, lambda c: ((1 << 22) // c[0],), scale, lambda c: (x, y, c[0], 0), lambda c: {"occupancy": c[1]},
        launch_mode=mode,
    )  # fmt: skip
    statuses = [one.status for one in found.outcomes]
    assert set(statuses) <= {"timed", "duplicate", "pruned"} and statuses[0] == "timed"
    assert 1 <= statuses.count("timed") <= 11
    assert all("predicted" in one.reason for one in found.outcomes if one.status == "pruned")
    assert bool((y == 7.0).all())
