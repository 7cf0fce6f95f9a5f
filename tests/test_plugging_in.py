"""docs/plugging-in.md holds: each plug-in that it shows is built word for word, found, used, and passes its kit."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from tests.test_docs import BLOCK, ROOT

from tilewright import plugins
from tilewright.cli import main as cli
from tilewright.compile.compile import Unit, compile_all
from tilewright.coordinate.routing import route
from tilewright.errors import RequestError, UnknownChoice
from tilewright.executors import executor_of
from tilewright.hardware.architectures import default_board
from tilewright.languages import is_kernel, language_of
from tilewright.lint.rules import rules
from tilewright.optimize.choosing import Past, proposals
from tilewright.optimize.options import Options
from tilewright.playbook import catalogue
from tilewright.records import MachineCode
from tilewright.specialists import specialist_of
from tilewright.specialists.delegation import Delegation
from tilewright.strategies import strategy_of
from tilewright.task.loading import load_task
from tilewright.testing.entries import facts_of
from tilewright.tileir.run.launching import Launcher
from tilewright.tune.tune import tune
from tilewright.worker.messages import Greeting, Hello, PrepareInputs
from tilewright.worker.outcome import Outcome

GUIDE = (ROOT / "docs" / "plugging-in.md").read_text()
SECTIONS = dict(re.findall(r"^## (.*?)\n(.*?)(?=^## |\Z)", GUIDE, re.MULTILINE | re.DOTALL))

Build = Callable[[str], Path]


@pytest.fixture
def built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Build]:
    """Builds the plug-in of a section as an installed package: its files, and its entry point. The folder is last."""

    def build(section: str) -> Path:
        for block in BLOCK.finditer(SECTIONS[section]):
            name = block["info"].partition(" ")[2]
            if name.endswith(".py"):
                (tmp_path / name).write_text(block["text"])
            elif name == "pyproject.toml":
                (group,) = re.findall(r'\[project\.entry-points\."(.*)"\]', block["text"])
                (point,) = re.findall(r'^(\w+) = "(.*)"$', block["text"], re.MULTILINE)
                folder = tmp_path / f"{point[0]}-1.0.dist-info"
                folder.mkdir()
                (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {point[0]}\nVersion: 1.0\n")
                (folder / "entry_points.txt").write_text(f"[{group}]\n{point[0]} = {point[1]}\n")
        monkeypatch.syspath_prepend(str(tmp_path))
        return tmp_path

    before = set(sys.modules)
    yield build
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[name]


def passes(contract: Any) -> int:
    """Runs the tests of a kit as pytest would; how many there are."""
    tests = [name for name in dir(contract) if name.startswith("test_")]
    for name in tests:
        with suppress(pytest.skip.Exception):
            getattr(contract, name)()
    return len(tests)


def test_a_language_is_built_by_the_guide(built: Build, capsys: pytest.CaptureFixture[str]) -> None:
    folder = built("A language")
    task, board = load_task(str(folder / "doubled_task.py")), default_board("sm_90")
    workload = task.workload("small")
    launch = task.launched(task.space.shipped, workload.dims, task.arrays(workload.dims), board)
    assert language_of(launch.kernel).name == "ptx" and is_kernel(launch.kernel)
    units = [Unit(workload, config, board) for config in task.space.configurations(90, workload.dims)]
    compiled = compile_all(task, units)
    assert [one.code.threads for one in compiled if isinstance(one.code, MachineCode)] == [128, 256]
    read = Launcher(task, board).runnable(task.space.shipped, workload.dims, task.arrays(workload.dims))
    assert read.reason == "the interpreter needs Tile IR, which language 'ptx' does not produce"  # type: ignore[union-attr]
    assert cli.main(["inspect", str(folder / "doubled_task.py"), "--arch", "sm_90"]) == 0
    assert "BLOCK" in capsys.readouterr().out
    assert passes(import_module("test_ptx_language").TestPtx()) >= 8


def test_a_language_that_cannot_launch_says_so(built: Build) -> None:
    task = load_task(str(built("A language") / "doubled_task.py"))
    launch = task.launched(task.space.shipped, {"N": 4096}, task.arrays({"N": 4096}), default_board("sm_90"))
    with pytest.raises(Exception, match="language 'ptx' does not say how to launch a kernel"):
        language_of(launch.kernel).runner(launch, {})


def test_an_entry_is_built_by_the_guide(built: Build, tmp_path: Path) -> None:
    """The loop finds it, chooses it, and its change loads."""
    own = {entry.about.id for entry in catalogue()}
    folder = built("A playbook entry")
    (entry,) = (entry for entry in catalogue() if entry.about.id not in own)
    assert entry is catalogue()[-1] and Options(only=("opt_level",)).only == ("opt_level",)
    with pytest.raises(UnknownChoice, match="did you mean 'opt_level'. known: tile_load, .*, and 4. more$"):
        Options(only=("optlevel",))
    kit = import_module("test_opt_level_entry")
    path = folder / "scale.py"
    path.write_text(kit.SCALE)
    facts = facts_of(load_task(str(path)))
    usual: dict[str, Any] = {"history": {}, "tried": {}, "kept": 0, "lossy": False, "lowered": set(), "missed": {}}
    ranked, unable = proposals({path: kit.SCALE}, facts, catalogue(), Past(**usual))
    (proposal,) = (proposal for proposal in ranked if proposal.entry == "opt_level")
    assert not unable and proposal.values() == (2, 1)
    assert "@ct.kernel(occupancy=2, opt_level=1)" in proposal.apply(1)[path]
    assert passes(kit.TestOptLevel()) >= 10


def test_an_entry_point_that_is_no_entry_is_one_line(built: Build) -> None:
    module = built("A playbook entry") / "opt_level_entry.py"
    module.write_text("ENTRY = 3\n")
    with pytest.raises(RequestError, match=r"entry point of tilewright.playbook names a int, not a playbook entry"):
        catalogue()
    module.with_name("tile_load_again.py").write_text("from tilewright.playbook.entries.tile_load import ENTRY\n")
    points = module.parent / "opt_level-1.0.dist-info" / "entry_points.txt"
    points.write_text("[tilewright.playbook]\nagain = tile_load_again:ENTRY\n")
    plugins._installed.cache_clear()  # a process reads the entry points once
    with pytest.raises(RequestError, match="two playbook entries are called 'tile_load'"):
        catalogue()


def test_a_plug_in_that_does_not_load_is_one_line(built: Build) -> None:
    (built("A language") / "ptx_language.py").write_text("import no_such_module\n")
    with pytest.raises(RequestError, match=r"plug-in 'ptx' of tilewright.languages does not load from ptx_lang"):
        language_of(print)


def test_a_strategy_is_built_by_the_guide(built: Build) -> None:
    """It is found by its name, and tuning asks for what it says."""
    built("A search strategy")
    assert strategy_of("spread").name == "spread"
    task = load_task(str(built("A language") / "doubled_task.py"))
    result = tune(task, arch="sm_90", strategy="spread", top=1)
    assert len(result.workloads[0].candidates) == 2
    assert passes(import_module("test_spread_strategy").TestSpread()) >= 5


def test_an_executor_is_built_by_the_guide(built: Build) -> None:
    built("An executor")
    nowhere = executor_of("nowhere")()
    with nowhere as executor:
        executor.open("doubled_task.py")
        assert isinstance(executor.run(Hello()).answer, Greeting)
        assert executor.run(PrepareInputs("small", 0)) == Outcome("FAILED", reason="nothing runs here")
    assert passes(import_module("test_nowhere_executor").TestNowhere()) >= 5


def test_a_specialist_is_built_by_the_guide(built: Build, capsys: pytest.CaptureFixture[str]) -> None:
    """It is listed, and questions that name its domain are routed to it."""
    assert route("Use 2:4 sparsity for my MLP").specialists == ()
    built("A specialist")
    assert specialist_of("sparsity").needs()
    assert route("Use 2:4 sparsity for my MLP").specialists == ("sparsity",)
    assert cli.main(["specialists"]) == 0
    assert "structured sparsity of weights" in capsys.readouterr().out
    assert passes(import_module("test_sparsity_specialist").TestSparsity()) >= 5


def test_a_change_is_built_by_the_guide(built: Build, tmp_path: Path) -> None:
    """The profiling specialist proposes it."""
    built("A change of a program")
    assert passes(import_module("test_persistent_workers").TestPersistentWorkers()) >= 8
    script = tmp_path / "train.py"
    script.write_text("from torch.utils.data import DataLoader\n\nloader = DataLoader(data, num_workers=2)\n")
    delegation = Delegation("profiling", "Use persistent workers", "one epoch", ("latency",), str(script))
    (proposal,) = specialist_of("profiling").propose(delegation)  # type: ignore[misc]
    assert proposal.name == "persistent_workers"
    assert "num_workers=2, persistent_workers=True)" in proposal.texts[script]


def test_a_rule_is_built_by_the_guide(built: Build, capsys: pytest.CaptureFixture[str]) -> None:
    folder = built("A lint rule")
    rules.cache_clear()
    try:
        (folder / "ops.py").write_text("print(1)\n")
        assert cli.main(["lint", str(folder / "ops.py"), "--select", "no_print"]) == 1
        assert "this prints" in capsys.readouterr().out
        assert passes(import_module("test_no_print").TestNoPrint()) >= 5
    finally:
        rules.cache_clear()
