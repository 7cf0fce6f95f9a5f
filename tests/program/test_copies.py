"""A program runs in a copy: all of its code is the copy's, and the user's tree stays as it is."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import venv
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tilewright.errors import RequestError
from tilewright.program import copies
from tilewright.program.command import ProgramCommand
from tilewright.program.copies import ProgramCopy, program_copy

SHOWS = """
import json, pathlib, sys
import beside, package.inner, installed
pathlib.Path("written.txt").write_text("new")
pathlib.Path("out/log.txt").write_text("changed")
print(json.dumps({
    "file": __file__, "path": sys.path[0], "cwd": str(pathlib.Path.cwd()), "argv": sys.argv[1:],
    "beside": beside.VALUE, "inner": package.inner.VALUE, "installed": [installed.VALUE, installed.__file__],
    "data": pathlib.Path("data/numbers.txt").read_text(),
}))
"""


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A checkout whose package ``installed`` is found through a search path of its own, as if installed editable."""
    root = tmp_path / "project"
    for name, text in {
        "train.py": SHOWS,
        "beside.py": "VALUE = 1\n",
        "package/__init__.py": "",
        "package/inner.py": "VALUE = 1\n",
        "package/main.py": SHOWS,
        "src/installed/__init__.py": "VALUE = 1\n",
        "data/numbers.txt": "1 2 3",
        "out/log.txt": "theirs",
        ".gitignore": ".venv/\n",
        ".venv/pyvenv.cfg": "",
        ".venv/lib.py": "",
    }.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    subprocess.run(["git", "-C", str(root), "init", "-q"], check=True)
    return root


def contents(root: Path) -> dict[str, bytes]:
    return {str(p.relative_to(root)): p.read_bytes() for p in root.rglob("*") if p.is_file() and ".git/" not in str(p)}


def started(copy: ProgramCopy) -> dict[str, Any]:
    done = subprocess.run(copy.words, cwd=copy.cwd, env=copy.environment(), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    shown: dict[str, Any] = json.loads(done.stdout)
    return shown


def changed(root: Path, *names: str) -> Mapping[Path, str]:
    return {root / name: "VALUE = 2\n" for name in names}


@pytest.mark.parametrize("editable", ["path", "finder"])
@pytest.mark.parametrize("how", ["train.py", "-m package.main"])
def test_all_code_of_the_tree_is_the_copys(
    tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, editable: str, how: str
) -> None:
    """The environment has the package installed editable, and Tilewright not at all."""
    monkeypatch.delenv("PYTHONPATH", raising=False)
    venv.create(tmp_path / "venv", symlinks=True)
    (site,) = (tmp_path / "venv" / "lib").glob("*/site-packages")
    place = str(tree / "src")
    (site / "editable_finder.py").write_text(
        "import sys\nfrom importlib.machinery import PathFinder\nclass Finder:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        f"        return PathFinder.find_spec(name, [{place!r}]) if name == 'installed' else None\n"
        "sys.meta_path.append(Finder())\n"
    )
    (site / "editable.pth").write_text(place if editable == "path" else "import editable_finder\n")
    before = contents(tree)
    command = ProgramCommand.of(f"{tmp_path}/venv/bin/python {how} --data {tree}/data --to=out", tree)
    texts = changed(tree, "beside.py", "package/inner.py", "src/installed/__init__.py")
    with program_copy(command, texts) as copy:
        shown = started(copy)
        assert (shown["beside"], shown["inner"], shown["installed"][0]) == (2, 2, 2), shown
        assert shown["file"] == str(copy.script)
        assert shown["installed"][1] == str(copy.root / "src/installed/__init__.py")
        assert shown["path"] == str(copy.root)
        assert shown["cwd"] == str(copy.root)
        assert shown["argv"] == ["--data", str(copy.root / "data"), "--to=out"]
        assert shown["data"] == "1 2 3"
        assert (copy.root / ".venv").is_symlink()
        assert not (copy.root / ".git").exists()
        folder = copy.root
    assert contents(tree) == before
    assert not folder.exists()


def test_a_program_that_starts_outside_of_its_tree(tree: Path, tmp_path: Path) -> None:
    command = ProgramCommand.of([sys.executable, "project/package/inner.py", "project/data", "elsewhere"], tmp_path)
    with program_copy(command, {}) as copy:
        assert copy.cwd == tmp_path
        assert copy.words[1:] == (str(copy.root / "package/inner.py"), str(copy.root / "data"), "elsewhere")


def test_large_files_and_folders_are_links_unless_they_have_code(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copies, "MANY", 3)
    monkeypatch.setattr(copies, "COPIED_BYTES", 5)
    for n in range(5):
        (tree / "data" / f"{n}.bin").write_bytes(b"1")
        (tree / "package" / f"{n}.txt").write_text("more than five")
    (tree / "current").symlink_to("data")
    new = tree / "data" / "made" / "new.py"
    with program_copy(ProgramCommand.of("train.py", tree), {}) as copy:
        assert (copy.root / "data").is_symlink()
        assert (copy.root / "package" / "1.txt").is_symlink()
        assert not (copy.root / "package").is_symlink()
        assert not (copy.root / "package" / "inner.py").is_symlink()
        assert os.readlink(copy.root / "current") == "data"
    with program_copy(ProgramCommand.of("train.py", tree), {new: "x = 1\n"}) as copy:
        assert (copy.root / "data" / "made" / "new.py").read_text() == "x = 1\n"
    assert not new.exists()


def test_a_link_becomes_a_file_before_it_is_written(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copies, "COPIED_BYTES", 2)
    for name in ("a", "b", "c"):
        (tree / name).write_text("theirs")
    (tree / "train.py").write_text(
        "import pathlib\nassert open('a').read() == 'theirs'\nopen('a', 'w').write('new')\n"
        "open('b', mode='a').write('+')\nf = pathlib.Path('c').open('r+'); f.write('T'); f.close()\n"
        "print({name: open(name).read() for name in 'abc'})"
    )
    with program_copy(ProgramCommand.of("train.py", tree), {}) as copy:
        assert (copy.root / "a").is_symlink()
        done = subprocess.run(copy.words, cwd=copy.cwd, env=copy.environment(), capture_output=True, text=True)
        assert done.stdout == "{'a': 'new', 'b': 'theirs+', 'c': 'Theirs'}\n", done.stderr
    assert {(tree / name).read_text() for name in "abc"} == {"theirs"}


def test_the_mode_of_a_changed_file_stays(tree: Path) -> None:
    (tree / "train.py").chmod(0o755)
    with program_copy(ProgramCommand.of("train.py", tree), {tree / "train.py": "print(1)\r\n"}) as copy:
        assert (copy.script.stat().st_mode & 0o777, copy.script.read_bytes()) == (0o755, b"print(1)\r\n")


def test_a_file_outside_of_the_tree_is_refused(tree: Path, tmp_path: Path) -> None:
    command = ProgramCommand.of("train.py", tree)
    with pytest.raises(RequestError, match="is not a file of the program"), program_copy(command, {tmp_path / "a": ""}):
        pass


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_killed_process_leaves_no_copy(tree: Path, tmp_path: Path, number: int) -> None:
    code = (
        "import os, pathlib, sys\nfrom tilewright.program.command import ProgramCommand\n"
        "from tilewright.program.copies import program_copy\n"
        f"with program_copy(ProgramCommand.of('train.py', pathlib.Path({str(tree)!r})), {{}}) as copy:\n"
        f"    print(copy.root, flush=True); os.kill(os.getpid(), {int(number)})\n"
        "    input()\n"
    )
    source = Path(copies.__file__).parents[2]
    environment = {**os.environ, "PYTHONPATH": str(source), "TMPDIR": str(tmp_path)}
    process = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert process.returncode == -number, process.stderr
    root = Path(process.stdout.strip())
    while root.parent.exists():  # the keeper removes it; the test's limit ends a wait in vain
        os.sched_yield()
    assert (tree / "train.py").read_text() == SHOWS
