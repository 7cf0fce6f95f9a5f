"""The part of a program that a kernel needs."""

from __future__ import annotations

from pathlib import Path

import pytest

from tilewright.errors import RequestError
from tilewright.source.needed import is_quiet, loaded_part, needed, source_of_needed
from tilewright.source.source_file import SourceFile
from tilewright.tools.packages import package_of

PROGRAM = '''"""A program."""
from __future__ import annotations
import sys
import cuda.tile as ct

SIZE = 2
x = y = launch(1)

if SIZE > 1:
    EXTRA = 3


def helper(v):
    return v * SIZE


@ct.kernel
# with a comment
def kernel(x, y):
    value = helper(x)
    ct.store(y, (0,), value + EXTRA)


kernel(1)
if __name__ == "__main__":
    kernel(2)
'''


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    return path


def test_what_the_kernel_names_and_what_that_names(file: Path) -> None:
    text = source_of_needed(file, "kernel")
    assert "__future__" not in text, "such an import must begin a file"
    for part in ("import cuda.tile as ct", "SIZE = 2", "EXTRA = 3", "def helper", "@ct.kernel"):
        assert part in text
    compile(text, "copy", "exec")


def test_a_function_inside_another_stands_after_the_variables_that_it_uses(file: Path) -> None:
    inner = "def make(n):\n    @ct.kernel\n    def inner(x):\n        return helper(x) * n\n    return inner\n\n\n"
    file.write_text(PROGRAM.replace("kernel(1)\n", inner))
    text = source_of_needed(file, "make.<locals>.inner", {"n": "n = 5"})
    assert text.index("def helper") < text.index("n = 5") < text.index("@ct.kernel\ndef inner")
    assert "def make" not in text and "def kernel" not in text
    compile(text, "copy", "exec")


def test_nothing_that_does_work(file: Path) -> None:
    """Parameters are not the module's names, and calls at the top level are not definitions."""
    text = source_of_needed(file, "kernel")
    for part in ("launch(1)", "kernel(1)", "kernel(2)", "import sys"):
        assert part not in text


def test_lines_stay(file: Path) -> None:
    assert [one.lineno for one in needed(SourceFile.requested(file), "kernel")] == [2, 4, 6, 9, 13, 19]


def test_whether_loading_only_defines(file: Path) -> None:
    assert not is_quiet(file)
    file.write_text(PROGRAM.replace("\nkernel(1)", "").replace("if SIZE > 1:\n    EXTRA = 3\n", ""))
    assert is_quiet(file)


def test_a_name_that_is_not_there(file: Path) -> None:
    with pytest.raises(RequestError, match="does not define 'other'"):
        needed(SourceFile.requested(file), "other")


@pytest.mark.parametrize("initialised", [True, False], ids=["package", "folder"])
def test_relative_imports_of_a_program_that_is_in_a_package(tmp_path: Path, initialised: bool) -> None:
    """As of ``python -m package_of_needed_1.inner.train``: loading a part of it does not run it as ``__main__``."""
    top = f"package_of_needed_{initialised:d}"
    folder = tmp_path / top / "inner"
    folder.mkdir(parents=True)
    for name in ("__init__.py", "inner/__init__.py") if initialised else ():
        (tmp_path / top / name).touch()
    (folder.parent / "sizes.py").write_text("SIZE = 3\n")
    (folder / "train.py").write_text(
        "from ..sizes import SIZE as size\nfrom .. import sizes\ndef kernel(): return size + sizes.SIZE\n1 / 0\n"
    )
    assert loaded_part(folder / "train.py", "kernel", "__main__").kernel() == 6
    text = source_of_needed(folder / "train.py", "kernel")
    assert text.startswith(f"from {top}.sizes import SIZE as size\nfrom {top} import sizes\n")


def test_a_relative_import_that_goes_above_all_folders_is_of_no_package() -> None:
    for file in ("/train.py", "/work/train.py"):
        assert package_of(Path(file), "from ...sizes import SIZE\n") is None
