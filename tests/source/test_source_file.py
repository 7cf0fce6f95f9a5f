"""The reader of Python source: imports, scopes, bindings, and what the text does not settle."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from textwrap import dedent

import pytest

import tilewright
from tilewright.errors import RequestError
from tilewright.source.cutile import kernels, launches, searches
from tilewright.source.source_file import SourceFile, source_of_object

SRC = Path(tilewright.__file__).parent
PARSERS = re.compile(r"\b(ast\.parse|parse_module|inspect\.getsource(lines)?)\(")
OTHERS = {
    "cli/example.py": "the first line of a shipped example",
    "optimize/proposing/gate.py": "a statement without its names",
    "optimize/proposing/regions.py": "the statements of two versions of a file",
    "playbook/analyses/deviations.py": "an expression in Python's own form, for comparing",
    "playbook/analyses/edited_files.py": "which statements the kernel needs",
    "playbook/analyses/index_bounds.py": "arithmetic that it writes itself, for comparing",
    "playbook/analyses/iterations.py": "the statements that set a loop's bounds, which are evaluated",
    "playbook/analyses/short_lines.py": "whether shorter lines mean the same",
    "playbook/entries/prefetch.py": "statements that it writes itself, in branches",
    "playbook/entries/scan.py": "what the launch passes for an extent, which is evaluated",
    "program/findings/loops.py": "where the loops of a program are, whose operations were recorded",
    "program/reading/module.py": "whether two expressions mean the same",
    "program/reading/slices.py": "whether the text of a slice reads a name",
    "runtime/store/config_file.py": "a config file that is written as Python",
    "space/predicates.py": "the text of a lambda; below source in the layers",
    "specialists/hot/dispatch.py": "whether what is inserted is Python, and how it begins",
    "specialists/hot/inserting.py": "where the imports of a file end",
    "specialists/hot/kernel.py": "the names of a file",
    "specialists/hot/reference.py": "a copy of a function with other names",
    "specialists/writing/answering.py": "which functions a file of references has",
    "specialists/writing/cutedsl_product.py": "the imports of a shipped pattern",
    "specialists/writing/reading.py": "a reference over arrays",
    "specialists/writing/shipped.py": "the space of a file that was written here",
    "playbook/analyses/elementwise.py": "whether a kernel is element-wise, in the language of its source",
    "playbook/analyses/fusing.py": "one kernel of the sources of two",
    "specialists/writing/writing.py": "what a reference needs of its file",
    "testing/changes.py": "whether a change is Python",
    "testing/entries.py": "whether a change is Python",
    "tools/packages.py": "the relative imports of a file, before it is loaded",
}
"""Modules outside of source/ that parse Python, and what for: none of them looks for kernels or configurations."""


def test_kernels_and_configurations_are_read_in_one_place() -> None:
    parsing = {str(path.relative_to(SRC)) for path in SRC.rglob("*.py") if PARSERS.search(path.read_text())}
    assert parsing == {*OTHERS, "source/needed.py", "source/parsed.py", "source/source_file.py", "source/syntax.py",
                       "source/values.py"}  # fmt: skip


def file(source: str) -> SourceFile:
    return SourceFile(Path("file.py"), dedent(source))


def value(source: str) -> str:
    """What the argument of ``use(…)`` stands for."""
    read = file(source)
    (call,) = (call for call in read.every(ast.Call) if ast.unparse(call.func) == "use")
    meant = read.value(call.args[0])
    return ast.unparse(meant) if meant is not None else "?"


@pytest.mark.parametrize(
    ("source", "meant"),
    [
        ("a = 1\nuse(a)", "1"),
        ("a = b = 1\nuse(b)", "1"),
        ("a, b = 1, 2\nuse(b)", "2"),
        ("a = 1\ndef f():\n    use(a)", "1"),
        ("a = 1\ndef f():\n    a = 2\n    use(a)", "2"),
        ("a = 1\nb = a\nuse(b)", "1"),
        ("if (a := 3):\n    use(a)", "3"),
        ("use(1 + 1)", "1 + 1"),
        ("a = 1\na = 2\nuse(a)", "?"),
        ("def f(a):\n    use(a)", "?"),
        ("a, b = g()\nuse(b)", "?"),
        ("for a in g():\n    use(a)", "?"),
        ("use(a)", "?"),
        ("a = b\nb = a\nuse(a)", "?"),
    ],
)
def test_a_name_stands_for_what_the_text_settles(source: str, meant: str) -> None:
    assert value(source) == meant


def test_names_are_resolved_through_imports() -> None:
    read = file("import cuda.tile as ct\nfrom cuda.tile import load as fetch\nfrom .near import a\nimport os.path\n")
    assert read.imports == {"ct": "cuda.tile", "fetch": "cuda.tile.load", "a": ".near.a", "os": "os"}
    assert read.dotted(ast.parse("ct.tune.search", mode="eval").body) == "cuda.tile.tune.search"
    assert read.dotted(ast.parse("f().x", mode="eval").body) == ""


def test_what_a_function_imports_is_not_imported_with_the_file() -> None:
    read = file("import cuda.tile as ct\nfrom .near import a\ndef trusted():\n    import torch\n")
    assert read.packages_at_top == {"cuda"} and "torch" in read.packages


def test_decorators_and_defaults_run_outside_of_their_function() -> None:
    read = file("def outer():\n    @mark(1)\n    def inner(x=default()):\n        body()\n")
    owners = {ast.unparse(call.func): getattr(read.owner(call), "name", "") for call in read.every(ast.Call)}
    assert owners == {"mark": "outer", "default": "outer", "body": "inner"}


def test_kernels_launches_and_searches_are_found_under_any_name() -> None:
    read = file("""
        from cuda.tile import kernel as k, launch
        import cuda.tile.tune as t

        @k(occupancy=2)
        def one(x): ...

        def two(x): ...

        made = k(two, num_ctas=1)
        launch(stream, (1,), one, (x,))
        t.exhaustive_search(space, stream, kernel=made, *more)
    """)
    assert [(kernel.name, list(kernel.hints)) for kernel in kernels(read)] == [
        ("one", ["occupancy"]),
        ("two", ["num_ctas"]),
    ]
    assert [ast.unparse(launch.kernel) for launch in launches(read) if launch.kernel is not None] == ["one"]
    (search,) = searches(read)
    assert search.kernel is not None and ast.unparse(search.kernel) == "made"
    assert search.grid_fn is None


def test_a_loaded_function_has_the_lines_of_its_file() -> None:
    read = source_of_object(value.__code__)
    assert read is not None
    assert read.functions[0].lineno == value.__code__.co_firstlineno
    scope: dict[str, object] = {}
    exec("def typed(): ...", scope)
    assert source_of_object(scope["typed"].__code__) is None  # type: ignore[attr-defined]


def test_a_file_that_cannot_be_read_is_a_wrong_request(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("x = (\n")
    for path, said in ((tmp_path / "none.py", "cannot read"), (tmp_path / "broken.py", "broken.py:1: ")):
        with pytest.raises(RequestError, match=said):
            SourceFile.requested(path)
