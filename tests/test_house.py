"""How the house is built: imports point one way, modules stay small and say what they are for."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).parent.parent
SRC = ROOT / "src"


LAYERS = """
    errors printable records progress
    tools plugins
    hardware space
    task source
    machine_code
    languages
    tileir.read
    compile
    tileir.watch
    tileir.run
    tileir.analysis
    race profile
    ledger
    worker
    remote
    executors strategies
    candidate
    worker.client
    verify
    launching
    worker.process
    inspect
    tune
    playbook
    lint transfer
    runtime
    optimize
    program
    specialists
    coordinate
    report latencies testing doctor
    mcp
    cli
    __main__
"""
"""Folders, from the bottom up. A module imports from its own folder and from those in the lines above."""

WORKER = "worker.process"
"""The process that touches the GPU: its modules import torch at their top, and nobody else imports them."""
SERVER = "mcp"
"""Its modules `server` and `tools` import the package mcp of an extra, which takes a second; nobody else imports it."""
USERS_PROGRAM = "runtime"
"""Runs where the user's torch is, and imports it inside functions alone."""
AT_THE_TOP = {"", "__main__", "errors", "printable", "records", "progress"}

LINES = 420
EXAMPLE_LINES = 79
SELF_EVIDENT = 15
"""A public function of so few lines may go without a docstring."""

WITHOUT_DOCSTRING = {
    "errors.": "the tree in the module's docstring says what each means",
    "languages.cutile.cutile.CuTile": "implements languages.base.Language",
    "languages.triton.triton.Triton": "implements languages.base.Language",
    "languages.cutedsl.cutedsl.CuteDsl": "implements languages.base.Language",
    "playbook.entries.": "implements playbook.base.Entry, and its `about` says what it is",
    "playbook.analyses.row_tiles.RowTiles": "a libcst transformer; the module's docstring describes it",
    "lint.rules.": "implements lint.rule.Rule; the class's docstring is its text",
    "program.changes.": "implements program.changes.base.ProgramChange, and its `about` says what it is",
    "program.findings.rules.": "implements program.findings.base.FindingRule, and its `about` says what it finds",
    "specialists.": "implements specialists.base.Specialist, and its `domain` says what it is",
    "testing.simulated.": "the clocks implement race.protocol.Clock",
    "worker.process.worker.Worker": "each method answers one step, which worker.messages describes",
    "worker.process.examiner.DeviceExaminer": "the module's docstring describes it",
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


@cache
def nodes(module: str) -> tuple[ast.AST, ...]:
    return tuple(ast.walk(tree(module)))


@cache
def absolute_imports(module: str) -> tuple[str, ...]:
    """Dotted names that a module imports, at its top or inside a function."""
    return tuple(_imports(module))


def _imports(module: str) -> Iterator[str]:
    for node in nodes(module):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module} line {node.lineno}: relative import; write tilewright.…"
            assert node.module
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                yield whole if whole.removeprefix("tilewright.") in modules() else node.module


@cache
def own_imports(module: str) -> frozenset[str]:
    """The modules of this package that a module imports."""
    inside = (name for name in absolute_imports(module) if name.split(".")[0] == "tilewright")
    return frozenset(name.removeprefix("tilewright").removeprefix(".") for name in inside) - {module}


@cache
def room(module: str) -> str:
    """The folder of ``LAYERS`` that a module is in; ``""`` for the package's own `__init__`."""
    rooms = LAYERS.split()
    while module and module not in rooms:
        module = module.rpartition(".")[0]
    return module


@cache
def level(module: str) -> int:
    """How far down in ``LAYERS``."""
    return next(at for at, line in enumerate(LAYERS.strip().splitlines()) if room(module) in line.split())


def test_the_top_of_the_package_is_its_folders() -> None:
    assert {path.stem for path in (SRC / "tilewright").glob("*.py")} == AT_THE_TOP - {""} | {"__init__"}


def test_imports_point_down() -> None:
    wrong = [
        f"{module} imports {other}"
        for module in modules()
        if room(module)
        for other in own_imports(module) - {""}
        if room(other) != room(module) and level(other) >= level(module)
    ]
    assert not wrong


def test_imports_make_no_circle() -> None:
    tuple(TopologicalSorter({module: own_imports(module) for module in modules()}).static_order())


def test_only_the_worker_imports_torch() -> None:
    torch = {module for module in modules() if "torch" in {n.split(".")[0] for n in absolute_imports(module)}}
    assert {room(module) for module in torch} <= {WORKER, USERS_PROGRAM}
    assert not [m for m in modules() if room(m) != WORKER and WORKER in map(room, own_imports(m))]


def test_only_the_server_imports_the_package_mcp() -> None:
    packages = {module: {name.split(".")[0] for name in absolute_imports(module)} for module in modules()}
    sdk = {module for module, names in packages.items() if names & {"mcp", "anyio", "uvicorn", "pydantic"}}
    assert sdk == {"mcp.server", "mcp.tools"}
    assert {module for module in modules() for name in own_imports(module) if name in sdk} <= {"cli.mcp", *sdk}


def test_importing_tilewright_imports_neither_torch_nor_nvml() -> None:
    """Of every module but the worker's: so that `import tilewright` is quick, and a GPU is not needed."""
    alone = (WORKER, SERVER, "__main__")
    names = ["tilewright", *(f"tilewright.{m}" for m in modules() if m and room(m) not in alone)]
    code = "import importlib, sys\n" + "".join(f"importlib.import_module({name!r})\n" for name in names)
    code += "print(*{'torch', 'pynvml', 'nvMatmulHeuristics'} & set(sys.modules))"
    paths = [str(SRC), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert (done.stdout.strip(), done.returncode) == ("", 0), done.stderr


def test_modules_are_small_and_say_what_they_are_for() -> None:
    assert not [module for module in modules() if not ast.get_docstring(tree(module))]
    lengths = {module: len(path.read_text().splitlines()) for module, path in modules().items()}
    assert not {module: lines for module, lines in lengths.items() if lines > LINES}, "split them"


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


def test_an_example_is_short() -> None:
    for example in (ROOT / "examples").rglob("*.py"):
        assert len(example.read_text().splitlines()) <= EXAMPLE_LINES, example
        assert ast.get_docstring(ast.parse(example.read_text())), example


@cache
def defined(module: str) -> set[str]:
    """The names at the top of a module, and the modules of a folder."""
    names = {name.removeprefix(f"{module}.") for name in modules() if name.startswith(f"{module}.")}
    for node in nodes(module):
        if isinstance(node, (ast.ClassDef, ast.FunctionDef)):
            names.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            names |= {alias.asname or alias.name for alias in node.names}
    return names


def test_what_benches_and_gpu_tests_import_exists() -> None:
    """They run on other machines, where a name that is gone costs an hour."""
    missing = []
    for file in (*(ROOT / "bench").rglob("*.py"), *(ROOT / "tests" / "gpu").glob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("tilewright."):
                module = str(node.module).removeprefix("tilewright.")
                known = defined(module) if module in modules() else set()
                missing += [f"{file.name}: {module}.{alias.name}" for alias in node.names if alias.name not in known]
    assert not missing


CODES = re.compile(
    r"\b[PACX]-\d{2}\b|\bK\d{1,2}\b|\bW\d{1,2}\b|\bF-\d+\b|\bT[1-9] to T\d\b|\btrust(\.md)? \d+|measured\.md"
    r"|(cutile|tilegym|languages|coordination)-facts|\brequirements [A-Z]-|requirements\.md"
)
"""Ids of rules and names of documents that no user has."""


def test_words_and_not_codes() -> None:
    files = [*(SRC / "tilewright").rglob("*.py"), *(ROOT / "docs").glob("*.md"), *ROOT.glob("*.md")]
    assert not [
        f"{file.relative_to(ROOT)}:{number}: {line.strip()}"
        for file in files
        for number, line in enumerate(file.read_text().splitlines(), 1)
        if CODES.search(line)
    ]


def test_a_class_name_has_one_meaning() -> None:
    named: dict[str, list[str]] = {}
    for module in modules():
        for node in nodes(module):
            if isinstance(node, ast.ClassDef):
                named.setdefault(node.name, []).append(module)
    assert not {name: where for name, where in named.items() if len(where) > 1}
