"""Probes the things that Tilewright uses on this machine.

`examine` returns one `Probe` for each thing that Tilewright uses. If a probe raises an error, the error is its result.
Inspecting and predicting need every ``required`` probe. If another probe fails, fewer things can be measured.
"""

from __future__ import annotations

import ctypes.util
import json
import os
import platform
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from importlib import util
from pathlib import Path

from tilewright.candidate.sandbox import unprotected
from tilewright.doctor.probe_kernel import PROBE_ARCH, compile_probe, lowered_probe
from tilewright.errors import StorageError, ToolFailed, in_one_line
from tilewright.hardware.gpu import Gpu, detect
from tilewright.hardware.machine import DRIVER, driver_version, installed_version, runs_cuda_13
from tilewright.records import Json
from tilewright.tools import child

PROBE_SECONDS = 5.0  # limit of processor time for a tool that prints its version
FREE_BYTES = 512 << 20  # of disk space; a run of some hundred configurations stores less than 100 MB
INSTALL = "pip install 'cuda-tile[tileiras]'"
WELL = "everything works here: inspect, predict and measure"
TO_MEASURE = ("GPU", "driver", "cuda-bindings", "torch")
OPTIONAL = ("tileirdisasm", "isolation", "Triton", "cuTile's cache", *TO_MEASURE, "NVML", "compute-sanitizer")
"""The probes that inspecting and predicting do not need."""


@dataclass(frozen=True)
class Probe:
    """The state of one thing that Tilewright uses, such as a compiler or the driver.

    ok: whether the thing works; None if this machine does not need the thing.
    required: whether inspecting and predicting need the thing.
    """

    name: str
    ok: bool | None
    detail: str
    fix: str = ""
    required: bool = True


_optional = partial(Probe, required=False)


def examine(environ: Mapping[str, str] = os.environ, find_gpu: Callable[[], Gpu | None] = detect) -> tuple[Probe, ...]:
    """Runs all probes. A probe runs before the probes that depend on it."""
    from tilewright.languages.cutedsl import versions as cutedsl  # loads the compilers' front ends, which takes 0.1 s
    from tilewright.languages.triton import versions as triton

    gpu = find_gpu()

    def on_gpu(name: str, probe: Callable[[Gpu], Probe]) -> tuple[str, Callable[[], Probe]]:
        return name, lambda: probe(gpu) if gpu else _optional(name, None, "not needed without a GPU")

    examinations: tuple[tuple[str, Callable[[], Probe]], ...] = (
        ("Python", python), ("cuda-tile", cuda_tile), ("tileiras", tileiras),
        ("CUDA toolkit", lambda: cuda_home(environ)), ("nvdisasm", nvdisasm),
        (f"compiling for {PROBE_ARCH}", compiling), ("tileirdisasm", tileirdisasm),
        ("results", results_store), ("cuTile's cache", cutile_cache), ("free disk", free_disk),
        ("GPU", lambda: gpu_found(gpu, environ)), on_gpu("driver", lambda gpu: driver(gpu, driver_version())),
        on_gpu("cuda-bindings", cuda_bindings), on_gpu("torch", torch),
        ("Triton", lambda: _optional("Triton", *triton.needs())),
        ("CuTe DSL", lambda: _optional("CuTe DSL", *cutedsl.needs())), on_gpu("NVML", nvml),
        on_gpu("compute-sanitizer", compute_sanitizer), ("isolation", isolation),
    )  # fmt: skip
    probes = []
    for name, probe in examinations:
        try:
            probes.append(probe())
        except ToolFailed as error:
            probes.append(_broken(name, error))
        except Exception as error:  # an error in a probe is its result
            probes.append(Probe(name, False, in_one_line(error), required=name not in OPTIONAL))
    return tuple(probes)


def _broken(name: str, error: ToolFailed, fix: str = INSTALL) -> Probe:
    """Returns the probe of a tool that does not work. ``fix``: used if the error names no fix."""
    what, _, named = str(error).partition("; fix: ")
    return Probe(name, False, what, named or fix, required=name not in OPTIONAL)


def healthy(probes: Sequence[Probe]) -> bool:
    """Returns whether inspecting and predicting work here."""
    return all(probe.ok is not False for probe in probes if probe.required)


def verdict(probes: Sequence[Probe]) -> str:
    """Returns one line about what this machine can do."""
    if not healthy(probes):
        broken = ", ".join(probe.name for probe in probes if probe.required and probe.ok is False)
        return f"not ready: {broken}"
    measures = [probe for probe in probes if probe.name in TO_MEASURE]
    missing = ", ".join(probe.name for probe in measures if probe.ok is False)
    broken = ", ".join(probe.name for probe in probes if probe.ok is False and probe not in measures)
    but = f"; {broken} does not work" if broken else ""
    if missing:
        return f"inspect and predict work here; measuring does not yet: {missing}{but}"
    if any(probe.ok is None for probe in measures):
        return f"inspect and predict work here; there is no GPU to measure on{but}"
    return f"{'inspect, predict and measure work here' if but else WELL}{but}"


def to_json(probes: Sequence[Probe]) -> dict[str, Json]:
    """Returns the value of `doctor --json`; scripts rely on these names."""
    return {
        "ok": healthy(probes),
        "measures": healthy(probes) and all(probe.ok for probe in probes if probe.name in TO_MEASURE),
        "verdict": verdict(probes),
        "checks": [asdict(probe) for probe in probes],
    }


# The compiler -------------------------------------------------------------------------------------


def python() -> Probe:
    detail = f"{platform.python_version()} ({sys.executable})"
    ok = sys.version_info >= (3, 10)
    return Probe("Python", ok, detail, "" if ok else "use Python 3.10 or newer")


def cuda_tile() -> Probe:
    version = installed_version("cuda-tile")
    if version is None:
        return Probe("cuda-tile", False, "not installed", INSTALL)
    from tilewright.languages.cutile import private as cutile_private

    if cutile_private.is_known():
        return Probe("cuda-tile", True, version)
    known = ", ".join(f"{prefix}x" for prefix in cutile_private.KNOWN)
    detail = f"{version}; its cache is known for {known} only, so a launch compiles once more"
    return _optional("cuda-tile", False, detail, f"pip install 'cuda-tile=={known[:-1]}*'")


def tileiras() -> Probe:
    from tilewright.languages.cutile.toolchain import find_tileiras

    tool = find_tileiras()
    version, source = _release(tool.version_text), "pip" if tool.from_pip else "system"
    mismatch = pip_mismatch()
    detail = f"{version} ({source}: {tool.path}){mismatch and '; ' + mismatch}"
    return Probe("tileiras", True, detail, mismatch and INSTALL)


def pip_mismatch() -> str:
    """Describes the different versions of the pip compiler's packages. Returns "" if all versions are equal."""
    from tilewright.languages.cutile.toolchain import PIP_PACKAGES, major_minor

    versions = {name: installed_version(name) for name in PIP_PACKAGES}
    releases = {text and major_minor(text) for text in versions.values()}
    if len(releases) == 1:  # all packages have one version, or none is installed
        return ""
    listed = ", ".join(f"{name} {text or 'not installed'}" for name, text in versions.items())
    return f"the pip compiler is not used, because its packages differ in major.minor: {listed}"


def cuda_home(environ: Mapping[str, str]) -> Probe:
    """Probes CUDA_HOME and CUDA_PATH. If they name a toolkit of another version, a system tileiras does not work."""
    from tilewright.languages.cutile.toolchain import find_tileiras

    named = {name: environ[name] for name in ("CUDA_HOME", "CUDA_PATH") if environ.get(name)}
    if not named:
        return Probe("CUDA toolkit", None, "CUDA_HOME and CUDA_PATH are not set; none is needed")
    tool = find_tileiras()
    versions = {name: toolkit_version(Path(place)) for name, place in named.items()}
    texts = {name: f"CUDA {v[0]}.{v[1]}" if v else "no CUDA toolkit is there" for name, v in versions.items()}
    detail = ", ".join(f"{name}={place} ({texts[name]})" for name, place in named.items())
    others = [name for name, version in versions.items() if version != tool.version]
    if not others:
        return Probe("CUDA toolkit", True, detail)
    if tool.from_pip:
        return Probe("CUDA toolkit", True, f"{detail}; harmless: the compiler from pip does not see it")
    detail += f"; the system tileiras {_release(tool.version_text)} fails with another toolkit"
    return Probe("CUDA toolkit", False, detail, f"unset {' '.join(others)}, or {INSTALL}")


def toolkit_version(home: Path) -> tuple[int, int] | None:
    """Returns major and minor version of the CUDA toolkit in ``home``; None if there is no toolkit."""
    try:
        text = str(json.loads((home / "version.json").read_text())["cuda"]["version"])
    except (OSError, ValueError, KeyError, TypeError):
        try:
            text = _version_text(home / "bin" / "nvcc")
        except ToolFailed:
            return None
    match = re.search(r"\bV?(\d+)\.(\d+)\.\d+", text)
    return (int(match[1]), int(match[2])) if match else None


def nvdisasm() -> Probe:
    from tilewright.machine_code.cubin import find_nvdisasm

    path = find_nvdisasm()
    return Probe("nvdisasm", True, f"{_release(_version_text(path))} ({path})")


def compiling() -> Probe:
    """Probes the whole compiler: compiles a small kernel and reads its machine code."""
    name, started = f"compiling for {PROBE_ARCH}", time.perf_counter()
    detail = compile_probe()
    seconds = time.perf_counter() - started
    if isinstance(detail, str):
        return Probe(name, False, detail, "unset CUDA_HOME" if "CUDA_HOME" in detail else INSTALL)
    return Probe(name, True, f"{seconds:.1f} s in all, {detail[0]} registers")


def tileirdisasm() -> Probe:
    """Probes tileirdisasm with the Tile IR of a small kernel."""
    from tilewright.languages.cutile.toolchain import find_tileiras
    from tilewright.records import Failed
    from tilewright.tileir.read.reader import disassemble, read

    path, lowered = find_tileiras().path.with_name("tileirdisasm"), lowered_probe()
    if isinstance(lowered, Failed):
        return _optional("tileirdisasm", False, lowered.reason)
    try:
        read(disassemble(lowered.code))
    except ToolFailed as error:
        probe = _broken("tileirdisasm", error, f"{INSTALL} (13.4 or newer)")
        left_out = "kernels cannot be checked without a GPU, and their work is not counted"
        return replace(probe, detail=f"{probe.detail}: {left_out}")
    return Probe("tileirdisasm", True, f"{_release(_version_text(path))} ({path})", required=False)


# Where things are kept ----------------------------------------------------------------------------


def isolation() -> Probe:
    missing = " and ".join(unprotected())
    safe = "edited code cannot write files or use the network"
    detail = f"edited code is not kept from {missing}" if missing else safe
    return _optional("isolation", not missing, detail, "use Linux 5.13 or newer" if missing else "")


def results_store() -> Probe:
    from tilewright.ledger.runs import LedgerFile, default_path

    path = default_path().absolute()
    if problem := not_writable(path.parent):
        return Probe("results", False, problem, "set TILEWRIGHT_HOME to a directory that you can write")
    notes: list[str] = []
    try:
        with LedgerFile(path, note=notes.append) as ledger:
            runs = len(ledger.runs())
    except StorageError as error:
        return Probe("results", False, str(error))
    return Probe("results", not notes, "; ".join([f"{path} ({runs} runs)", *notes]))


def cutile_cache() -> Probe:
    from tilewright.languages.cutile.private import cache_directory

    directory = cache_directory()
    if directory is None:
        return _optional("cuTile's cache", None, "switched off: launches compile again")
    if problem := not_writable(Path(directory)):
        return _optional("cuTile's cache", False, problem, "set CUDA_TILE_CACHE_DIR to a directory that you can write")
    return _optional("cuTile's cache", True, directory)


def free_disk() -> Probe:
    """Probes the disks of the compiler's temporary files and of the results."""
    from tilewright.ledger.runs import default_path

    places = {_existing(Path(tempfile.gettempdir())), _existing(default_path().absolute().parent)}
    free = {place: shutil.disk_usage(place).free for place in sorted(places)}
    detail = ", ".join(f"{place} {bytes_ / 2**30:.1f} GiB" for place, bytes_ in free.items())
    ok = min(free.values()) >= FREE_BYTES
    return Probe("free disk", ok, detail, "" if ok else f"free at least {FREE_BYTES >> 20} MiB, or set TMPDIR")


def not_writable(directory: Path) -> str | None:
    """Returns why ``directory`` cannot be written; None if it is writable. The directory need not exist yet."""
    place = _existing(directory)
    try:
        with tempfile.TemporaryFile(dir=place) as file:
            file.write(b"\0" * 4096)
    except OSError as error:
        return f"{place} cannot be written: {error.strerror}"
    return None


def _existing(directory: Path) -> Path:
    return next(place for place in (directory, *directory.parents) if place.exists())


# The GPU ------------------------------------------------------------------------------------------


def gpu_found(gpu: Gpu | None, environ: Mapping[str, str]) -> Probe:
    from tilewright.hardware.architectures import ARCHITECTURES

    if gpu is None:
        hidden = environ.get("CUDA_VISIBLE_DEVICES")
        why = f"; CUDA_VISIBLE_DEVICES={hidden}" if hidden is not None else ""
        there = "a driver, but no visible GPU" if ctypes.util.find_library("cuda") else "none, and no driver"
        return _optional("GPU", None, f"{there}{why}: times are predicted, not measured")
    detail = f"{gpu.name}, {gpu.arch}, {gpu.sms} SMs, {gpu.memory_bytes / 2**30:.0f} GiB"
    if gpu.arch in ARCHITECTURES:
        return _optional("GPU", True, detail)
    return _optional("GPU", False, f"{detail}; tileiras does not compile for it", "use a GPU of sm_80 or newer")


def driver(gpu: Gpu, version: str | None) -> Probe:
    """Probes whether the driver is r580 or newer. If ``version`` is None, uses the driver's CUDA version instead."""
    ok = runs_cuda_13(version, gpu)
    detail = f"{version or 'version unknown'}, CUDA {gpu.cuda_driver}"
    return _optional("driver", ok, detail, "" if ok else f"install driver r{DRIVER} or newer")


def cuda_bindings(gpu: Gpu) -> Probe:
    version = installed_version("cuda-bindings")
    fix = "" if version else "pip install cuda-bindings"
    return _optional("cuda-bindings", bool(version), version or "not installed: launches on the GPU need it", fix)


def torch(gpu: Gpu) -> Probe:
    """Probes torch, which most measurements need. Reads torch's files, because importing torch takes seconds."""
    version, fix = installed_version("torch"), "pip install torch"
    if version is None:
        return _optional("torch", False, "not installed: `check` on a GPU and tasks with `trusted` need it", fix)
    cuda = torch_cuda()
    if cuda is None:
        fix += ", a build with CUDA (https://pytorch.org/get-started)"
        return _optional("torch", False, f"{version} is built without CUDA", fix)
    return _optional("torch", True, f"{version}, CUDA {cuda}")


def torch_cuda() -> str | None:
    """Returns the CUDA version of the installed torch. Returns None if torch was built without CUDA."""
    spec = util.find_spec("torch")
    for place in (spec.submodule_search_locations or ()) if spec else ():
        match = re.search(r"^cuda\b.*=\s*'([^']+)'", (Path(place) / "version.py").read_text(), re.MULTILINE)
        return match[1] if match else None
    return None


def nvml(gpu: Gpu) -> Probe:
    from tilewright.hardware.gpu import Monitor

    problem = Monitor().unavailable
    if problem is None:
        return _optional("NVML", True, "clocks, throttling and other processes are recorded")
    return _optional("NVML", False, f"{problem}; throttling and other load go unnoticed", "pip install nvidia-ml-py")


def compute_sanitizer(gpu: Gpu) -> Probe:
    from tilewright.verify.sanitizer_tool import ABSENT, absent, find

    path = find()
    if path is None and absent() != ABSENT:
        raise ToolFailed(absent())
    detail = f"{_release(_version_text(path))} ({path})" if path else f"{ABSENT}: checks go without it"
    return _optional("compute-sanitizer", True if path else None, detail)


# Shared -------------------------------------------------------------------------------------------


def _release(text: str) -> str:
    match = re.search(r"\bV?(\d+\.\d+\.\d+)\b", text)
    return match[1] if match else "version unknown"


def _version_text(tool: Path) -> str:
    """Returns what ``tool --version`` prints. Raises ToolFailed if the tool does not work."""
    done = child.run([str(tool), "--version"], PROBE_SECONDS)
    if done.returncode:
        raise ToolFailed(done.complaint(tool.name))
    return done.stdout
