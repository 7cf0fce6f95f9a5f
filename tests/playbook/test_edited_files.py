"""One source for the kernel of a library and its launch: what the kernel does not need is hidden, and comes back."""

from __future__ import annotations

from pathlib import Path

import pytest

from tilewright.playbook.analyses.edited_files import EditedFiles, edited_files
from tilewright.playbook.base import NotApplicable

KERNELS = '''\
import cuda.tile as ct


def half(tile):
    return tile / 2


@ct.kernel
def other(x, y):
    """Another kernel, which shares a function."""
    ct.store(y, (0,), half(ct.load(x, (0,), (16,))))


@ct.kernel(occupancy=2)
def unused(x):
    pass  # the last line


class Function:
    """A class."""

    @staticmethod
    def forward(x):
        return launch(x)


@ct.kernel
def halved(x, y):
    ct.store(y, (0,), half(ct.load(x, (0,), (16,))))
'''
LAUNCH = "def launched(x, y):\n    return tw.Launch(module.halved, (1,), (x, y))\n\n\ntask = tw.Task(launch=launched)\n"
PATHS = Path("kernels.py"), Path("task.py")


@pytest.fixture
def files() -> EditedFiles:
    [files] = edited_files(dict(zip(PATHS, (KERNELS, LAUNCH), strict=True)))
    assert files.paths == PATHS
    return files


@pytest.mark.parametrize("use", ["half(1)", "half", "[half]"])
def test_code_that_names_a_shared_function_is_not_hidden(use: str) -> None:
    """It may call the function in its own way, also without a call in the text."""
    kernels = KERNELS.replace("        return launch(x)", f"        return {use}")
    [files] = edited_files(dict(zip(PATHS, (kernels, LAUNCH), strict=True)))
    assert "class Function:\n" in files.source.text and f"return {use}" in files.source.text


def test_what_the_kernel_does_not_need_is_hidden(files: EditedFiles) -> None:
    """Functions that share a function with the kernel stay: a change of that function concerns them, too."""
    text = files.source.text
    assert "pass" not in text and "forward" not in text
    assert set(files.source.kernels) == {"halved", "other"}
    line = KERNELS.splitlines().index("def halved(x, y):") + 1
    assert files.source.place(files.source.kernels["halved"].name)[0] == line, "lines keep their numbers"


def test_hidden_code_comes_back(files: EditedFiles) -> None:
    changed = files.source.text.replace("return tile / 2", "return tile * 0.5")
    parts = files.parted(changed)
    assert parts == {PATHS[0]: KERNELS.replace("tile / 2", "tile * 0.5"), PATHS[1]: LAUNCH}


def test_a_change_of_hidden_code_is_refused(files: EditedFiles) -> None:
    with pytest.raises(NotApplicable, match="code that the kernel does not use"):
        files.parted(files.source.text.replace("def unused", "def used"))


def test_a_hidden_function_may_have_the_name_of_one_of_the_task() -> None:
    kernels = KERNELS + "\n\ndef launched(x, y): ct.launch(0, (1,), halved, (x, y))\n"
    [files] = edited_files(dict(zip(PATHS, (kernels, LAUNCH), strict=True)))
    assert files.source.text.count("def launched(") == 1
    assert files.parted(files.source.text) == dict(zip(PATHS, (kernels, LAUNCH), strict=True))


def test_a_function_that_the_kernel_needs_may_not() -> None:
    kernels = KERNELS.replace("half(", "launched(")
    assert [files.paths for files in edited_files(dict(zip(PATHS, (kernels, LAUNCH), strict=True)))] == [
        (path,) for path in PATHS
    ]
