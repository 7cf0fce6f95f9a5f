"""What runs at the start of the program's Python: nothing heavy, the user's own `sitecustomize`, and the patch."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tilewright.cli import run as cli_run
from tilewright.runtime.started import STARTUP

ROOT = Path(__file__).parents[2]


def python(code: str, *, before: dict[str, str] | None = None, **more: str) -> subprocess.CompletedProcess[str]:
    """A Python as `tilewright run` starts it, with what else its user has set."""
    base = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT / "src"), **(before or {})}
    environment = {**base, **cli_run.environment(base), **more}
    return subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)


def test_a_program_without_cuda_tile_pays_for_nothing() -> None:
    shown = python(
        "import sys; print([m for m in ('numpy', 'typer', 'rich', 'libcst', 'cuda', 'tilewright', 'typing', 'inspect')"
        " if m in sys.modules])"
    )
    assert (shown.stdout.strip(), shown.stderr, shown.returncode) == ("[]", "", 0)


def test_cuda_tile_brings_the_patch_and_not_the_search() -> None:
    shown = python(
        "import sys\n"
        "from cuda.tile.tune import exhaustive_search as named\n"
        "from cuda.tile.tune import _tune\n"
        "import cuda.tile as ct\n"
        "assert named is ct.tune.exhaustive_search is _tune.exhaustive_search\n"
        "print(named.__wrapped__.__module__, named.__wrapped__ is named)\n"
        "print([m for m in ('numpy', 'typer', 'tilewright.runtime.patch.exhaustive') if m in sys.modules])\n"
        "print([f.awaited for f in sys.meta_path if type(f).__name__ == 'TilewrightWaiting'])\n"
        "print('exec_module' in vars(ct.tune.__spec__.loader))"
    )
    assert shown.stderr == ""
    assert shown.stdout.splitlines() == ["cuda.tile.tune._tune False", "[]", "['triton']", "False"]


def test_children_are_reached_too() -> None:
    """Multiprocessing workers and ranks inherit the environment; the program's own path is as without us."""
    child = "import cuda.tile as ct; print(hasattr(ct.tune.exhaustive_search, '__wrapped__'))"
    shown = python(
        f"import subprocess, sys; print(any('startup' in p for p in sys.path)); sys.stdout.flush()\n"
        f"subprocess.run([sys.executable, '-c', {child!r}], check=True)"
    )
    assert shown.stdout.split() == ["False", "True"], shown.stderr


def test_the_users_sitecustomize_runs(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import builtins\nbuiltins.theirs = __name__, __file__\n")
    shown = python(
        "import sitecustomize, tilewright_startup, sys; print(*theirs, sitecustomize.__file__)",
        before={"PYTHONPATH": os.pathsep.join((str(tmp_path), str(ROOT / "src")))},
    )
    file = str(tmp_path / "sitecustomize.py")
    assert shown.stdout.split() == ["sitecustomize", file, file], shown.stderr


def test_an_error_in_the_users_sitecustomize_is_told_as_without_us(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("raise ValueError('theirs')\n")
    path = os.pathsep.join((str(tmp_path), str(ROOT / "src")))
    shown = python("print('runs')", before={"PYTHONPATH": path})
    assert shown.stdout.split() == ["runs"]
    assert "ValueError: theirs" in shown.stderr


@pytest.mark.parametrize("value", ["banana", "2", "ja"])
def test_a_bad_value_is_one_warning(value: str) -> None:
    shown = python(
        "import cuda.tile as ct; print(hasattr(ct.tune.exhaustive_search, '__wrapped__'))", TILEWRIGHT_PATCH=value
    )
    assert shown.stdout.split() == ["False"]
    (line,) = shown.stderr.splitlines()
    assert f"TILEWRIGHT_PATCH='{value}'" in line and "unpatched" in line


@pytest.mark.parametrize("value", ["0", "off", "", "no"])
def test_off_means_off(value: str) -> None:
    shown = python(
        "import cuda.tile as ct; print(hasattr(ct.tune.exhaustive_search, '__wrapped__'))", TILEWRIGHT_PATCH=value
    )
    assert (shown.stdout.split(), shown.stderr) == (["False"], "")


def test_a_python_without_tilewright_runs_unpatched_and_says_so(tmp_path: Path) -> None:
    """The hook reaches every Python of the program, also those of other environments."""
    (tmp_path / "tilewright").mkdir()
    (tmp_path / "tilewright" / "__init__.py").write_text("raise ImportError('not here')\n")
    shown = python(
        "import cuda.tile as ct; print(hasattr(ct.tune.exhaustive_search, '__wrapped__'))",
        before={"PYTHONPATH": str(tmp_path)},
    )
    assert shown.stdout.split() == ["False"]
    (line,) = shown.stderr.splitlines()
    assert "ImportError: not here" in line and "unpatched" in line


LINE = (STARTUP / "tilewright_patch.pth").read_text().strip()


@pytest.mark.parametrize(("value", "patched"), [("1", True), ("0", False), (None, False)])
def test_the_line_of_an_installed_tilewright(value: str | None, patched: bool) -> None:
    """`tilewright_patch.pth` lies in site-packages; Python runs its line at every start."""
    assert LINE.startswith("import ") and "\n" not in LINE, "site runs only lines that begin so"
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT / "src")}
    if value is not None:
        environment["TILEWRIGHT_PATCH"] = value
    code = (
        f"import sys; {LINE}\nprint(any(m.startswith('tilewright') for m in sys.modules))\n"
        "import cuda.tile as ct; print(hasattr(ct.tune.exhaustive_search, '__wrapped__'))"
    )
    shown = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert shown.stdout.split() == [str(patched)] * 2, shown.stderr


def test_both_ways_at_once_patch_once() -> None:
    shown = python(
        f"import sys; {LINE}\nprint(*[f.awaited for f in sys.meta_path if type(f).__name__ == 'TilewrightWaiting'])\n"
        "import cuda.tile as ct; print(hasattr(ct.tune.exhaustive_search.__wrapped__, '__wrapped__'))"
    )
    assert (shown.stdout.split(), shown.stderr) == (["triton", "cuda.tile.tune", "False"], "")


def test_the_installed_line_leaves_it_to_tilewright_run() -> None:
    """Both hooks in one interpreter would warn twice, and import Tilewright at every start."""
    shown = python(f"import sys; {LINE}\nprint([m for m in sys.modules if m.startswith('tilewright.')])")
    assert (shown.stdout.strip(), shown.stderr) == ("[]", "")


AUTOTUNED = """
import sys, triton, triton.language as tl, torch
from triton.runtime.autotuner import Autotuner

@triton.autotune(configs=[triton.Config({"BLOCK": block}) for block in (32, 64)], key=["n"])
@triton.jit
def doubled(x, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x + at, tl.load(x + at, mask=at < n) * 2, mask=at < n)

print(hasattr(Autotuner._bench, "__wrapped__"), hasattr(Autotuner.run, "__wrapped__"))
print([m for m in sys.modules if m.startswith(("tilewright.languages", "tilewright.runtime.search", "cuda.tile"))])
for _ in range(2):
    try:
        doubled[(4,)](torch.zeros(100), 100)
    except RuntimeError as error:
        print(error)
"""


def test_triton_brings_the_patch_and_not_the_search(tmp_path: Path) -> None:
    """Without a GPU, one line says that Triton's own search runs, and its error is the program's."""
    pytest.importorskip("triton")
    if pytest.importorskip("torch").cuda.is_available():
        pytest.skip("launches on the CPU's tensors")
    (tmp_path / "program.py").write_text(AUTOTUNED)
    shown = python(f"import runpy; runpy.run_path({str(tmp_path / 'program.py')!r}, run_name='__main__')", HOME="/tmp")
    patched, imported, *errors = shown.stdout.splitlines()
    assert (patched, imported) == ("True False", "[]"), shown.stderr
    assert len(errors) == 2 and all("0 active drivers" in error for error in errors)
    (line,) = [line for line in shown.stderr.splitlines() if "tilewright:" in line]
    assert "cannot search here (there is no GPU 0" in line and line.endswith("Triton's own search does")
