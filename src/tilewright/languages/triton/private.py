"""All uses of triton's private parts.

Triton has no public way to compile for an array that does not exist, and no public way to stop after TTIR. So this
module passes array specifications to Triton's binder, and then runs Triton's code generator for the types that the
binder found. Both work without torch and without a GPU. `triton.runtime.cache.triton_key`, which hashes 500 MB, is
called only for an entry of Triton's own disk cache.
"""

from __future__ import annotations

import hashlib
import json
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from threading import RLock, Thread
from types import FunctionType
from typing import TYPE_CHECKING, Any, TypeAlias

import triton
from triton._C.libtriton import get_cache_invalidating_env_vars
from triton.backends.compiler import BaseBackend, GPUTarget
from triton.backends.compiler import Language as SourceLanguage
from triton.compiler.compiler import ASTSource, make_backend
from triton.runtime.cache import get_cache_key, get_cache_manager, triton_key
from triton.runtime.driver import driver
from triton.runtime.jit import JITFunction, create_function_from_signature
from triton.tools.tensor_descriptor import TensorDescriptor

from tilewright.errors import TaskError
from tilewright.hardware.architectures import WARP
from tilewright.languages.triton.kernels import Given, ParameterType
from tilewright.task.tensors import ITEM_BYTES, ArraySpec, Descriptor, is_whole

if TYPE_CHECKING:
    from triton._C.libtriton import ir
    from triton.backends.nvidia.compiler import CUDAOptions

ANY_ARCH = 90
"""The architecture for results that do not depend on the architecture."""
FILE_NAME = 150
"""The most characters of a kernel's name that Triton uses for file names in its cache."""
DESCRIPTOR_ROUNDS = "round_f32_to_tf32" in TensorDescriptor.__dataclass_fields__
"""Whether a descriptor has a field for rounding float32 to TF32. Triton 3.6 has no such field."""


ArgumentPath: TypeAlias = tuple[int, ...]
"""The index of a parameter, then the indices of a part of its tuple."""


@dataclass(frozen=True)
class BoundCall:
    """A kernel's arguments as seen by triton's binder, in the order of its parameters."""

    types: Mapping[str, ParameterType]
    constants: Mapping[ArgumentPath, Any]
    attributes: Mapping[ArgumentPath, list[list[str | int]]]
    options: CUDAOptions
    """All options of the compiler, including triton's defaults."""
    values: Mapping[str, Any]
    """Maps a parameter to the argument of the launch, or to its default."""


def bind(
    kernel: JITFunction[FunctionType], args: Sequence[Any], keywords: Given, arch: int, hooks: bool = True
) -> BoundCall:
    """Binds a launch's arguments and options as `JITFunction.run` does, for ``sm_<arch>``.

    hooks: whether the functions of `JITFunction.add_pre_run_hook` are called first.
    Raises triton's errors for a wrong argument or option: TypeError, KeyError, ValueError or AssertionError.
    """
    backend, knobs, keywords = _backend(arch), triton.knobs, dict(keywords)
    keywords["debug"] = keywords.get("debug", kernel.debug) or knobs.runtime.debug
    keywords["instrumentation_mode"] = knobs.compilation.instrumentation_mode
    if hasattr(knobs.compilation, "fpsan_homomorphic_casts"):  # 3.6 does not have it
        keywords["fpsan_homomorphic_casts"] = knobs.compilation.fpsan_homomorphic_casts
    for hook in kernel.pre_run_hooks if hooks else ():
        hook(*args, **keywords)
    _refuse_texts(kernel, args)
    given = [_FakeTensor.of(arg) for arg in args]
    values, specialization, _ = _binder(kernel, arch)(*given, **keywords)
    with warnings.catch_warnings():  # 3.9 warns of a new default in 3.10; the options record which it was
        warnings.filterwarnings("ignore", "TRITON_DEFAULT_FP_FUSION")
        options, types, constants, attributes = kernel._pack_args(backend, keywords, values, specialization, None)
    return BoundCall(types, constants, attributes, options, {name: _original(value) for name, value in values.items()})


def _refuse_texts(kernel: JITFunction[FunctionType], args: Sequence[Any]) -> None:
    """Raises an error that names the argument, if an argument is a string. Triton's own error does not name it."""
    for parameter, arg in zip(kernel.params, args, strict=False):
        if isinstance(arg, str) and not parameter.is_constexpr:
            raise TaskError(
                f"kernel '{kernel.__name__}': '{parameter.name}' is the string {arg!r}; "
                "fix: pass a tensor or a number, or annotate it with tl.constexpr"
            )


def driver_backend() -> str:
    """Returns the backend of Triton's driver, such as ``cuda``. Makes Triton choose the driver, if it has not. Raises
    RuntimeError without a GPU."""
    return str(driver.active.get_current_target().backend)


def keep_torch_out() -> None:
    """Prevents the import of torch by the binder of triton 3.6, which takes 1 to 3 s.

    The binder imports torch to recognise tensors. After this call, the binder treats torch as not installed, until the
    process ends. So call this only in a process that never launches. Does nothing if torch is loaded. Later versions of
    triton do not import torch.
    """
    if "torch" in sys.modules or not triton.__version__.startswith("3.6."):
        return
    from triton._C.libtriton import native_specialize_impl

    sys.modules["torch"] = None  # type: ignore[assignment]
    try:
        native_specialize_impl(_backend(ANY_ARCH), 1, False, False, False)
    finally:
        del sys.modules["torch"]


def lower(kernel: JITFunction[FunctionType], bound: BoundCall, arch: int) -> tuple[str, str, frozenset[str]]:
    """Runs the code generator and the TTIR passes.

    Returns the name of the entry, TTIR with source locations, and the names of the options that were read.
    Raises `triton.CompilationError` for an error in the kernel.
    """
    from triton._C.libtriton import ir

    backend, (options, read) = _backend(arch), _watched(bound.options)
    source = ASTSource(kernel, bound.types, bound.constants, bound.attributes)
    context = ir.context()
    ir.load_dialects(context)
    backend.load_dialects(context)
    stages: dict[str, Callable[..., ir.module]] = {}
    backend.add_stages(stages, options, SourceLanguage.TRITON)
    with _target(arch):
        functions = backend.get_codegen_implementation(options)
        made = source.make_ir(_gpu(arch), options, functions, backend.get_module_map(), context)
        module = stages["ttir"](made, {})
    return module.get_entry_func_name(), str(module), frozenset(read)


# Triton's own disk cache --------------------------------------------------------------------------


@dataclass(frozen=True)
class CacheEntry:
    """The files of one kernel in Triton's disk cache, by their ending. `triton.compile` finds and writes the same
    entry."""

    hash: str
    kernel: str
    about: Mapping[str, Any]
    """What Triton's metadata has in addition to the output of the stages."""

    @classmethod
    def of(cls, kernel: JITFunction[FunctionType], bound: BoundCall, arch: int) -> CacheEntry:
        """Returns the entry of a launch. Waits for `begin_hashing`, which takes 0.3 to 0.7 s once per process."""
        begin_hashing().join()
        source = ASTSource(kernel, bound.types, bound.constants, bound.attributes)
        options = _backend(arch).parse_options({**vars(bound.options), **source.parse_options()})
        variables = get_cache_invalidating_env_vars()
        key = get_cache_key(source, _backend(arch), options, env_vars=variables)
        about = {"target": vars(_gpu(arch)), **variables, "triton_version": triton.__version__}
        hashed = hashlib.sha256(key.encode()).hexdigest()
        return cls(hashed, source.name[:FILE_NAME], {"hash": hashed, **about})

    def files(self) -> dict[str, bytes]:
        """Returns the stored files; {} if there is no whole entry, or if Triton is set to compile always."""
        if triton.knobs.compilation.always_compile:
            return {}
        group = get_cache_manager(self.hash).get_group(f"{self.kernel}.json") or {}
        return {Path(name).suffix[1:]: Path(path).read_bytes() for name, path in group.items()}

    def store(self, files: Mapping[str, bytes]) -> None:
        """Stores the outputs of all stages and the metadata (``json``). Raises OSError if that fails."""
        manager, group, metadata = get_cache_manager(self.hash), {}, f"{self.kernel}.json"
        about = json.dumps({**json.loads(files["json"]), **self.about}).encode()
        for ending, content in {**files, "json": about}.items():
            group[f"{self.kernel}.{ending}"] = manager.put(content, f"{self.kernel}.{ending}")
        manager.put_group(metadata, group)


@cache
def begin_hashing() -> Thread:
    """Starts to hash Triton's own files, which is a part of every key in its cache. Triton keeps the result."""
    hashing = Thread(target=triton_key, daemon=True)
    hashing.start()
    return hashing


# The code generator -------------------------------------------------------------------------------


def _watched(options: CUDAOptions) -> tuple[CUDAOptions, set[str]]:
    """Returns a copy of the compiler's options, and a set with the names of the options that were read from the copy.

    The set grows with each read. Code that reads the copy as a whole, such as ``vars``, counts as reading all options.
    """
    read, names = set[str](), frozenset(vars(options))

    class Watched(type(options)):  # type: ignore[misc]  # an options class of triton, whose checks may ask for its type
        def __getattribute__(self, name: str) -> Any:
            read.update({name} & names if name != "__dict__" else names)
            return super().__getattribute__(name)

    copy: CUDAOptions = object.__new__(Watched)
    object.__getattribute__(copy, "__dict__").update(vars(options))
    return copy, read


def _gpu(arch: int) -> GPUTarget:
    return GPUTarget("cuda", arch, WARP)


@cache
def _backend(arch: int) -> BaseBackend:
    return make_backend(_gpu(arch))


def _binder(kernel: JITFunction[FunctionType], arch: int) -> FunctionType:
    binders: dict[int, FunctionType] = kernel.__dict__.setdefault("_tilewright_binders", {})
    if arch not in binders:
        binders[arch] = create_function_from_signature(kernel.signature, kernel.params, _backend(arch))
    return binders[arch]


# Replacements for a GPU ---------------------------------------------------------------------------


class _NoDevice:
    """A driver without a device. Kernels may ask it for the target during compilation
    (`triton.language.target_info`)."""

    def __init__(self, arch: int) -> None:
        self.arch = arch

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_current_target(self) -> GPUTarget:
        return _gpu(self.arch)


_ONE_TARGET = RLock()
"""A process has only one current target. Without this lock, two threads would restore each other's target."""


@contextmanager
def _target(arch: int) -> Iterator[None]:
    """Makes ``sm_<arch>`` triton's current target inside the ``with`` block, and then restores the previous driver.

    In a program that uses a GPU of this architecture, the driver stays, because other threads may launch meanwhile.
    """
    with _ONE_TARGET:
        before = driver._active
        if before is not None and before.get_current_target() == _gpu(arch):
            yield
            return
        driver.set_active(_NoDevice(arch))
        try:
            yield
        finally:
            driver._active = before


class _Dtype:
    """A dtype with the attributes that triton's native code reads.

    There is one object for each dtype, because triton identifies dtypes by address.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.itemsize = ITEM_BYTES[name]
        self.is_floating_point = not is_whole(name)

    def __str__(self) -> str:
        return f"torch.{self.name}"

    __repr__ = __str__


_DTYPES: dict[str, _Dtype] = {}


class _FakeTensor:
    """An array specification with the attributes that the binder expects of a tensor."""

    def __init__(self, array: ArraySpec) -> None:
        self.array = array
        self.dtype = _DTYPES.setdefault(array.dtype, _Dtype(array.dtype))
        self.shape = array.shape

    @classmethod
    def of(cls, arg: Any) -> Any:
        if isinstance(arg, ArraySpec):
            if not _known(arg.dtype):
                raise TaskError(f"tensor '{arg.name}': triton has no dtype {arg.dtype}")
            return cls(arg)
        if isinstance(arg, Descriptor):
            return _descriptor(arg)
        return tuple(cls.of(part) for part in arg) if type(arg) is tuple else arg

    def data_ptr(self) -> int:
        return self.array.address_offset

    def ptr_range(self) -> int:
        return self.array.nbytes

    def stride(self) -> tuple[int, ...]:
        return self.array.strides


def _descriptor(given: Descriptor) -> TensorDescriptor:
    array, base = given.base, _FakeTensor.of(given.base)
    try:
        return TensorDescriptor(base, list(array.shape), list(array.strides), list(given.block_shape), given.padding)
    except (AssertionError, ValueError, TypeError) as error:
        raise TaskError(f"the descriptor of tensor '{array.name}': {error}") from None


def _known(dtype: str) -> bool:
    from triton._utils import type_canonicalisation_dict

    return dtype in type_canonicalisation_dict


def _original(value: Any) -> Any:
    if type(value) is tuple:
        return tuple(_original(part) for part in value)
    if isinstance(value, TensorDescriptor):
        return Descriptor(value.base.array, value.block_shape, value.padding)
    return value.array if isinstance(value, _FakeTensor) else value
