"""How many kernels of two Triton libraries run through Tile IR: translated, compiled, right on the interpreter.

    python bench/triton_corpus.py FOLDER [--set-aside] [--only PART] [--no-compile] [--out FILE.json]

FOLDER holds the unpacked wheels of liger-kernel 0.8.5 and fla-core 0.6.0 (`pip download --no-deps`), and einops. The
libraries run as they are, on the CPU; each of their launches is translated and interpreted. A kernel is right if all
operations that launched it give what torch computes in float64, and the sanitizer finds nothing. The files in
``tests/languages/tileir_from_triton/set_aside.txt`` were chosen by name before any file was read; nothing was changed
for them.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
import sys
import time
import types
import warnings
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import date
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from tilewright.languages.base import Lowered
from tilewright.languages.cutile.cutile import CuTile
from tilewright.records import Built, Configuration

ARCHITECTURES = ("sm_80", "sm_90", "sm_100", "sm_120")
SET_ASIDE = Path(__file__).parents[1] / "tests" / "languages" / "tileir_from_triton" / "set_aside.txt"
SECONDS = 120.0
PATTERNS = ("liger_kernel/ops/*.py", "liger_kernel/ops/experimental/*.py", "fla/modules/activations/ops.py",
            "fla/modules/norm/*.py")  # fmt: skip


@dataclass(frozen=True)
class Tally:
    """Counts of a part of the corpus."""

    kernels: int
    launched: int
    translated: int
    compiled: int
    right: int

    @property
    def share(self) -> float:
        return self.right / self.kernels if self.kernels else 0.0


def launched_kernels(path: Path) -> list[str]:
    """The `@triton.jit` functions of a file that host code launches: here, or by another file's import."""
    text = path.read_text()
    jitted = [
        node.name
        for node in ast.parse(text).body
        if isinstance(node, ast.FunctionDef) and any("triton.jit" in ast.unparse(one) for one in node.decorator_list)
    ]
    every = "".join(one.read_text() for one in path.parent.rglob("*.py"))
    return [name for name in jitted if re.search(rf"\b{name}\[", every)]


def without_a_gpu() -> None:
    """What the libraries ask of a device."""
    properties = types.SimpleNamespace(multi_processor_count=4, name="none", major=9, minor=0)
    torch.cuda.get_device_properties = lambda *a: properties
    torch.cuda.get_device_capability = lambda *a: (9, 0)
    torch.Tensor.is_cuda = property(lambda self: True)


def compared(case: Any, got: Any, expected: Any) -> float:
    """The largest error of all outputs, in units of what is allowed."""
    pairs = [(got, expected)] if isinstance(got, torch.Tensor) else list(zip(got, expected, strict=False))
    worst = 0.0
    for mine, right in pairs:
        error = (mine.detach().double() - right.detach()).abs().max() / right.detach().abs().max().clamp_min(1e-6)
        worst = max(worst, float(error) if torch.isfinite(error) else float("inf"))
    return worst / case.tolerance


def run_case(case: Any) -> float:
    """Runs an operation and its gradient, and the same in float64."""
    torch.manual_seed(0)
    inputs = [x.detach() for x in case.inputs()]
    leaf = [case.gradients and x.is_floating_point() and at not in case.without for at, x in enumerate(inputs)]
    mine = [x.clone().requires_grad_(needs) for x, needs in zip(inputs, leaf, strict=True)]
    wide = [
        (x.double() if x.is_floating_point() else x).clone().requires_grad_(n)
        for x, n in zip(inputs, leaf, strict=True)
    ]
    got, expected = case.op(case.module(), *mine), case.reference(*wide)
    got = got if isinstance(got, torch.Tensor) else tuple(got)
    worst = compared(case, got, expected)
    if case.gradients:
        outs = [expected] if isinstance(expected, torch.Tensor) else list(expected)
        seeds = [torch.randn(one.shape) for one in outs]  # a library may overwrite what it gets
        torch.autograd.backward(
            [got] if isinstance(got, torch.Tensor) else list(got)[: len(outs)], [s.clone() for s in seeds]
        )
        torch.autograd.backward(outs, [one.double() for one in seeds])
        mine_g, wide_g = ([x.grad for x, n in zip(xs, leaf, strict=True) if n] for xs in (mine, wide))
        worst = max(worst, compared(case, mine_g, wide_g))
    return worst


def run_all(cases: list[Any], launches: Any) -> list[str]:
    """Runs the cases. Returns a line for each that is not right."""
    from triton_corpus_launches import NotRun

    said = []
    for case in cases:
        launches.current, began, reason = [], time.perf_counter(), ""
        try:
            with launches.installed():
                worst = run_case(case)
            reason = "" if worst <= 1 else f"error {worst:.3g} of what is allowed"
        except NotRun as error:
            reason = str(error)
        except Exception as error:  # the library's own, or torch's
            reason = f"{type(error).__name__}: {str(error)[:200]}"
        for row in launches.current:
            row.right = row.right is not False and not reason and not row.findings
            row.reason = row.reason or reason or "; ".join(row.findings[:1])
        print(f"{case.file:50} {time.perf_counter() - began:6.1f} s  {reason or 'right'}", flush=True)
        if reason:
            said.append(f"{case.file}: {reason}")
    return said


def compile_rows(rows: list[Any]) -> None:
    """Compiles the first variant of each kernel for all architectures, two at a time."""

    def one(work: tuple[Any, str]) -> None:
        row, arch = work
        code = row.codes[0]
        done = CuTile().assemble(Lowered(Configuration.of({}), arch, code.symbol, code.code), SECONDS)
        if isinstance(done, Built):
            row.compiled.append(arch)
        else:
            row.reason = row.reason or f"{arch}: {done.reason}"

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(one, [(row, arch) for row in rows if row.codes for arch in ARCHITECTURES]))


def tally(names: list[tuple[str, str]], rows: dict[tuple[str, str], Any]) -> Tally:
    found = [rows[name] for name in names if name in rows]
    full = [row for row in found if len(row.compiled) == len(ARCHITECTURES)]
    return Tally(
        len(names), len(found), sum(row.translated for row in found), len(full), sum(row.right is True for row in full)
    )


def main() -> None:
    warnings.simplefilter("ignore")
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--set-aside", action="store_true", help="run the files that were set aside, not the others")
    parser.add_argument("--only", default="", metavar="PART", help="files with this in their name")
    parser.add_argument("--no-compile", action="store_true")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    root = options.folder.resolve()
    sys.path.insert(0, str(root))
    without_a_gpu()
    from triton_corpus_cases import CASES
    from triton_corpus_launches import Launches

    cases = CASES
    if options.set_aside:
        from triton_corpus_set_aside import CASES as cases
    aside = set(SET_ASIDE.read_text().split())
    files = sorted(str(p.relative_to(root)) for pattern in PATTERNS for p in root.glob(pattern))
    files = [file for file in files if (file in aside) == options.set_aside and options.only in file]
    names = [(file, name) for file in files for name in launched_kernels(root / file)]
    launches = Launches(root)
    wrong = run_all([case for case in cases if options.only in case.file], launches)
    if not options.no_compile:
        compile_rows([row for key, row in launches.rows.items() if key in names])
    result = tally(names, launches.rows)
    print(result, f"{result.share:.0%} end to end")
    refused = Counter(row.operation or "launch" for row in launches.rows.values() if not row.translated)
    print("refused:", dict(refused))
    for name in names:
        row = launches.rows.get(name)
        if row is None or not row.right or (row.compiled and len(row.compiled) < len(ARCHITECTURES)):
            print(f"  {name[0]} {name[1]}: {'never launched' if row is None else row.reason}")
    if options.out:
        options.out.write_text(
            json.dumps(record(options, result, names, launches.rows, refused, wrong), indent=1) + "\n"
        )


def record(options: Any, result: Tally, names: Any, rows: Any, refused: Counter, wrong: list[str]) -> dict[str, Any]:
    """What is committed under bench/recorded/."""
    versions = {name: metadata.version(name) for name in ("triton", "cuda-tile", "nvidia-cuda-tileiras", "torch")}
    kernels = []
    for name in names:
        row = rows.get(name)
        kernels.append({
            "file": name[0], "kernel": name[1], "launched": row is not None, "translated": bool(row and row.translated),
            "compiled": sorted(row.compiled) if row else [], "right": bool(row and row.right),
            "reason": row.reason.replace(str(options.folder), "") if row else "no case launches it",
        })  # fmt: skip
    return {
        "date": str(date.today()), "command": "python " + " ".join(sys.argv), "versions": versions,
        "part": "set aside" if options.set_aside else "seen", **vars(result), "share": round(result.share, 3),
        "refused": dict(refused), "operations_not_right": wrong, "rows": kernels,
    }  # fmt: skip


if __name__ == "__main__":
    main()
