"""The cuTile language: front end in this process, `tileiras` as a child process, launches through `ct.launch`.

Compiling needs neither a driver nor torch. All uses of cuda-tile's private parts are in `private`.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, TypeVar

import cuda.tile as ct
from cuda.tile import compilation

from tilewright.errors import CompilerMissing, TaskError, ToolFailed, first_line, in_one_line
from tilewright.hardware.machine import installed_version
from tilewright.languages.base import Argument, Hints, Language, ListArgument, Lowered, digest_of
from tilewright.languages.cutile import private
from tilewright.languages.cutile.first_fixes import with_first_fix
from tilewright.languages.cutile.hints import HINTS
from tilewright.languages.cutile.toolchain import REINSTALL, Tool, compiler, find_tileiras
from tilewright.machine_code.cubin import remarks
from tilewright.records import Built, Configuration, Failed, Value
from tilewright.source.digest import function_of, source_of
from tilewright.task.task import Launch
from tilewright.task.tensors import DIVISOR, ITEM_BYTES, ArraySpec
from tilewright.tools import child
from tilewright.tools.background import in_thread

T = TypeVar("T")

ELF = b"\x7fELF"
DTYPES = {name: getattr(ct, "bool_" if name == "bool" else name) for name in ITEM_BYTES}

_NAMES = {dtype: name for name, dtype in DTYPES.items()}

OPT_LEVEL = 3
"""The optimisation level of kernels that do not set one."""
WORD = 1 << 31
"""A launch refuses extents, strides and integers from this value on, unless the parameter is annotated as 64-bit."""


class CuTile(Language):
    name = "cutile"
    hints = HINTS

    def recognises(self, kernel: Any) -> bool:
        return isinstance(kernel, ct.kernel)

    def kernel_name(self, kernel: ct.kernel) -> str:
        return private.function_name(kernel)

    def entry_name(self, launch: Launch, hints: Hints, config: Configuration, arch: str) -> str:
        return signature_of(launch.kernel, launch.args).symbol or ""

    def lower(self, launch: Launch, hints: Hints, config: Configuration, arch: str) -> Lowered | Failed:
        try:
            given = tuple(_given(hints).items())
            kernel = hinted(launch.kernel, given) if given else launch.kernel
            signature = signature_of(kernel, launch.args)
            code = _exported(kernel, signature, arch)
            plain = _plain(kernel, arch, tuple(private.default_hints(find_tileiras(), arch).items()))
            same_as = b"" if kernel is plain else digest_of(_exported(plain, signature, arch))
        except ct.TileError as error:
            message = first_line(str(getattr(error, "message", "") or error))
            return Failed("front end", with_first_fix(f"{private.error_place(error)}{message}"))
        except TaskError as error:
            return Failed("front end", with_first_fix(str(error)))
        except (TypeError, ValueError, AttributeError, NotImplementedError) as error:
            return Failed("front end", with_first_fix(in_one_line(error)))
        options = (("opt_level", private.opt_level(kernel, arch)),)
        return Lowered(config, arch, signature.symbol or "", code, options, _kinds(signature), same_as)

    def tile_ir_of(self, launch: Launch, hints: Hints, config: Configuration, arch: str) -> Lowered | Failed:
        return self.lower(launch, hints, config, arch)

    def arguments(self, launch: Launch) -> tuple[Argument, ...]:
        annotations = private.parameter_annotations(launch.kernel)
        pairs = zip(launch.args, annotations, strict=True)
        return tuple(word for arg, annotation in pairs for word in _flattened(arg, annotation))

    def decorated_hints(self, kernel: ct.kernel, arch: str) -> Hints:
        return private.decorated_hints(kernel, arch)

    def constant_parameters(self, kernel: ct.kernel) -> tuple[bool, ...]:
        return tuple(annotation.constant for annotation in private.parameter_annotations(kernel))

    def assemble(self, lowered: Lowered, seconds: float) -> Built | Failed:
        tool, opt_level = find_tileiras(), _opt_level(lowered)
        with child.workplace() as folder:
            source, cubin, notes = (folder / f"kernel.{kind}" for kind in ("tileirbc", "cubin", "yaml"))
            source.write_bytes(lowered.code)
            command = [
                str(tool.path), str(source), "-o", str(cubin), "--gpu-name", lowered.arch, f"-O{opt_level}",
                "--lineinfo", "--remark-format=yaml", "--remarks=all", f"--remarks-output-file={notes}",
            ]  # fmt: skip
            started = time.perf_counter()
            try:
                done = child.run(command, seconds, folder, env=tool.environment(), fix=REINSTALL)
            except CompilerMissing:  # removed after `find_tileiras` found it
                raise
            except ToolFailed as error:
                return Failed("tool", str(error))
            elapsed = time.perf_counter() - started
            if done.returncode != 0:
                return compiler_failure(done)
            if not cubin.exists() or not cubin.read_bytes().startswith(ELF):
                return Failed("tool", f"tileiras reported success but wrote no cubin; fix: {REINSTALL}")
            text = notes.read_text(errors="replace") if notes.exists() else ""
            built = Built(lowered.configuration, lowered.arch, cubin.read_bytes(), lowered.symbol, elapsed)
            return replace(built, remarks=remarks(text), cache_key=self.cache_key(lowered))

    def cache_key(self, lowered: Lowered) -> str | None:
        return private.cache_key(find_tileiras(), lowered.arch, int(_opt_level(lowered) or 0), lowered.code)

    def remember(self, built: Sequence[Built]) -> int:
        known = [each for each in built if each.cache_key]
        for each in known:
            _cached(_CUBINS, EXPORTED, each.cache_key, partial(getattr, each, "cubin"))
        private.launch_with(_remembered)
        return private.store(known)

    def runner(self, launch: Launch, hints: Hints) -> Callable[[int | None], None]:
        kernel = hinted(launch.kernel, tuple(_given(hints).items()))
        return lambda stream: ct.launch(stream, launch.grid, kernel, launch.args)

    def expect(self, source: str) -> None:
        in_thread(find_tileiras, "tileiras")  # starting the compiler to ask for its version takes 0.1 s

    def toolkit(self) -> str:
        return f"cuda-tile {installed_version('cuda-tile')}, {compiler()}"

    def load_front_end(self) -> None:
        find_tileiras()
        private.load_front_end()

    def keep_torch_out(self) -> None:
        private.keep_torch_out()


def _opt_level(lowered: Lowered) -> Value:
    return dict(lowered.options).get("opt_level", OPT_LEVEL)


def _given(hints: Hints) -> dict[str, Value]:
    """Returns the hints to pass to cuTile, without an ``opt_level`` of None, which cuTile does not accept.

    For other hints, None overrides the value in the kernel's decorator.
    """
    return {name: value for name, value in hints.items() if value is not None or name != "opt_level"}


EXPORTED, FRONT_ENDS = 256, 32
"""The sizes of the two caches: the number of bytecodes, and the number of kernels whose IR is kept. A check lowers one
kernel for the same signature hundreds of times. A search lowers a kernel once for each set of hints."""
_EXPORTED: dict[Hashable, bytes] = {}
_FRONT_ENDS: dict[Hashable, Callable[[ct.kernel], bytes]] = {}
_SYMBOLS: dict[Hashable, str | None] = {}
"""The mangled names of kernels, by function and signature; at most `EXPORTED`."""
_CUBINS: dict[Hashable, bytes] = {}
"""The cubins that `CuTile.remember` stored, by their key in cuTile's disk cache; at most `EXPORTED`."""


@lru_cache(EXPORTED)
def _plain(kernel: ct.kernel, arch: str, chosen: tuple[tuple[str, Value], ...]) -> ct.kernel:
    """Returns the kernel without the hints that ask for what the compiler chooses anyway; ``kernel`` if it has none."""
    hints = private.decorated_hints(kernel, arch)
    dropped = {name: None for name, value in chosen if hints.get(name) == value}
    return kernel.replace_hints(**dropped) if dropped else kernel


def _exported(kernel: ct.kernel, signature: compilation.KernelSignature, arch: str) -> bytes:
    """Returns the bytecode of ``kernel`` for a signature, from a cache if possible.

    The front end takes 20 ms or more. The cache key has the source of the kernel and its helpers, and the constants
    that they read. The front end's IR does not depend on hints, so kernels that differ only in hints share the IR.
    """
    version = bytecode_version(find_tileiras())
    key, hinted = _keys(kernel, signature, arch, version)
    front_end = _cached(_FRONT_ENDS, FRONT_ENDS, key, lambda: private.front_end(kernel, signature, arch, version))
    return _cached(_EXPORTED, EXPORTED, hinted, lambda: front_end(kernel))


def _remembered(kernel: ct.kernel, signature: compilation.KernelSignature, arch: str) -> bytes | None:
    """Returns the cubin of a kernel that was lowered and remembered in this process, else None."""
    tool = find_tileiras()
    code = _EXPORTED.get(_keys(kernel, signature, arch, bytecode_version(tool))[1])
    return None if code is None else _CUBINS.get(private.cache_key(tool, arch, private.opt_level(kernel, arch), code))


def _keys(
    kernel: ct.kernel, signature: compilation.KernelSignature, arch: str, version: str | None
) -> tuple[Hashable, Hashable]:
    """Returns the keys of a kernel's IR and of its bytecode."""
    key = (function_of(kernel), source_of(kernel), repr(signature.parameters), signature.symbol, arch, version)
    return key, (*key, repr(private.decorated_hints(kernel, arch)))


def _cached(cache: dict[Hashable, T], most: int, key: Hashable, make: Callable[[], T]) -> T:
    """Returns the value of a key in a cache. Calls ``make`` if the value is missing.

    If the cache then has more than ``most`` values, the oldest value is removed.
    """
    if key not in cache:
        made = make()
        if len(cache) >= most:
            cache.pop(next(iter(cache)), None)
        cache[key] = made
    return cache[key]


@lru_cache(4 * EXPORTED)
def hinted(kernel: ct.kernel, hints: tuple[tuple[str, Value], ...]) -> ct.kernel:
    """Returns the kernel with these hints. Equal arguments give the same object, so its JIT cache stays in use."""
    return kernel.replace_hints(**dict(hints))


def signature_of(kernel: ct.kernel, args: Sequence[Any]) -> compilation.KernelSignature:
    """Returns the signature that a launch with ``args`` would compile for.

    For device arrays, cuda-tile computes the signature, which needs a driver. For `ArraySpec`s, this module applies the
    same rules. A GPU test compares both results.
    """
    has_tuple = any(isinstance(arg, tuple) for arg in args)
    parts = [part for arg in args for part in (arg if isinstance(arg, tuple) else [arg])]
    arrays = [each for part in parts for each in (part if isinstance(part, list) else [part]) if hasattr(each, "shape")]
    extents = [tuple(part.shape) for part in parts if hasattr(part, "shape")]  # arrays in lists do not count
    if any(not isinstance(array, ArraySpec) for array in arrays):
        return compilation.KernelSignature.from_kernel_args(
            kernel, tuple(args), _convention(extents, kernel, has_tuple)
        )
    annotations = private.parameter_annotations(kernel)
    if len(annotations) != len(args):
        raise TypeError(f"the kernel takes {len(annotations)} arguments, the launch passes {len(args)}")
    convention = _convention(extents, kernel, has_tuple)
    each = zip(args, annotations, strict=True)
    parameters = [_constraint(arg, annotation, convention.version > 1) for arg, annotation in each]
    signature = compilation.KernelSignature(parameters, convention)
    name = private.function_name(kernel)
    key = name, repr(signature.parameters), repr(signature.calling_convention)
    symbol = _cached(_SYMBOLS, EXPORTED, key, lambda: signature.with_mangled_symbol(name).symbol)
    return signature.with_symbol(symbol)


def _convention(shapes: Sequence[tuple[int, ...]], kernel: ct.kernel, has_tuple: bool) -> compilation.CallingConvention:
    """Returns the calling convention that `ct.launch` uses (observed on an H200, cuda-tile 1.7.0).

    The convention is version 2 if an extent is a constant of the signature. An extent of 1 is always a constant.
    Version 1, otherwise used, does not support tuples.
    """
    static = any(annotation.static_shape for annotation in private.parameter_annotations(kernel))
    if static or has_tuple or any(extent == 1 for shape in shapes for extent in shape):
        return compilation.CallingConvention.cutile_python_v2()
    return compilation.CallingConvention.cutile_python_v1()


def _kinds(signature: compilation.KernelSignature) -> tuple[str, ...]:
    """Returns the kind of each parameter of the compiled entry, in the order of `CuTile.arguments`."""
    kinds: list[str] = []
    waiting = list(reversed(signature.parameters))
    while waiting:
        constraint = waiting.pop()
        if isinstance(constraint, compilation.TupleConstraint):
            waiting += reversed(constraint.items)
        elif isinstance(constraint, compilation.ArrayConstraint):
            kinds += ["pointer", *[_NAMES[constraint.index_dtype]] * (2 * constraint.ndim)]
        elif isinstance(constraint, compilation.ListConstraint):
            kinds += ["pointer", "int32"]
        elif isinstance(constraint, compilation.ScalarConstraint):
            kinds.append(_NAMES[constraint.dtype])
    return tuple(kinds)


def _flattened(arg: Any, annotation: private.Annotation) -> Iterator[Argument]:
    """Yields the parameters of the compiled entry for an argument of a launch."""
    if isinstance(arg, ArraySpec):
        yield from _words(arg)
    elif isinstance(arg, tuple):
        for item, inner in zip(arg, annotation.of_items(len(arg)), strict=True):
            yield from _flattened(item, inner)
    elif isinstance(arg, list):
        yield from (ListArgument(tuple(tuple(_words(array)) for array in arg)), len(arg))
    elif not annotation.constant:
        yield arg


def _words(array: ArraySpec) -> list[int | ArraySpec]:
    """Returns the parameters of the compiled entry for an array: address, extents, strides (elements)."""
    return [array, *array.shape, *array.strides]


def _constraint(
    arg: ArraySpec | list[ArraySpec] | tuple[Any, ...] | float, annotation: private.Annotation, in_lists: bool
) -> compilation.ParameterConstraint:
    """Returns the constraint of an argument. ``in_lists``: whether extents of arrays in lists may be constants."""
    if isinstance(arg, ArraySpec):
        return _array_constraint(arg, annotation)
    if isinstance(arg, tuple):
        items = zip(arg, annotation.of_items(len(arg)), strict=True)
        return compilation.TupleConstraint([_constraint(item, inner, in_lists) for item, inner in items])
    if isinstance(arg, list):
        return _list_constraint(arg, annotation, in_lists)
    if annotation.constant:
        return compilation.ConstantConstraint(arg)
    dtype = ct.bool_ if isinstance(arg, bool) else ct.float32 if isinstance(arg, float) else annotation.scalar_dtype
    if dtype is None and not -WORD <= arg < WORD:
        raise TaskError(f"the launch passes {arg}, beyond 32 bits; fix: annotate that parameter with ct.ScalarInt64")
    return compilation.ScalarConstraint(dtype or ct.int32)


def _array_constraint(array: ArraySpec, annotation: private.Annotation) -> compilation.ArrayConstraint:
    largest = max((*array.shape, *array.strides), default=0)
    if annotation.index_dtype is not ct.int64 and largest >= WORD:
        raise TaskError(
            f"tensor '{array.name}' has an extent or a stride of {largest}, beyond 32 bits; "
            "fix: annotate the kernel's parameter for it with ct.IndexedWithInt64"
        )
    stride_divisor = max(1, DIVISOR * 8 // DTYPES[array.dtype].bitwidth)
    static_shape = {axis % array.ndim for axis in annotation.static_shape}
    static_stride = {axis % array.ndim for axis in annotation.static_stride}
    axes = range(array.ndim)
    static_stride = static_stride or {axis for axis in axes if array.strides[axis] == 1}
    constant = [array.strides[axis] if axis in static_stride else None for axis in axes]
    divisible_strides = {axis for axis in axes if constant[axis] is None and array.strides[axis] % stride_divisor == 0}
    divisible_extents = {axis for axis in axes if axis not in static_shape and array.shape[axis] % DIVISOR == 0}
    return compilation.ArrayConstraint(
        DTYPES[array.dtype], array.ndim, index_dtype=annotation.index_dtype or ct.int32,
        stride_lower_bound_incl=0, alias_groups=(), may_alias_internally=_may_alias_internally(array),
        stride_constant=constant,
        shape_constant=[array.shape[axis] if axis in static_shape or array.shape[axis] == 1 else None for axis in axes],
        stride_divisible_by=[stride_divisor if axis in divisible_strides else 1 for axis in axes],
        shape_divisible_by=[DIVISOR if axis in divisible_extents else 1 for axis in axes],
        base_addr_divisible_by=1 if array.as_compiled().address_offset else DIVISOR,
    )  # fmt: skip


def _list_constraint(
    arrays: Sequence[ArraySpec], annotation: private.Annotation, constant_extents: bool
) -> compilation.ListConstraint:
    """Returns the constraint that all arrays of a list meet."""
    if len({(array.dtype, array.ndim) for array in arrays}) != 1:
        raise TypeError("a list of arrays needs one dtype and one number of axes, and at least one array")
    each = [_array_constraint(array, annotation) for array in arrays]
    otherwise = {"stride_constant": None, "shape_constant": None, "stride_divisible_by": 1, "shape_divisible_by": 1}
    common: dict[str, Any] = {
        "base_addr_divisible_by": min(constraint.base_addr_divisible_by for constraint in each),
        "may_alias_internally": any(constraint.may_alias_internally for constraint in each),
    }
    for name, different in otherwise.items():
        by_axis = zip(*(getattr(constraint, name) for constraint in each), strict=True)
        common[name] = tuple(values[0] if len(set(values)) == 1 else different for values in by_axis)
    if not constant_extents:
        common["shape_constant"] = [None] * arrays[0].ndim
    return compilation.ListConstraint(replace(each[0], **common), alias_groups=(), elements_may_alias=True)


def _may_alias_internally(array: ArraySpec) -> bool:
    """Returns whether `ct.launch` assumes that two indices of the array may share memory.

    The axes are sorted by stride. `ct.launch` assumes no sharing if each stride is at least the previous stride times
    the previous extent. Axes of extent 1 count, too. Observed with `KernelSignature.from_kernel_args`, cuda-tile 1.7.0,
    on 20,000 random layouts.
    """
    least = 1
    for stride, extent in sorted(zip(array.strides, array.shape, strict=True)):
        if stride < least:
            return True
        least = stride * extent
    return False


def bytecode_version(tool: Tool) -> str | None:
    """Returns the newest bytecode version that cuda-tile can write and the compiler can read; None if there is none.

    cuda-tile chooses the same version, but has to start the compiler to find it. Compilers also read older versions:
    tileiras 13.5.37 reads 13.4.
    """
    readable = [version for version in private.BYTECODE_VERSIONS if version <= tool.version]
    return "{}.{}".format(*readable[-1]) if readable else None


_LOCATED = re.compile(r'loc\(.*?"(?P<file>[^"]+)":(?P<line>\d+):\d+.*?\):\s*error:\s*(?P<text>.*)', re.IGNORECASE)
_ERROR = re.compile(r"^\s*(?:\S+:\s*)?error:\s*(?P<text>.*)", re.IGNORECASE)


TOOLKIT_FAILED = 5
"""The exit code of tileiras if it cannot use its toolkit, for example one of another version."""


def compiler_failure(done: child.Finished) -> Failed:
    """Returns the first error that tileiras printed, in one line, with its source line if known.

    If tileiras printed no error, the tool failed and did not refuse the kernel. The stage is then ``tool``.
    """
    lines, code = done.stderr.splitlines(), done.returncode
    for match in filter(None, map(_LOCATED.search, lines)):
        place = f"{Path(match['file']).name}:{match['line']}"
        return Failed("compile", with_first_fix(f"{place}: {match['text'].strip()}"))
    errors = [match["text"].strip() for match in map(_ERROR.search, lines) if match]
    if errors and code > 0 and code != TOOLKIT_FAILED:
        return Failed("compile", with_first_fix(f"tileiras returned {code}: {errors[0]}"))
    homes = [name for name in ("CUDA_HOME", "CUDA_PATH") if os.environ.get(name)]
    hint = f" ({homes[0]}={os.environ[homes[0]]} may hold another toolkit version: unset it)" if homes else ""
    return Failed("tool", f"{done.complaint('tileiras')}{hint if code == TOOLKIT_FAILED else ''}")
