"""Compiles a traced kernel to a cubin and to an object, in a fork of a process that has imported cutlass
(`tools.resident`).

The process gets the bytes of `tracing`, but not the task. This file runs as a script and imports nothing of tilewright.
The folder of a job contains ``kernel.mlir`` and ``job.json``. The job writes ``kernel.cubin``, ``kernel.object`` (the
host code with the cubin in it) and ``kernel.json`` (the launch), or ``failed``.

The options of the passes and the form of the compiled host code are private parts of the tested version.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

CONFIG = re.escape("!llvm.struct<(array<3 x i32>, array<3 x i32>, i64, ptr, ptr, i32)>")
"""cudaLaunchConfig_t: grid, block, bytes of dynamic shared memory, stream, attributes, number of attributes."""


def prepare() -> None:
    import cutlass._mlir.ir
    import cutlass.compiler  # noqa: F401


def work(folder: str) -> None:
    place = Path(folder)
    job = json.loads((place / "job.json").read_text())
    try:
        facts = compiled(place, **job)
    except Exception as error:
        (place / "failed").write_text(f"{type(error).__name__}: {error}")
        raise
    (place / "kernel.json").write_text(json.dumps(facts))


def compiled(place: Path, arch: str, opt_level: int, maxnreg: int | None) -> dict[str, Any]:
    """Writes the cubin and the object. Returns the facts of the launch.

    arch: as the compiler names it, such as ``sm_90a``.
    """
    import cutlass.compiler as cc

    traced = cc.deserialize_compilation_artifact((place / "kernel.mlir").read_bytes())
    compiler = cc.CuteCompiler()
    options = f"opt-level={opt_level} cubin-chip='{arch}' dump-cubin-path='{place / 'kernel'}'"
    if maxnreg is not None:
        options += f" ptx-options='--maxrregcount={maxnreg}'"
    compiler.set_pipeline(
        cc.ArtifactType.PreCompiledMlir,
        f"cute-to-nvvm{{check-inline-asm=false cubin-format=bin {options} enable-cuda-dialect=true "
        "cuda-dialect-external-module=true }",
    )
    compiler.set_device_target(arch)
    compiler.set_abi(cc.Abi.CutlassCall)
    compiler.add_compile_option("opt-level", str(opt_level))
    module = compiler.compile_to(traced, cc.ArtifactType.CompiledMlir)
    facts = {"shared": shared_bytes(text_of(module))}
    made = compiler.compile_to(module, cc.ArtifactType.Object)
    (place / "kernel.object").write_bytes(cc.serialize_compilation_artifact(made))
    (cubin,) = place.glob("kernel*.cubin")
    cubin.rename(place / "kernel.cubin")
    return facts


def text_of(module: Any) -> str:
    from cutlass._mlir import ir

    with ir.Context():
        return str(ir.Module.parse(bytes(module.get_bitcode())))


def shared_bytes(text: str) -> int:
    """Returns the dynamic shared memory that the host code asks for. ``text``: the compiled host code, in LLVM's
    dialect."""
    found = set()
    for place in re.findall(rf"(%\S+) = llvm\.getelementptr %\S+\[0, 2\] : .*{CONFIG}", text):
        stored = re.findall(rf"llvm\.store (%\S+), {place} : i64", text)
        for value in stored:
            found |= {int(size) for size in re.findall(rf"{value} = llvm\.mlir\.constant\((\d+) : i64\)", text)}
    if len(found) != 1:
        raise ValueError(f"the host code does not ask for one constant size of dynamic shared memory: {sorted(found)}")
    return found.pop()
