"""Runs Triton kernels on NumPy arrays: TTIR, Tile IR, the interpreter. And compiles them with tileiras."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from triton._C.libtriton import ir
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource
    from triton.compiler.compiler import make_backend

from tilewright.languages.base import Lowered
from tilewright.languages.cutile.cutile import CuTile
from tilewright.languages.tileir_from_triton.translate import Bytecode, translate
from tilewright.records import Built, Configuration
from tilewright.tileir.read.reader import read_bytecode
from tilewright.tileir.run.interpreter import Executed, run
from tilewright.tileir.run.memory import Memory

ARCHITECTURES = ("sm_80", "sm_90", "sm_100", "sm_120")
NAMES = {
    np.dtype(np.float16): "fp16", np.dtype(ml_dtypes.bfloat16): "bf16", np.dtype(np.float32): "fp32",
    np.dtype(np.float64): "fp64", np.dtype(ml_dtypes.float8_e4m3fn): "fp8e4nv",
    np.dtype(ml_dtypes.float8_e5m2): "fp8e5", np.dtype(np.bool_): "i1",
    **{np.dtype(f"int{bits}"): f"i{bits}" for bits in (8, 16, 32, 64)},
    **{np.dtype(f"uint{bits}"): f"u{bits}" for bits in (8, 16, 32, 64)},
}  # fmt: skip
"""NumPy's types → Triton's names of them in a signature."""


def ttir_of(
    kernel: Any, signature: dict[str, str], constants: dict[str, Any], aligned: Sequence[str] = (), **chosen: Any
) -> str:
    """The TTIR of a kernel. ``aligned``: names of the parameters that are multiples of 16."""
    names = list(kernel.arg_names)
    types = {name: signature.get(name, "constexpr") for name in names}
    attributes = {(names.index(name),): [["tt.divisibility", 16]] for name in aligned}
    source = ASTSource(kernel, types, constants, attributes)
    target = GPUTarget("cuda", 90, 32)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        backend = make_backend(target)
        options = backend.parse_options(chosen)
        context, stages = ir.context(), {}
        ir.load_dialects(context)
        backend.load_dialects(context)
        backend.add_stages(stages, options, source.language)
        helpers = backend.get_codegen_implementation(options), backend.get_module_map()
        module = source.make_ir(target, options, *helpers, context)
        return str(stages["ttir"](module, {}))


def kind_of(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"*{NAMES[value.dtype]}"
    if isinstance(value, (np.generic, float)):
        return NAMES[np.dtype(type(value))] if isinstance(value, np.generic) else "fp32"
    return "i32" if abs(value) < 1 << 31 else "i64"


def lowered(kernel: Any, arguments: dict[str, Any], aligned: bool = True, **more: Any) -> Bytecode:
    """The Tile IR of a kernel for these arguments. Those whose names are in capitals are constants."""
    constants = {name: value for name, value in arguments.items() if name.isupper()}
    signature = {name: kind_of(value) for name, value in arguments.items() if name not in constants}
    even = [
        name
        for name, value in arguments.items()
        if name in signature
        and aligned
        and (isinstance(value, np.ndarray) or (isinstance(value, int) and value % 16 == 0))
    ]
    text = ttir_of(kernel, signature, constants, even, debug=more.pop("debug", False))
    return translate(text, more.pop("arch", "sm_90"), **more)


def launch(kernel: Any, grid: tuple[int, ...], arguments: dict[str, Any], **more: Any) -> Executed:
    """Runs a kernel. It writes into the arrays among its arguments. There are no findings."""
    done = executed(kernel, grid, arguments, **more)
    assert not done.findings, done.findings
    return done


def executed(kernel: Any, grid: tuple[int, ...], arguments: dict[str, Any], **more: Any) -> Executed:
    """Runs a kernel, which may do what it should not."""
    passed = [value for name, value in arguments.items() if not name.isupper()]
    return run_on(lowered(kernel, arguments, **more), passed, grid)


def run_on(code: Bytecode, arguments: Sequence[Any], grid: tuple[int, ...]) -> Executed:
    """Runs bytecode on arrays and numbers. ``tests/gpu`` replaces this function."""
    memory, bound = Memory(), []
    for at, value in enumerate(arguments):
        is_array = isinstance(value, np.ndarray)
        bound.append(memory.allocate(f"t{at}", value, within=value, written=True).address if is_array else value)
    return run(read_bytecode(code.code), bound, grid, memory)


def compiled(code: Bytecode, arch: str) -> Built:
    """The machine code. Fails with the compiler's complaint."""
    done = CuTile().assemble(Lowered(Configuration.of({}), arch, code.symbol, code.code), 60)
    assert isinstance(done, Built), done
    return done
