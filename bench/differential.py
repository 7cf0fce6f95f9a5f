"""The interpreter against the GPU: each case of `differential_cases`, from the same bytes.

    python bench/differential.py [--out FILE.json] [--only PART] [--interpreter-only]

Every case is within its class (`differential_classes`), or the exit code is 1. Bytes around the tensors
are compared too. With ``--interpreter-only``, which needs no GPU: the interpreter against NumPy, where a case has
an oracle, and else whether it runs.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from differential_cases import CASES, Case
from differential_classes import Array, Difference, difference

from tilewright.languages.cutile.cutile import CuTile
from tilewright.records import Built, Configuration, Failed
from tilewright.task.task import Launch
from tilewright.task.tensors import ArraySpec
from tilewright.tileir.read.reader import read_bytecode
from tilewright.tileir.run.interpreter import run
from tilewright.tileir.run.memory import Memory
from tilewright.verify.images import Image, image_of

GUARD = 0xA5
COMPILER_SECONDS = 60.0
Images = Mapping[str, Image]


@dataclass(frozen=True)
class Row:
    """One case's outcome. ``reason``: why there is none."""

    case: Case
    difference: Difference | None = None
    findings: tuple[str, ...] = ()
    reason: str = ""

    @property
    def inside(self) -> bool:
        return not self.reason and not self.findings and (self.difference is None or self.difference.inside)

    def to_json(self) -> dict[str, Any]:
        found = self.difference
        return {
            "case": self.case.name,
            "class": self.case.within.kind,
            "inside": self.inside,
            "error_in_bounds": found and (found.units if np.isfinite(found.units) else "differs"),
            "equal_bits": found and found.equal,
            "worst": found.worst if found else "",
            "findings": list(self.findings),
            "reason": self.reason,
        }


# Inputs and launches --------------------------------------------------------------------------------------


def images_of(case: Case) -> dict[str, Image]:
    """The memory of all tensors of a case, the same whenever it is asked for."""
    images = {}
    for name, values in case.tensors.items():
        spec = ArraySpec(name, values.shape, values.dtype.name)
        images[name] = image_of(spec, case.layouts.get(name, "row-major"), GUARD)
        images[name].array[...] = values
    return images


def launch_of(case: Case, tensors: Mapping[str, Any]) -> Launch:
    return Launch(
        case.kernel, case.grid, tuple(tensors[one] if isinstance(one, str) else one for one in case.arguments)
    )


def lowered(case: Case, arch: str) -> Any:
    specs = {name: image.spec for name, image in images_of(case).items()}
    return CuTile().lower(launch_of(case, specs), {}, Configuration.of({}), arch)


def interpreted(case: Case) -> tuple[dict[str, Array], tuple[str, ...], Images]:
    """What the interpreter computes, and what its sanitizer finds."""
    images, language = images_of(case), CuTile()
    low = lowered(case, "sm_90")
    if isinstance(low, Failed):
        raise RuntimeError(f"{low.stage}: {low.reason}")
    memory = Memory()
    addresses = {
        name: memory.allocate(name, image.array, within=image.raw, written=True).address
        for name, image in images.items()
    }
    arguments = language.arguments(launch_of(case, {name: image.spec for name, image in images.items()}))
    bound = [addresses[one.name] if isinstance(one, ArraySpec) else one for one in arguments]
    done = run(read_bytecode(low.code), bound, case.grid, memory)
    findings = tuple(f"{one.kind}: {one.message}" for one in done.findings)
    return {name: images[name].array for name in case.outputs}, findings, images


# The GPU --------------------------------------------------------------------------------------------------


def compiled_ahead(cases: Sequence[Case], arch: str) -> None:
    """Compiles in parallel and puts the cubins where the launches look for them; what fails fails there again."""
    language = CuTile()
    units = [one for one in (lowered(case, arch) for case in cases) if not isinstance(one, Failed)]
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        built = pool.map(lambda one: language.assemble(one, COMPILER_SECONDS), units)
        language.remember([one for one in built if isinstance(one, Built)])


def on_gpu(case: Case) -> tuple[dict[str, Array], Images]:
    import cuda.tile as ct
    import torch

    images, tensors, memory = images_of(case), {}, {}
    for name, image in images.items():
        memory[name] = torch.from_numpy(image.raw.copy()).cuda()
        typed = memory[name][image.offset :].view(getattr(torch, image.dtype))
        tensors[name] = typed.as_strided(image.shape, image.strides, typed.storage_offset())
    launch = launch_of(case, tensors)
    ct.launch(torch.cuda.current_stream(), launch.grid, launch.kernel, launch.args)
    torch.cuda.synchronize()
    for name, image in images.items():
        image.raw[:] = memory[name].cpu().numpy()
    return {name: images[name].array for name in case.outputs}, images


# Comparing ------------------------------------------------------------------------------------------------


def compared(case: Case, got: Mapping[str, Array], expected: Mapping[str, Array]) -> Difference:
    """The worst of a case's outputs."""
    inputs = case.tensors
    found = [
        difference(case.within, name, got[name], expected[name], inputs) for name in case.outputs if name in expected
    ]
    worst = max(found, key=lambda one: one.units)
    return replace(worst, equal=float(np.mean([one.equal for one in found])))


def against_gpu(case: Case) -> Row:
    try:
        expected, findings, _ = interpreted(case)
        got, images = on_gpu(case)
        row = Row(case, compared(case, got, expected), findings)
    except Exception as error:  # one case that fails must not cost the others
        return Row(case, reason=f"{type(error).__name__}: {str(error)[:300]}")
    broken = [name for name, image in images.items() if image.damaged() is not None]
    return replace(row, reason=f"the GPU wrote outside {', '.join(broken)}") if broken else row


def against_numpy(case: Case) -> Row:
    """Without a GPU: the interpreter's results in place of the GPU's, the oracle's in place of the interpreter's."""
    try:
        got, findings, images = interpreted(case)
        oracle = {} if case.oracle is None else case.oracle(case.tensors)
        expected = {
            name: np.asarray(values).astype(got[name].dtype, copy=False).reshape(got[name].shape)
            for name, values in oracle.items()
        }
        row = Row(case, compared(case, got, expected) if expected else None, findings)
    except Exception as error:  # one case that fails must not cost the others
        return Row(case, reason=f"{type(error).__name__}: {str(error)[:300]}")
    broken = [name for name, image in images.items() if image.damaged() is not None]
    return replace(row, reason=f"wrote outside {', '.join(broken)}") if broken else row


def table(rows: Iterable[Row]) -> str:
    lines = [f"{'case':44} {'class':9} {'error/bound':>11} {'equal bits':>10}"]
    for row in rows:
        found = row.difference
        numbers = (
            f"{found.units:11.3g} {100 * found.equal:9.2f}%"
            if found
            else f"{'-' if row.reason else 'ran':>11} {'':>10}"
        )
        said = "" if row.inside else "  OUTSIDE " + "; ".join((row.reason, *row.findings[:2]))
        worst = f" {found.worst}" if found and not found.inside else ""
        lines.append(f"{row.case.name:44} {row.case.within.kind:9} {numbers}{said}{worst}")
    return "\n".join(lines)


def chosen(part: str) -> list[Case]:
    return [case for case in CASES if part in case.name]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out")
    parser.add_argument("--only", default="", help="cases whose name contains this")
    parser.add_argument("--interpreter-only", action="store_true")
    given = parser.parse_args()
    cases, started = chosen(given.only), time.perf_counter()
    if given.interpreter_only:
        rows = [against_numpy(case) for case in cases]
    else:
        from common import made_here, need_gpu, write

        compiled_ahead(cases, need_gpu().arch)
        rows = [against_gpu(case) for case in cases]
        write(given.out, {**made_here(), "cases": [row.to_json() for row in rows]})
    outside = [row for row in rows if not row.inside]
    print(table(rows))
    print(f"{len(rows)} cases, {len(outside)} outside their class, {time.perf_counter() - started:.0f} s", flush=True)
    return 1 if outside else 0


if __name__ == "__main__":
    sys.exit(main())
