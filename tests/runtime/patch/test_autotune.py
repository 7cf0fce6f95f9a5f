"""The search of `triton.autotune` replaced: what it honours, what it compares and remembers, and what it leaves alone.

Triton's autotuner, binder, compiler and caches are the real ones; launches run Python functions on CPU tensors, and
times are given (`tests.runtime.triton_on_cpu`)."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

torch, triton = pytest.importorskip("torch"), pytest.importorskip("triton")

from tests.runtime import autotuned_kernels as kernels  # noqa: E402
from tests.runtime.autotuned_kernels import CONFIGS, autotuned, grid  # noqa: E402
from tests.runtime.triton_on_cpu import CpuDevice, CpuDriver, on_cpu  # noqa: E402
from triton.runtime.autotuner import Autotuner  # noqa: E402
from triton.runtime.jit import JITFunction  # noqa: E402

from tilewright.runtime.environment import Environment  # noqa: E402
from tilewright.runtime.patch import autotuned as question  # noqa: E402
from tilewright.runtime.patch import autotuner as patch  # noqa: E402
from tilewright.runtime.patch.patch import PatchWarning  # noqa: E402
from tilewright.runtime.search.searching import search  # noqa: E402
from tilewright.runtime.store import evidence, warn_once  # noqa: E402
from tilewright.runtime.store.winners import Winners  # noqa: E402

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="a driver for the CPU takes the place of the GPU's")
FASTEST = "BLOCK=128 num_warps=4"


@dataclass
class World:
    driver: CpuDriver
    path: Path
    device: CpuDevice = field(default_factory=lambda: CpuDevice({FASTEST: 5.0, "BLOCK=128": 8.0}))
    searched: list[list[str]] = field(default_factory=list)
    capturing: bool = False

    def __call__(self) -> Environment:
        return Environment(
            search=self.search, winners=Winners(self.path), board=lambda device: "NVIDIA H200 sm_90",
            capturing=lambda stream: self.capturing,
        )  # fmt: skip

    def search(self, trials: Any, **options: Any) -> Any:
        self.searched.append([trial.label for trial in trials])
        return search(trials, device=self.device, **options)


@pytest.fixture(scope="module")
def cubins(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Triton's disk cache. The tests share it, so that each configuration is compiled once."""
    return tmp_path_factory.mktemp("triton")


@pytest.fixture
def world(tmp_path: Path, cubins: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    for name in ("TILEWRIGHT_TUNING", "DISABLE_AUTOTUNE", "TILEGYM_DISABLE_AUTOTUNE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TILEWRIGHT_TUNED", str(tmp_path))
    monkeypatch.setenv("TRITON_CACHE_DIR", str(cubins))
    with on_cpu(dict(kernels.DOES)) as driver:
        one = World(driver, tmp_path / "tuned.db")
        monkeypatch.setattr(question, "Environment", one)
        assert patch.install()
        try:
            yield one
        finally:
            patch.uninstall()


def vectors(n: int = 1000) -> tuple[Any, Any]:
    return torch.randn(n, generator=torch.Generator().manual_seed(0)), torch.full((n,), 7.0)


def run(kernel: Any, n: int = 1000) -> Any:
    """Calls ``kernel`` as its program does, checks the result, and returns the chosen configuration."""
    x, y = vectors(n)
    kernel[grid](x, y, n)
    assert torch.equal(y, x * 2)
    return kernel.best_config


def said(call: Callable[[], object]) -> str:
    """The one line that ``call`` warns."""
    with pytest.warns(warn_once.TunedStoreWarning) as found:
        call()
    (line,) = [str(one.message) for one in found if one.category is warn_once.TunedStoreWarning]
    assert "\n" not in line
    return line


# The search ---------------------------------------------------------------------------------------


def test_the_fastest_is_in_the_autotuners_own_cache(world: World) -> None:
    kernel = autotuned(kernels.doubled)
    with warnings.catch_warnings():
        warnings.simplefilter("error", warn_once.TunedStoreWarning)
        assert run(kernel) is CONFIGS[3]
    assert list(kernel.cache.values()) == [CONFIGS[3]] and world.driver.benched == 0
    assert [ms for ms, *_ in kernel.configs_timings.values()] == pytest.approx([0.01, 0.01, 0.008, 0.005], rel=0.01)
    assert world.device.policy.launch == "graph" and len(world.device.raced) == 4
    launches = len(world.driver.launches)
    assert run(kernel) is CONFIGS[3] and len(world.driver.launches) == launches + 1


def test_triton_finds_what_was_compiled(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each launch loads its cubin from Triton's disk cache; a later process without Tilewright finds it, too."""
    hits: list[bool] = []
    monkeypatch.setattr(triton.knobs.compilation, "listener", lambda **given: hits.append(given["cache_hit"]))
    kernel = autotuned(JITFunction(kernels.doubled.fn))
    run(kernel)
    assert hits == [True] * 4
    compiled = next(iter(kernel.fn.device_caches[0][0].values()))
    assert {"ttir", "ttgir", "llir", "ptx", "cubin"} <= compiled.asm.keys()
    assert compiled.metadata.triton_version == triton.__version__ and compiled.metadata.target.arch == 90


def test_another_process_looks_the_winner_up(world: World) -> None:
    run(autotuned(kernels.doubled))
    launches, later = len(world.driver.launches), autotuned(kernels.doubled)
    assert run(later) is CONFIGS[3]
    assert len(world.searched) == 1 and len(world.driver.launches) == launches + 1
    (winner,) = Winners(world.path).all()
    assert (winner.origin, winner.kernel, winner.label) == ("run", "doubled", f"{FASTEST} num_ctas=1 num_stages=3")
    assert evidence.shapes(winner) == "n=1000"
    assert evidence.summary(winner)["speedup"] == pytest.approx(2, rel=0.01)


def test_a_tie_is_the_first_configuration(world: World) -> None:
    """Triton takes the smallest time it is told, so a tied one must not be told faster."""
    world.device.us = {"BLOCK=64 num_warps=2": 10.0, "": 9.98}
    kernel = autotuned(kernels.doubled)
    assert run(kernel) is CONFIGS[0]
    first, *others = kernel.configs_timings.values()
    assert all(first < other for other in others)


KEYS: dict[str, Callable[[], Any]] = {
    "another value of the key": lambda: run(autotuned(kernels.doubled), n=500),
    "one configuration less": lambda: run(autotuned(kernels.doubled, CONFIGS[1:])),
    "another kernel": lambda: autotuned(kernels.accumulated, reset_to_zero=["total"])[grid](
        vectors()[0], torch.zeros(1), 1000
    ),
    "another dtype": lambda: autotuned(kernels.doubled)[grid](*(each.half() for each in vectors()), 1000),
}


@pytest.mark.parametrize("change", KEYS)
def test_what_is_searched_anew(world: World, change: str) -> None:
    run(autotuned(kernels.doubled))
    KEYS[change]()
    assert len(world.searched) == 2


def test_what_triton_does_not_search_again_is_not_searched_again(world: World) -> None:
    """``key`` names what decides. It names nothing here, so another shape has the same winner, in any process."""
    run(autotuned(kernels.doubled, key=()))
    run(autotuned(kernels.doubled, key=()), n=500)
    assert len(world.searched) == 1


# What is honoured ---------------------------------------------------------------------------------


def test_only_what_pruning_leaves_is_tried(world: World) -> None:
    def early(configs: list[Any], named: dict[str, Any], **more: Any) -> Iterator[Any]:
        assert named["n"] == 1000 and callable(more["grid"])
        return (config for config in configs if config.num_warps == 4)  # Triton reads what is returned once

    run(autotuned(kernels.doubled, prune_configs_by={"early_config_prune": early}))
    by_model = {"perf_model": lambda BLOCK, num_warps, **more: BLOCK + num_warps, "top_k": 2}
    run(autotuned(kernels.doubled, prune_configs_by=by_model))
    short = [[label.partition(" num_ctas")[0] for label in labels] for labels in world.searched]
    assert short == [
        ["BLOCK=64 num_warps=4", "BLOCK=128 num_warps=4"],
        ["BLOCK=64 num_warps=2", "BLOCK=64 num_warps=4"],
    ]


def test_one_configuration_is_not_searched(world: World) -> None:
    first = {"early_config_prune": lambda configs, named, **more: configs[2:3]}
    assert run(autotuned(kernels.doubled, prune_configs_by=first)) is CONFIGS[2]
    assert len(world.driver.launches) == 1 and not world.searched


def test_arrays_are_reset_and_restored(world: World) -> None:
    """Every launch finds ``total`` at 0 and ``x`` as it was, and the program's own launch finds them so, too."""
    seen: set[tuple[float, float]] = set()

    def does(given: dict[str, Any]) -> None:
        seen.add((float(given["total"]), float(given["x"][0])))
        kernels.does_accumulate(given)

    world.driver.does["accumulated"] = does
    kernel = autotuned(kernels.accumulated, reset_to_zero=["total"], restore_value=["x"])
    x, total = vectors()[0], torch.full((1,), 3.0)
    before = x.clone()
    kernel[grid](x, total, 1000)
    assert kernel.best_config is CONFIGS[3] and seen == {(0.0, float(before[0]))}
    assert torch.equal(x, before * 2) and torch.equal(total, before.sum()[None])


def test_a_pre_hook_sets_the_blocks_of_descriptors(world: World) -> None:
    from triton.tools.tensor_descriptor import TensorDescriptor

    configs = [triton.Config({"BLOCK_M": m, "BLOCK_N": 64}, pre_hook=kernels.set_blocks) for m in (16, 64)]
    world.device.us = {"BLOCK_M=64": 5.0}
    source, target = torch.randn(128, 64), torch.zeros(128, 64)
    kernel = autotuned(kernels.moved, configs, key=())
    described = [TensorDescriptor.from_tensor(each, [1, 64]) for each in (source, target)]
    kernel[lambda meta: (128 // meta["BLOCK_M"], 1)](*described)
    assert kernel.best_config is configs[1] and torch.equal(target, source * 2)
    assert world.driver.launches[-1]["grid"] == (2, 1, 1)


def test_hooks_leave_no_trace_in_the_arrays(world: World) -> None:
    """A hook of one configuration spoils an input of all; its own trials see that, and later ones do not."""

    def spoil(given: dict[str, Any]) -> None:
        given["x"].zero_()

    configs = [CONFIGS[0], CONFIGS[3], triton.Config({"BLOCK": 64}, num_warps=8, pre_hook=spoil)]
    kernel = autotuned(kernels.doubled, configs)
    assert "1 of 3 configurations are left out, such as BLOCK=64 num_warps=8" in said(lambda: run(kernel))
    assert kernel.best_config is CONFIGS[3]


def test_an_autotuners_own_pre_hook(world: World) -> None:
    asked: list[bool] = []

    def hook(given: dict[str, Any], reset_only: bool = False) -> None:
        asked.append(reset_only)
        given["total"].zero_()

    kernel = autotuned(kernels.accumulated, pre_hook=hook)
    x, total = vectors()[0], torch.ones(1)
    kernel[grid](x, total, 1000)
    assert set(asked[:-1]) == {False} and asked[-1] is True, "the last call is Triton's"


@pytest.mark.parametrize("outside", [True, False], ids=["outside", "inside"])
def test_heuristics(world: World, outside: bool) -> None:
    values = {"EVEN": lambda given: given["n"] % given["BLOCK"] == 0}
    offset = {"OFFSET": lambda given: given["n"] // 1000}
    inner = triton.heuristics(values)(kernels.shifted)
    if outside:
        kernel = triton.heuristics(offset)(autotuned(inner))
    else:
        kernel = autotuned(triton.heuristics(offset)(inner))
    x, y = vectors(1024)
    kernel[grid](x, y, 1024)
    assert torch.equal(y, x + 1) and len(world.searched) == 1


# Bad input ----------------------------------------------------------------------------------------


def test_a_configuration_that_does_not_compile(world: World) -> None:
    configs = [triton.Config({"BLOCK": 32}), *CONFIGS[2:]]
    kernel = autotuned(triton.heuristics({"EVEN": lambda given: False, "OFFSET": lambda given: 1})(kernels.shifted),
                       configs)  # fmt: skip
    world.driver.does["shifted"] = lambda given: given["y"].copy_(given["x"] + 1)
    x, y = vectors()
    line = said(lambda: kernel[grid](x, y, 1000))
    assert "shifted: 1 of 3 configurations are left out, such as BLOCK=32" in line
    assert kernel.best_config is CONFIGS[3] and torch.equal(y, x + 1)


def wrong_if(condition: Callable[[dict[str, Any]], bool]) -> Callable[[dict[str, Any]], None]:
    return lambda given: given["y"].copy_(given["x"] * (3 if condition(given) else 2))


def test_a_wrong_configuration_is_fast_and_never_picked(world: World) -> None:
    world.driver.does["doubled"] = wrong_if(lambda given: given["BLOCK"] == 128 and given["num_warps"] == 4)
    kernel = autotuned(kernels.doubled)
    assert "left out, such as BLOCK=128 num_warps=4" in said(lambda: run(kernel))
    assert kernel.best_config is CONFIGS[2]


def test_the_first_configuration_may_be_the_wrong_one(world: World) -> None:
    """Triton's configurations are all the same to it: the one that differs from all others is the wrong one."""
    world.driver.does["doubled"] = wrong_if(lambda given: given["BLOCK"] == 64 and given["num_warps"] == 2)
    kernel = autotuned(kernels.doubled)
    assert "left out, such as BLOCK=64 num_warps=2" in said(lambda: run(kernel))
    assert kernel.best_config is CONFIGS[3]


def test_a_pre_hook_that_raises(world: World) -> None:
    def hook(given: dict[str, Any]) -> None:
        raise ZeroDivisionError("no block")

    configs = [*CONFIGS[:2], triton.Config({"BLOCK": 128}, num_warps=4, pre_hook=hook)]
    kernel = autotuned(kernels.doubled, configs)
    assert "ZeroDivisionError: no block" in said(lambda: run(kernel))
    assert kernel.best_config is CONFIGS[0]


def own_search(world: World, kernel: Any, call: Callable[[], object]) -> str:
    """Runs ``call``, for which Triton's own search has to run. Returns the line that says why."""
    line = said(call)
    assert line.endswith("; Triton's own search does") and world.driver.benched == len(kernel.configs)
    assert kernel.best_config is kernel.configs[-1] and not Winners(world.path).all()
    return line


def test_outputs_that_differ_from_run_to_run(world: World) -> None:
    world.driver.does["doubled"] = lambda given: given["y"].copy_(torch.randn(1000))
    kernel, (x, y) = autotuned(kernels.doubled), vectors()
    line = own_search(world, kernel, lambda: kernel[grid](x, y, 1000))
    assert "doubled: its outputs differ too much from run to run" in line


def test_outputs_that_are_those_of_the_configuration(world: World) -> None:
    world.driver.does["doubled"] = lambda given: given["y"].fill_(given["BLOCK"] + given["num_warps"])
    kernel, (x, y) = autotuned(kernels.doubled), vectors()
    assert "each configuration has other outputs" in own_search(world, kernel, lambda: kernel[grid](x, y, 1000))


@pytest.mark.parametrize("case", ["post_hook", "version", "gives a name twice"])
def test_what_it_does_not_know_triton_does(world: World, case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = autotuned(kernels.doubled)
    if case == "post_hook":
        kernel = autotuned(kernels.doubled, post_hook=lambda given, exception: None)
    elif case == "version":
        monkeypatch.setattr(question, "VERSION", "3.10.0")
    else:
        error, given = pytest.raises(ValueError, match="Conflicting meta-parameters: BLOCK"), (*vectors(), 1000)
        with pytest.warns(warn_once.TunedStoreWarning, match="gets 'BLOCK' from its caller"), error:
            kernel[grid](*given, BLOCK=64)
        return
    line = own_search(world, kernel, lambda: run(kernel))
    assert {"post_hook": "has a post_hook of its own", "version": "3.10.0 is newer than the tested"}[case] in line


def test_another_makers_gpu(world: World) -> None:
    run(autotuned(kernels.doubled))  # Triton keeps the compiler of the first launch
    Winners(world.path).remove([winner.key for winner in Winners(world.path).all()])
    world.driver.target = triton.backends.compiler.GPUTarget("hip", "gfx942", 64)
    kernel = autotuned(kernels.doubled)
    assert "driver here is for hip" in own_search(world, kernel, lambda: run(kernel))


def test_other_methods_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def _bench(self: Any, *args: Any, config: Any, budget: float, **meta: Any) -> None:
        raise AssertionError

    monkeypatch.setattr(Autotuner, "_bench", _bench)
    with pytest.warns(PatchWarning, match=r"Autotuner._bench of triton .* takes \(self, args, config, budget, meta\)"):
        assert not patch.install()
    assert Autotuner._bench is _bench


def test_the_methods_come_back() -> None:
    before = Autotuner._bench, Autotuner.prune_configs
    assert patch.install() and patch.install()
    assert (Autotuner._bench, Autotuner.prune_configs) != before
    patch.uninstall()
    assert (Autotuner._bench, Autotuner.prune_configs) == before


# Modes --------------------------------------------------------------------------------------------


def test_off_is_tritons_own(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWRIGHT_TUNING", "off")
    assert run(autotuned(kernels.doubled)) is CONFIGS[-1]
    assert world.driver.benched == 4 and not world.searched


def test_disabled_and_stored_are_the_first_configuration(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DISABLE_AUTOTUNE", "1")
    assert run(autotuned(kernels.doubled)) is CONFIGS[0]
    monkeypatch.delenv("DISABLE_AUTOTUNE")
    monkeypatch.setenv("TILEWRIGHT_TUNING", "stored")
    assert "no winner is stored for this search: doubled runs with its first" in said(
        lambda: run(autotuned(kernels.doubled))
    )
    assert not world.searched and world.driver.benched == 0
    monkeypatch.delenv("TILEWRIGHT_TUNING")
    run(autotuned(kernels.doubled))
    monkeypatch.setenv("TILEWRIGHT_TUNING", "stored")
    assert run(autotuned(kernels.doubled)) is CONFIGS[3]


def test_nothing_is_searched_while_a_graph_is_captured(world: World) -> None:
    world.capturing = True
    assert "CUDA graph is being captured" in said(lambda: run(autotuned(kernels.doubled)))
    assert not world.searched
