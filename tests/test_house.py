"""How the house is built: imports point one way, modules stay small and say what they are for."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SRC = ROOT / "src"


def _package(name: str) -> tuple[str, ...]:
    files = sorted((SRC / "tilewright" / name).rglob("*.py"))
    names = (".".join(path.relative_to(SRC / "tilewright").with_suffix("").parts) for path in files)
    return tuple(one.removesuffix(".__init__") for one in names)


PLAYBOOK = _package("playbook")
"""Entries and their analyses: one layer, whatever is added to it."""
LINT = _package("lint")
"""Rules and what they are made of: likewise."""

LAYERS: dict[str, tuple[str, ...]] = {
    "words": ("errors", "records", "progress", "packages", "strides"),
    "facts": (
        "boards", "hardware", "classify", "elf", "machine_code", "instruction_mix", "codec", "database",
        "store_tables", "optimizing.git",
    ),
    "search": (
        "search", "search.kinds", "search.knobs", "search.predicates", "search.space", "search.template_data",
        "search.templates", "search.heuristics", "search._heuristics_query",
    ),
    "task": ("rising_tables", "task", "loading"),
    "languages": (
        "languages", "languages.base", "languages.child", "languages.toolchain", "languages.cutile",
        "languages.cutile_private",
    ),
    "tile ir, read": (
        "tileir", "tileir.tree", "tileir.scanner", "tileir.syntax", "tileir.type_reader", "tileir.literals",
        "tileir.places", "tileir.operations", "tileir.regions", "tileir.disassemble", "tileir.reader",
    ),
    "tile ir, compared": (
        "tileir.canonical", "tileir.tokens", "tileir.accesses", "tileir.alignment", "tileir.comparing",
    ),
    "tile ir, run": (
        "tileir.registry", "tileir.findings", "tileir.frames", "tileir.numbers", "tileir.exact",
        "tileir.arithmetic", "tileir.integers", "tileir.conversions", "tileir.products", "tileir.printing",
        "tileir.clocks", "tileir.shadow", "tileir.allocations", "tileir.atomics", "tileir.watch",
        "tileir.memory", "tileir.counting", "tileir.context", "tileir.view_access", "tileir.views",
        "tileir.pointers", "tileir.assumptions", "tileir.tiles", "tileir.reductions", "tileir.control",
        "tileir.slicing", "tileir.waiting", "tileir.implemented", "tileir.interpreter", "tileir.touched",
        "tileir.carried", "tileir.precision",
    ),
    "race": (
        "bench", "bench.stats", "bench.rules", "bench.protocol", "bench.channel", "bench.gpu", "bench.monitor",
        "bench.rounds", "bench.session", "bench.unpaired",
    ),
    "stages": ("compile", "predict", "screen", "verify", "measuring", "store", "tileir.launching"),
    "verification": (
        "verification", "verification.images", "verification.engine", "verification.data", "verification.shapes",
        "verification.addresses", "verification.cases", "verification.gradients", "verification.judging",
        "verification.examining", "verification.minimising", "verification.planning", "verification.checking",
        "verification.report", "verification.trusted", "verification.interpreted", "verification.on_gpu",
        "verification.sanitizer_tool",
    ),
    "worker": (
        "bench.buffers", "bench.checking", "bench.clock", "bench.running", "bench.worker", "bench.once",
        "bench.trusted_worker", "bench.prepared",
    ),
    "test kits": ("testing", "testing.simulated", "testing.functions"),
    "paths": (
        "counted", "verdicts", "check_compiling", "check_watching", "checks", "inspecting", "comparing",
        "candidates", "tuning",
    ),
    "playbook": PLAYBOOK,
    "lint": LINT,
    "beside the kernels": (
        "transfer", "transfer.source_values", "transfer.configuration_source", "transfer.triton", "transfer.text",
        "latencies", "latencies.records", "latencies.runs", "latencies.comparing",
    ),
    "in the user's program": (
        "runtime", "runtime.arrays", "runtime.source", "runtime.key", "runtime.modes", "runtime.swapping",
        "runtime.stored", "runtime.stored.said_once", "runtime.stored.winners", "runtime.stored.claims",
        "runtime.stored.artefact", "runtime.stored.recording",
        "runtime.live", "runtime.live.trials", "runtime.live.scratch", "runtime.live.comparing_outputs",
        "runtime.live.device", "runtime.live.building", "runtime.live.trying", "runtime.live.racing",
        "runtime.live.searching", "runtime.live.writes", "runtime.surroundings",
        "runtime.capturing", "runtime.capturing.described", "runtime.capturing.kernel_source",
        "runtime.capturing.data", "runtime.capturing.rebuilding", "runtime.capturing.record",
        "runtime.capturing.timing", "runtime.capturing.counting", "runtime.capturing.kinds",
        "runtime.capturing.stand_in", "runtime.capturing.recorder", "runtime.capturing.capture",
        "runtime.capturing.naming", "runtime.capturing.tables", "runtime.capturing.facts",
        "runtime.capturing.dimensions", "runtime.capturing.draft", "runtime.capturing.probing",
        "runtime.capturing.reference", "runtime.capturing.task_file",
        "runtime.stored.evidence", "runtime.stored.naming", "runtime.stored.exporting", "runtime.stored.verifying",
        "runtime.patching", "runtime.patching.widening", "runtime.patching.launched_hints",
        "runtime.patching.candidate_key", "runtime.patching.exhaustive_problem",
        "runtime.patching.exhaustive_result", "runtime.patching.exhaustive", "runtime.patching.patch",
        "runtime.startup.tilewright_startup", "runtime.startup.sitecustomize",
        "runtime.wrapping", "runtime.wrapping.buckets", "runtime.wrapping.tensor_guards", "runtime.wrapping.known",
        "runtime.wrapping.signature", "runtime.wrapping.declared",
        "runtime.wrapping.background", "runtime.wrapping.choosing", "runtime.wrapping.wrapper",
    ),
    "versions": (
        "ledger", "optimizing.versions", "optimizing.repositories", "optimizing.workspace", "ledger.records",
        "ledger.tables", "ledger.rows", "ledger.ledger", "ledger.perf_results", "optimizing.decide",
        "optimizing.version_racing", "optimizing.confirming", "optimizing.escalating",
    ),
    "loop": (
        "optimizing", "optimizing.limits", "optimizing.choosing", "optimizing.handed_in",
        "optimizing.attempting", "optimizing.standing", "optimizing.what_changed", "optimizing.gate",
        "optimizing.interpreting", "optimizing.predicted_gate", "optimizing.measured_gate", "optimizing.loop",
        "optimizing.optimized", "optimizing.run",
    ),
    "public names": ("",),
    "adapters": (
        "doctor", "terminal", "tables", "comparison_tables", "count_tables", "check_tables", "reporting",
        "reporting.collected", "reporting.words", "reporting.markdown", "reporting.svg", "reporting.charts",
        "reporting.mix", "reporting.style", "reporting.page", "optimize_tables", "cli_shared", "cli_compare",
        "cli_check", "cli_optimize", "cli_report", "cli_run", "capture_tables", "cli_capture", "tuned_tables",
        "cli_tuned", "cli_lint", "cli_transfer", "cli", "__main__", "latencies.session", "pytest_plugin",
    ),
}  # fmt: skip
"""From the bottom up. A module imports from its own layer and from those above it in this table, and
nowhere in a circle. A new module is written down here; where it does not fit, the design is wrong."""

WORKER = LAYERS["worker"]
"""The process that touches the GPU: these import torch at their top, and nobody else imports them."""

USERS_PROGRAM = LAYERS["in the user's program"]
"""Runs where the user's torch is, and imports it inside functions alone."""

LINES = 420
EXAMPLE_LINES = 79
SELF_EVIDENT = 15
"""A public function of so few lines may go without a docstring."""

WITHOUT_DOCSTRING = {
    "errors.": "the tree in the module's docstring says what each means",
    "languages.base.Language": "the module's docstring describes it",
    "languages.cutile.CuTile": "implements languages.base.Language",
    "playbook.": "implements playbook.base.Entry, and its `about` says what it is",
    "lint.rules.": "implements lint.findings.Rule, and its `about` says what it is",
    "testing.simulated.": "the clocks implement bench.protocol.Clock",
    "bench.worker.Worker": "the module's docstring lists the requests; each method answers one",
    "bench.checking.Examiner": "the module's docstring describes it",
}
"""Prefixes of names, and why they need none."""


@cache
def modules() -> dict[str, Path]:
    """Name within the package → file; the package itself is ``""``."""
    found = {}
    for path in sorted((SRC / "tilewright").rglob("*.py")):
        parts = path.relative_to(SRC / "tilewright").with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


@cache
def tree(module: str) -> ast.Module:
    """The parsed source of a module."""
    return ast.parse(modules()[module].read_text())


def absolute_imports(module: str) -> Iterator[str]:
    """Dotted names that a module imports, at its top or inside a function."""
    for node in ast.walk(tree(module)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module} line {node.lineno}: relative import; write tilewright.…"
            assert node.module
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                yield whole if whole.removeprefix("tilewright.") in modules() else node.module


def own_imports(module: str) -> set[str]:
    """The modules of this package that a module imports."""
    inside = (name for name in absolute_imports(module) if name.split(".")[0] == "tilewright")
    return {name.removeprefix("tilewright").removeprefix(".") for name in inside} - {module}


def level(module: str) -> int:
    """How far up a module's layer is; what is in none is another test's failure."""
    return next((height for height, names in enumerate(LAYERS.values()) if module in names), 0)


def test_every_module_is_in_one_layer() -> None:
    listed = [name for names in LAYERS.values() for name in names]
    assert sorted(listed) == sorted(set(listed))
    assert set(listed) == set(modules()), "tests/test_house.py: LAYERS does not list the modules that exist"


def test_imports_point_down() -> None:
    wrong = [
        f"{module or 'tilewright'} imports {other or 'tilewright'}"
        for module in modules()
        for other in own_imports(module)
        if level(other) > level(module)
    ]
    assert not wrong


def test_imports_make_no_circle() -> None:
    tuple(TopologicalSorter({module: own_imports(module) for module in modules()}).static_order())


def test_only_the_worker_imports_torch() -> None:
    torch = {module for module in modules() if "torch" in {n.split(".")[0] for n in absolute_imports(module)}}
    assert torch <= {*WORKER, *USERS_PROGRAM}
    outside = set(modules()) - set(WORKER)
    assert not {module for module in outside if own_imports(module) & set(WORKER)}


def test_importing_tilewright_imports_neither_torch_nor_nvml() -> None:
    """Of every module but the worker's: so that `import tilewright` is quick, and a GPU is not needed."""
    names = ["tilewright", *(f"tilewright.{m}" for m in modules() if m and m not in WORKER and m != "__main__")]
    code = "import importlib, sys\n" + "".join(f"importlib.import_module({name!r})\n" for name in names)
    code += "print(*{'torch', 'pynvml', 'nvMatmulHeuristics'} & set(sys.modules))"
    paths = [str(SRC), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert (done.stdout.strip(), done.returncode) == ("", 0), done.stderr


@pytest.mark.parametrize("module", modules())
def test_a_module_is_small_and_says_what_it_is_for(module: str) -> None:
    assert ast.get_docstring(tree(module))
    lines = len(modules()[module].read_text().splitlines())
    assert lines <= LINES, f"{lines} lines; split it"


def public(module: str) -> Iterator[tuple[str, ast.FunctionDef | ast.ClassDef]]:
    """Public classes, functions and methods of a module, by their full names."""
    open_: list[tuple[str, ast.Module | ast.ClassDef]] = [(module, tree(module))]
    for prefix, parent in open_:
        for node in parent.body:
            if not isinstance(node, (ast.FunctionDef, ast.ClassDef)) or node.name.startswith("_"):
                continue
            yield f"{prefix}.{node.name}", node
            if isinstance(node, ast.ClassDef):
                open_.append((f"{prefix}.{node.name}", node))


def test_what_is_public_has_a_docstring() -> None:
    missing = []
    for module in modules():
        for name, node in public(module):
            lines = (node.end_lineno or 0) - node.lineno + 1
            if ast.get_docstring(node) or name.startswith(tuple(WITHOUT_DOCSTRING)):
                continue
            if lines > SELF_EVIDENT:
                missing.append(f"{name} ({lines} lines)")
    assert not missing


def test_exceptions_are_still_needed() -> None:
    names = {name: node for module in modules() for name, node in public(module)}
    for prefix in WITHOUT_DOCSTRING:
        assert any(name.startswith(prefix) and not ast.get_docstring(node) for name, node in names.items()), prefix


@pytest.mark.parametrize("example", sorted((ROOT / "examples").rglob("*.py")), ids=lambda path: path.stem)
def test_an_example_is_short(example: Path) -> None:
    assert len(example.read_text().splitlines()) <= EXAMPLE_LINES
    assert ast.get_docstring(ast.parse(example.read_text()))
