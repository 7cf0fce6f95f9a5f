"""All uses of cuda-tile's private parts, with a version check and a fallback.

With a version that is not in `KNOWN`, Tilewright still compiles and launches. The launch then compiles once more,
because Tilewright cannot store its cubin in cuTile's disk cache.
"""

from __future__ import annotations

import dataclasses
import functools
import io
import sys
import time
import typing
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path
from types import FunctionType
from typing import Any

import cuda.tile as ct
from cuda.tile import compilation

from tilewright.languages.cutile.toolchain import Tool
from tilewright.records import Built

KNOWN = ("1.7.",)
DEFAULT_HINTS = {"num_ctas": 1, "occupancy": 1, "num_worker_warps": 4}
DEFAULTS_SEEN = (((13, 4), "sm_90"),)
"""The versions of tileiras and the architectures with which the default hints were found."""
BYTECODE_VERSIONS = ((13, 1), (13, 2), (13, 3), (13, 4))
"""The bytecode versions that cuda-tile 1.7 writes without development features."""
PREVIEW_BYTE = 10
"""The place in bytecode whose lowest bit says that the code uses preview features."""


def is_known() -> bool:
    return metadata.version("cuda-tile").startswith(KNOWN)


def keep_torch_out() -> None:
    """Loads cuda-tile's front end and prevents its import of torch, which takes 1.3 to 3 s.

    The front end imports torch to recognise torch's dtypes. After this call, the front end treats torch as not
    installed, until the process ends. So call this only in a process that never launches, and after the task file was
    loaded. Does nothing if the task file imported torch.
    """
    if "torch" in sys.modules or "cuda.tile._compile" in sys.modules or not is_known():
        return
    sys.modules["torch"] = None  # type: ignore[assignment]
    try:
        import cuda.tile._compile  # noqa: F401
    finally:
        del sys.modules["torch"]


def load_front_end() -> None:
    """Loads cuda-tile's front end, which cuda-tile itself loads when the first kernel is lowered."""
    if is_known():
        import cuda.tile._compile  # noqa: F401


def front_end(
    kernel: ct.kernel, signature: compilation.KernelSignature, arch: str, version: str | None
) -> Callable[[ct.kernel], bytes]:
    """Returns a function that takes ``kernel`` with any hints and returns its bytecode.

    The IR is made at the first call, which takes nine tenths of the front end's time. The IR does not depend on the
    hints. With an unknown cuda-tile, or without a ``version``, cuda-tile's public export makes the IR at every call.

    version: the version of the bytecode.
    """
    if not is_known() or version is None:

        def exported(hinted: ct.kernel) -> bytes:
            buffer, kind = io.BytesIO(), "tileir_bytecode"
            compilation.export_kernel(
                hinted, [signature], buffer, gpu_code=arch, output_format=kind, bytecode_version=version
            )
            return buffer.getvalue()

        return exported
    from cuda.tile import _compile

    tree = _compile.get_function_hir(python_function(kernel), mode=_compile.HirMode.ENTRY_POINT)
    ir = _compile._IrKeeper(
        kernel._annotated_function, tree, [signature], _compile.parse_bytecode_version(version), arch,
        log_cutile_ir=False, keep_all=True,
    )  # fmt: skip

    def written(hinted: ct.kernel) -> bytes:
        with _compile._compiler_lock:
            return bytes(_compile._get_bytecode(ir, hinted._compiler_options, anonymize_debug_info=False).bytecode)

    return written


def launch_with(find: Callable[[ct.kernel, compilation.KernelSignature, str], bytes | None]) -> None:
    """Makes launches ask ``find`` for the cubin of a new kernel object before cuda-tile compiles it.

    Without this, the first launch of each kernel object runs the front end, even if its cubin is in cuTile's disk
    cache. Does nothing with an unknown cuda-tile.

    find: gets a kernel, a signature with its symbol, and an architecture. None: cuda-tile compiles.
    """
    compiled = ct.kernel._compile
    if not is_known() or hasattr(compiled, "__wrapped__"):
        return

    @functools.wraps(compiled)
    def found(
        kernel: ct.kernel, signature: compilation.KernelSignature, context: Any, compute_capability: Any = None
    ) -> tuple[Any, ...]:
        with suppress(Exception):  # cuda-tile reports what is wrong with the kernel
            if compute_capability is not None and not _is_shown(context):
                signed = signature.with_mangled_symbol(function_name(kernel)) if signature.symbol is None else signature
                if (cubin := find(kernel, signed, "sm_{}{}".format(*compute_capability))) is not None:
                    return cubin, signed.symbol, None, ()
        made: tuple[Any, ...] = compiled(kernel, signature, context, compute_capability)
        return made

    ct.kernel._compile = found


def _is_shown(context: Any) -> bool:
    """Returns whether cuda-tile has to show what it compiles, or compiles for a debugger."""
    from cuda.tile import _compile

    shown = (_compile.CUDA_TILE_DUMP_BYTECODE, _compile.CUDA_TILE_DUMP_TILEIR, context.config.log_cutile_ir)
    return any((*shown, context.config.log_tileir, _compile.EXPERIMENTAL_CUDA_TILE_DEBUG_BUILD))


@dataclass(frozen=True)
class Annotation:
    """The type hint of one kernel parameter."""

    constant: bool = False
    scalar_dtype: ct.DType | None = None
    index_dtype: ct.DType | None = None
    static_shape: tuple[int, ...] = ()
    static_stride: tuple[int, ...] = ()
    items: tuple[Annotation, ...] = ()
    """The type hints of the items of a tuple; one for all items if the tuple may have any length."""

    def of_items(self, count: int) -> tuple[Annotation, ...]:
        """Returns the type hints of the items of a tuple with ``count`` items."""
        if not self.items:
            return (replace(self, items=()),) * count
        return self.items * count if len(self.items) == 1 else self.items


def parameter_annotations(kernel: ct.kernel) -> tuple[Annotation, ...]:
    """Returns the annotation of each parameter, in the order of the signature."""
    return _annotations(python_function(kernel))


@functools.lru_cache(256)  # a check lowers one kernel hundreds of times
def _annotations(function: FunctionType) -> tuple[Annotation, ...]:
    hints = typing.get_type_hints(function, include_extras=True)
    names = function.__code__.co_varnames[: function.__code__.co_argcount]
    return tuple(_annotation(hints.get(name)) for name in names)


def _annotation(hint: Any, constant: bool = False) -> Annotation:
    marks = getattr(hint, "__metadata__", ())
    constant = constant or any(isinstance(mark, ct.ConstantAnnotation) for mark in marks)
    inner = typing.get_args(hint)[0] if marks else hint
    if typing.get_origin(inner) is tuple:
        items = tuple(_annotation(item, constant) for item in typing.get_args(inner) if item is not ...)
        return Annotation(constant=constant, items=items)
    arrays = (mark.element if isinstance(mark, ct.ListAnnotation) else mark for mark in marks)
    array = next((mark for mark in arrays if isinstance(mark, ct.ArrayAnnotation)), None)
    scalar = next((mark for mark in marks if type(mark).__name__ == "ScalarAnnotation"), None)
    return Annotation(
        constant=constant,
        scalar_dtype=scalar.dtype if scalar else None,
        index_dtype=array.index_dtype if array else None,
        static_shape=array.static_shape_dims if array else (),
        static_stride=array.static_stride_dims if array else (),
    )


def python_function(kernel: ct.kernel) -> FunctionType:
    function: FunctionType = kernel._pyfunc
    return function


def function_name(kernel: ct.kernel) -> str:
    return str(python_function(kernel).__name__)


def opt_level(kernel: ct.kernel, arch: str) -> int:
    """Returns the optimisation level that a launch passes to the compiler: the kernel's own for ``arch``, else 3."""
    options = getattr(kernel, "_compiler_options", None)
    return int(options.opt_level_for_target(arch)) if options is not None else 3


def decorated_hints(kernel: ct.kernel, arch: str | None = None) -> dict[str, int | None]:
    """Returns the compiler hints of a kernel object by name, from its decorator and `replace_hints`.

    None means that the compiler chooses. If a hint has a value per architecture, the result has the value for ``arch``,
    or else the hint's default value.
    """
    options = kernel._compiler_options
    hints: dict[str, int | None] = {}
    for field in dataclasses.fields(options):
        value = getattr(options, field.name)
        if isinstance(value, ct.ByTarget):
            default = getattr(value, "_default", None)
            value = value._by_target.get(arch, default if isinstance(default, int) else None)
        hints[field.name] = value
    return hints


def default_hints(tool: Tool, arch: str) -> Mapping[str, int]:
    """Returns the values of hints that the compiler chooses without the hint; empty where they are not known.

    Two configurations that differ only in such a value have equal machine code, so one is compiled for both. On sm_90,
    this held in all of 322 pairs of 46 kernels (bench/recorded/2-cores-default-hints-2026-11-29.json) and of 108 pairs
    in the recorded spaces. On sm_100, the compiler chooses otherwise for some kernels.
    """
    return DEFAULT_HINTS if (tool.version, arch) in DEFAULTS_SEEN else {}


def error_place(error: ct.TileError) -> str:
    """Returns ``matmul.py:12: `` if a front-end error has a source line, else an empty string."""
    place = getattr(error, "loc", None)
    line, file = getattr(place, "line", None), getattr(place, "filename", None)
    return f"{Path(file).name}:{line}: " if line and file else ""


def cache_key(tool: Tool, arch: str, opt_level: int, bytecode: bytes) -> str | None:
    """Returns the key of a cubin in cuTile's disk cache; None if the cache is off or its format is unknown.

    Also None if a launch would give the compiler more than the bytecode, such as libraries with foreign functions.
    """
    if not is_known() or cache_directory() is None or bytecode[PREVIEW_BYTE] & 1:
        return None
    try:
        from cutile_cache import _cache
    except ImportError:
        return None
    return str(_cache.cache_key(tool.version_text, arch, opt_level, bytecode))


def cache_directory() -> str | None:
    """Returns the folder of cuTile's cubins; None if its cache is off."""
    from cuda.tile._cext import default_tile_context

    directory = default_tile_context.config.cache_dir
    return None if directory is None else str(directory)


def store(built: Sequence[Built]) -> int:
    """Stores cubins in cuTile's disk cache under the keys that a launch looks up. Returns the number of cubins."""
    directory = cache_directory()
    if not built or directory is None or not is_known():
        return 0
    from cutile_cache import _cache

    for each in built:
        times = {"compilation_timestamp": time.time(), "compilation_time_seconds": each.seconds}
        notes = _cache.MetadataV1(kernel_names=[each.symbol], remarks="", **times)
        _cache.cache_store(directory, each.cache_key, each.cubin, notes.to_dict())
    return len(built)
