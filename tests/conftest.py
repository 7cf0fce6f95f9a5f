"""What every test has: a store of its own, and no deadline. And bytecode, which hundreds of child processes share."""

from __future__ import annotations

import compileall
import gc
import hashlib
import importlib
import itertools
import os
import pickle
import random
import secrets
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from _pytest.assertion import rewrite
from hypothesis import HealthCheck, settings

# Two busy cores make any deadline flaky. In CI the same examples every time, and half as many.
settings.register_profile("here", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("ci", settings.get_profile("here"), derandomize=True, max_examples=50)
settings.load_profile("ci" if os.environ.get("CI") else "here")

# Two workers on two cores: threads of BLAS and OpenMP would only spin. Set before NumPy is loaded, for children too.
for threads in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(threads, "1")

SRC = Path(__file__).parents[1] / "src"
sys.dont_write_bytecode = False  # pytest compiles the tests themselves once, too


def pytest_configure(config: pytest.Config) -> None:
    """Where bytecode is switched off (as in many containers), each child process would compile the package anew."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in a job in the background, whose children inherit it
        signal.signal(signal.SIGINT, signal.default_int_handler)
    for name in ("FORCE_COLOR", "PY_COLORS", "GITHUB_ACTIONS"):  # typer would colour what is no terminal
        os.environ.pop(name, None)
    gc.set_threshold(100_000, 20, 50)  # importing the tests and what they test frees nothing
    if not hasattr(config, "workerinput"):
        compileall.compile_dir(str(SRC), quiet=2)


@pytest.hookimpl(tryfirst=True)
def pytest_collection(session: pytest.Session) -> None:
    """Of a new checkout, each worker rewrites the asserts of its share of the tests. Each would rewrite all of them,
    which is half of what it takes to collect them."""
    config = session.config
    if (worker := getattr(config, "workerinput", None)) is None:
        return
    asked = [Path(argument.partition("::")[0]) for argument in config.args]
    files = sorted(file for path in asked for file in (path.rglob("test_*.py") if path.is_dir() else [path]))
    for file in files[int(worker["workerid"].removeprefix("gw")) :: worker["workercount"]]:
        made = rewrite.get_cache_dir(file) / f"{file.stem}{rewrite.PYC_TAIL}"
        if not made.exists() and rewrite.try_makedirs(made.parent):
            digest, code = rewrite._rewrite_test(file, config)
            rewrite._write_pyc(config.stash[rewrite.assertstate_key], code, digest, made)


def pytest_collection_finish() -> None:
    """The files that tests write and change within a second keep no bytecode: Python could not tell it is stale.

    The garbage collector leaves the tests themselves alone, and runs less often: it took 15 % of the time.
    """
    sys.dont_write_bytecode = True
    gc.collect()
    gc.freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Each test draws the same numbers, whichever tests ran before it in its process. torch begins with any."""
    random.seed(0)
    np.random.seed(0)
    if torch := sys.modules.get("torch"):
        torch.default_generator.manual_seed(0)


def pytest_unconfigure() -> None:
    gc.unfreeze()  # otherwise libraries report at the end that objects are left


@pytest.fixture(scope="session")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A new path for each test without a folder of its own. Most tests never write there."""
    folder = tmp_path_factory.mktemp("stores")
    return (folder / f"store-{number}" for number in itertools.count())


@pytest.fixture(autouse=True)
def _store_of_its_own(request: pytest.FixtureRequest, stores: Iterator[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """No test writes into the store of the person who runs it, nor sees the width of a terminal, which xdist sets. What
    another test was warned of, it is warned of again."""
    own = "tmp_path" in request.fixturenames
    home = request.getfixturevalue("tmp_path") / "tilewright-home" if own else next(stores)
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.setenv("TILEWRIGHT_HOME", str(home))
    monkeypatch.setenv("TILEWRIGHT_TUNED", str(home.with_name(f"{home.name}-tuned")))
    if once := sys.modules.get("tilewright.runtime.store.warn_once"):
        monkeypatch.setattr(once, "_warned", set())


TESTS_OF_STARTS = ("gpu", "worker")
"""Folders whose tests ask what a start imports, or need all of torch. For other programs that tests start, what torch
imports is not the point."""
STARTUP = Path(__file__).parent / "startup"


@pytest.fixture(autouse=True, scope="module")
def _programs_start_sooner(request: pytest.FixtureRequest) -> Iterator[None]:
    """Programs with torch that the tests start import less: tests/startup/sitecustomize.py says what. For the fixtures
    of modules, too."""
    with pytest.MonkeyPatch.context() as patch:
        if request.path.relative_to(Path(__file__).parent).parts[0] not in TESTS_OF_STARTS:
            patch.setenv("PYTHONPATH", str(STARTUP), prepend=os.pathsep)
        yield


@pytest.fixture
def failing_case_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """A check of an incorrect kernel does not look for a smaller failing case, which takes most of its time."""
    monkeypatch.setattr("tilewright.verify.schedule.TRIES", 0)


@pytest.fixture(autouse=True)
def _same_data(monkeypatch: pytest.MonkeyPatch) -> None:
    """Checks draw the seed of their data where no candidate can foresee it; here it is the same in each session."""
    drawn = random.Random(0)
    monkeypatch.setattr(secrets, "randbits", drawn.getrandbits)
    monkeypatch.setattr(secrets, "randbelow", drawn.randrange)


@pytest.fixture(scope="session")
def tilegym() -> None:
    """TileGym without its Triton kernels, which ask torch for a GPU as soon as they are imported."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "triton", None)
        importlib.import_module("tilegym.ops")


TESTS_OF_THE_TOOLS = ("compile", "languages", "machine_code", "tools")
"""Folders of the tests that look at the compiler and the disassembler themselves: there each call is a real one."""
_DISASSEMBLED: dict[str, Sequence[Any]] = {}


@pytest.fixture(scope="session")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the compiler made of which bytecode, for all workers of this session."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "compiled"
    folder.mkdir(exist_ok=True)
    return folder


@pytest.fixture(autouse=True)
def _compiles_once(request: pytest.FixtureRequest, compiled: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Equal bytecode is compiled once a session, equal machine code disassembled once (a start of nvdisasm takes 0.4 s
    of processor time): by the real tools, whose files are then copied. Other processes, other compilers and what fails
    are left alone."""
    if request.path.relative_to(Path(__file__).parent).parts[0] in TESTS_OF_THE_TOOLS:
        return
    from tilewright.machine_code import cubin
    from tilewright.tools import child

    run, disassembled = child.run, cubin._disassembled

    def run_once(command: Sequence[str], seconds: float, *rest: Any, **options: Any) -> child.Finished:
        paths = [word.rpartition("=")[2] for word in command if word.endswith((".tileirbc", ".cubin", ".yaml"))]
        if len(paths) != 3 or "nvidia" not in Path(command[0]).parts:
            return run(command, seconds, *rest, **options)
        source, *made = map(Path, paths)
        words = [word for word in command if not word.endswith(tuple(paths))]
        kept = compiled / hashlib.sha256(source.read_bytes() + repr(words).encode()).hexdigest()
        if not kept.exists():
            done = run(command, seconds, *rest, **options)
            if done.returncode or not all(file.exists() for file in made):
                return done
            new = Path(tempfile.mkdtemp(dir=compiled))  # another thread may compile the same
            for file in made:
                shutil.copy(file, new / file.name)
            with suppress(OSError):  # another was quicker
                new.rename(kept)
            return done
        for file in made:
            shutil.copy(kept / file.name, file)
        return child.Finished(0, "", "")

    def disassembled_once(sm: int, codes: Sequence[bytes]) -> list[Any]:
        keys = [hashlib.sha256(f"{cubin.find_nvdisasm()} {sm}".encode() + code).hexdigest() for code in codes]
        for key in keys:
            with suppress(OSError):
                if key not in _DISASSEMBLED:
                    _DISASSEMBLED[key] = pickle.loads((compiled / key).read_bytes())
        new = {key: code for key, code in zip(keys, codes, strict=True) if key not in _DISASSEMBLED}
        read = dict(zip(new, disassembled(sm, list(new.values())) if new else (), strict=True))
        for key, listing in read.items():
            if not isinstance(listing, Exception):
                _DISASSEMBLED[key] = listing
                handle, written = tempfile.mkstemp(dir=compiled)  # another worker may read the same
                os.write(handle, pickle.dumps(listing))
                os.close(handle)
                Path(written).rename(compiled / key)
        return [read[key] if key in read else _DISASSEMBLED[key] for key in keys]

    monkeypatch.setattr(child, "run", run_once)
    monkeypatch.setattr(cubin, "_disassembled", disassembled_once)
