"""Which script a command starts, and what a person is told if there is none."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tilewright.errors import RequestError
from tilewright.program.command import ProgramCommand


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A folder without git: a script, a package with a module and a `__main__`, and what is no Python program."""
    (tmp_path / "package").mkdir()
    for name in ("train.py", "package/__init__.py", "package/__main__.py", "package/train.py"):
        (tmp_path / name).write_text("")
    (tmp_path / "start").write_text("#!/usr/bin/env python3\n")
    (tmp_path / "start.sh").write_text("#!/bin/sh\npython train.py\n")
    (tmp_path / "look.ipynb").write_text("{}")
    (tmp_path / "src" / "inner").mkdir(parents=True)
    (tmp_path / "src" / "inner" / "run.py").write_text("")
    return tmp_path


@pytest.mark.parametrize(
    ("line", "script"),
    [
        ("python train.py --steps 20", "train.py"),
        ("python3.11 -u -X utf8 -W ignore train.py", "train.py"),
        ("train.py", "train.py"),
        ("./train.py --steps 2", "train.py"),
        ("start", "start"),
        ("SIZE=3 python train.py", "train.py"),
        ("env SIZE=3 python train.py", "train.py"),
        ("uv run train.py", "train.py"),
        ("uv run python -m package", "package/__main__.py"),
        ("python package", "package/__main__.py"),
        ("python -m package.train", "package/train.py"),
        ("python -mpackage.train", "package/train.py"),
        ("python -m inner.run", "src/inner/run.py"),
        ("torchrun --standalone --nproc_per_node 2 train.py --lr 1", "train.py"),
        ("torchrun -m package.train", "package/train.py"),
        ("python -m torch.distributed.run --nproc_per_node=2 package/train.py", "package/train.py"),
        ("numactl -N 0 python -u train.py", "train.py"),
    ],
)
def test_the_script_of_a_command(tree: Path, line: str, script: str) -> None:
    command = ProgramCommand.of(line, tree)
    assert command.script == tree / script
    assert command.root == tree
    assert command.script in command.python_files()


def test_words_are_taken_as_they_are(tree: Path) -> None:
    (tree / "my train.py").write_text("")
    command = ProgramCommand.of([sys.executable, "my train.py", "--name", "a b"], tree)
    assert command.words == (sys.executable, "my train.py", "--name", "a b")
    assert command.script == tree / "my train.py"


def test_a_bare_script_gets_an_interpreter(tree: Path) -> None:
    words = ProgramCommand.of("train.py --steps 3", tree).words
    assert words[1:] == ("train.py", "--steps", "3")
    assert subprocess.run([words[0], "-c", "print(1)"], capture_output=True, text=True).stdout == "1\n"
    assert ProgramCommand.of("uv run train.py", tree).words == ("uv", "run", "python", "train.py")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("", "the command is empty"),
        ("python trian.py", "no file trian.py in .*; did you mean 'train.py'. known: train.py"),
        ("trian.py", "no file trian.py"),
        ("python", "python has no script"),
        ("python -c 'print(1)'", "python -c has no file to change"),
        ("python -I train.py", "python -I ignores PYTHONPATH"),
        ("python -m nowhere.train", "no such module in"),
        ("python src", "src is a folder; name the script to run"),
        (".", "is a folder; name the script to run: train.py"),
        ("start.sh", "start.sh is not a Python program; give the python command that it runs"),
        ("ls -l", "ls is not a Python program"),
        ("python look.ipynb", "is a notebook"),
        ("python train.py | tee log", r"'\|' is for a shell"),
        ("python 'train.py", "the command cannot be read"),
        ("torchrun --standalone", "torchrun names no Python script"),
    ],
)
def test_what_is_no_program_is_one_line(tree: Path, line: str, said: str) -> None:
    with pytest.raises(RequestError, match=said) as caught:
        ProgramCommand.of(line, tree)
    assert "\n" not in str(caught.value)


def test_the_root_is_the_checkout(tree: Path) -> None:
    git = ["git", "-C", str(tree)]
    subprocess.run([*git, "init", "-q"], check=True)
    (tree / ".gitignore").write_text("scratch/\nbuilt.py\n")
    (tree / "built.py").write_text("")
    (tree / "scratch").mkdir()
    (tree / "scratch" / "own.py").write_text("")
    command = ProgramCommand.of("python train.py", tree / "package")
    assert (command.script, command.root) == (tree / "package" / "train.py", tree)
    names = {path.relative_to(tree).as_posix() for path in command.python_files()}
    assert {"train.py", "package/train.py", "src/inner/run.py"} <= names
    assert not {"built.py", "scratch/own.py"} & names
    ignored = ProgramCommand.of("python own.py", tree / "scratch")
    assert ignored.root == tree / "scratch"
    assert ignored.python_files() == (tree / "scratch" / "own.py",)
