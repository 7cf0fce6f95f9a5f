"""The PTX route: Triton's own compiler makes a cubin from TTIR, in a long-lived process.

The cubins are byte-equal to the cubins of `triton.compile`. `triton_key`, the hash of Triton's 500 MB for its own
cache, is never computed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from functools import cache, lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tilewright.hardware.architectures import WARP, architecture
from tilewright.languages.base import DescriptorParameter, Lowered
from tilewright.languages.resident_compiler import compiled_files, unexplained
from tilewright.languages.triton import child as child_process
from tilewright.languages.triton.front_end import Parameter, Ttir
from tilewright.languages.triton.waits import WaitsInPtx
from tilewright.records import Built, Configuration, Failed, LaunchFacts, TensorMapLayout
from tilewright.task.tensors import Descriptor
from tilewright.tools import child
from tilewright.tools.resident import Resident

FIX = "pip install 'tilewright[triton]'"
COMPILER = "triton's compiler"
"""The name of the process in messages."""
TYPES = {
    "i1": "bool", "u1": "bool", "fp16": "float16", "bf16": "bfloat16", "fp32": "float32", "f32": "float32",
    "fp64": "float64", **{f"i{bits}": f"int{bits}" for bits in (8, 16, 32, 64)},
    **{f"u{bits}": f"uint{bits}" for bits in (8, 16, 32, 64)},
}  # fmt: skip
"""Maps the type of a scalar parameter in Triton to its dtype."""


TENSOR_MAP_ELEMENTS = {8: 10, 9: 8, 10: 9}
"""Maps the code of an element type in Triton's metadata to its code in CUtensorMapDataType. Only types whose codes
differ are listed (TMA_DTYPE_DEVICE_TO_HOST in triton/backends/nvidia/driver.py)."""


def lowered(ttir: Ttir, config: Configuration, arch: str) -> Lowered | Failed:
    """Returns the compiler's input: TTIR with source locations. TTIR with other locations is compiled again."""
    options = tuple((name, json.dumps(value)) for name, value in ttir.options)
    for each in ttir.parameters:
        if not (isinstance(each.argument, Descriptor) or each.type.startswith("*") or each.type in TYPES):
            return Failed(
                "front end", f"parameter '{each.name}' is a {each.type}, which triton cannot pass to a kernel"
            )
    kinds = tuple(map(_kind, ttir.parameters))
    return Lowered(config, arch, ttir.symbol, ttir.text.encode(), options, kinds)


def _kind(parameter: Parameter) -> str | DescriptorParameter:
    descriptor = parameter.argument
    if isinstance(descriptor, Descriptor):
        from tilewright.languages.triton.private import DESCRIPTOR_ROUNDS

        flags = (descriptor.padding == "nan", False) if DESCRIPTOR_ROUNDS else (descriptor.padding == "nan",)
        return DescriptorParameter(descriptor.base.ndim, flags)
    return "pointer" if parameter.type.startswith("*") else TYPES[parameter.type]


def assembled(given: Lowered, seconds: float, keep: bool = False) -> Built | Failed:
    """Compiles within ``seconds`` of processor time. Returns a crash, a hang or an error as a `Failed` with one line.

    keep: whether `Built.files` gets the TTIR, the output of every stage, and Triton's metadata as ``json``.
    """
    options = {name: json.loads(str(value)) for name, value in given.options}
    job = {"arch": architecture(given.arch).number, "options": options, "keep": keep}
    made = compiled_files(_process(), "ttir", given.code, job, seconds, _failure)
    if isinstance(made, Failed):
        return made
    built = built_of(given, made.files, made.seconds)
    return built if keep else replace(built, files={})


def built_of(given: Lowered, files: Mapping[str, bytes], seconds: float) -> Built:
    """Returns the cubin and its facts. ``files``: `Built.files`, with at least ``cubin`` and ``json``."""
    metadata = json.loads(files["json"])
    facts = launch_facts(metadata)
    return Built(given.configuration, given.arch, files["cubin"], metadata["name"], seconds, facts=facts, files=files)


@lru_cache(maxsize=16)
def waits_of(given: Lowered, seconds: float) -> WaitsInPtx | Failed:
    """Compiles TTIR, and reads from the PTX where the threads of a block wait for each other."""
    made = assembled(given, seconds, keep=True)
    return made if isinstance(made, Failed) else WaitsInPtx(made.files["ptx"].decode(), made.facts.cluster != 1)


def launch_facts(metadata: dict[str, Any]) -> LaunchFacts:
    """Returns the launch facts in Triton's metadata. Warp specialisation changes ``num_warps``."""
    return LaunchFacts(
        threads=WARP * metadata["num_warps"],
        cluster=metadata["num_ctas"],
        shared_bytes=metadata["shared"],
        tensor_columns=metadata.get("tmem_size") or 0,
        scratch=tuple((metadata[f"{kind}_scratch_size"] or 0, metadata[f"{kind}_scratch_align"] or 1)
                      for kind in ("global", "profile")),
        tensor_maps=tuple(map(_tensor_map, metadata.get("tensordesc_meta") or ())),
        cooperative=bool(metadata["launch_cooperative_grid"]),
        overlaps=bool(metadata["launch_pdl"]),
    )  # fmt: skip


def _tensor_map(layout: dict[str, Any]) -> TensorMapLayout:
    element = layout["elem_type"]
    return TensorMapLayout(
        tuple(layout["block_size"]), layout["swizzle"], TENSOR_MAP_ELEMENTS.get(element, element), layout["elem_size"],
        layout["fp4_padded"],
    )  # fmt: skip


_DIAGNOSTIC = re.compile(r'^(?:loc\()?"?(?P<file>[^":\s]+)"?:(?P<line>\d+):\d+\)?:\s*error:\s*(?P<text>.*)')


def _failure(folder: Path, done: child.Finished) -> Failed:
    """Returns the failure of a compilation, with a reason in one line.

    The reason is the error and place from Triton's passes, the error of ptxas, or the way in which the process ended.
    """
    for match in filter(None, map(_DIAGNOSTIC.match, done.stderr.splitlines())):
        return Failed("compile", f"{Path(match['file']).name}:{match['line']}: {match['text'].strip()}")
    if (folder / "failed").exists():
        return Failed("compile", (folder / "failed").read_text())
    return unexplained(done, COMPILER)


def begin() -> None:
    """Starts the compiler's process, which imports triton for 0.6 s. Does nothing if triton is not installed."""
    if find_spec("triton") is not None:
        _process().begin()


@cache
def _process() -> Resident:
    spec = find_spec("triton")
    assert spec is not None and spec.origin is not None
    module = Path(child_process.__file__)
    return Resident(module, (Path(spec.origin).parents[1],), COMPILER, FIX)
