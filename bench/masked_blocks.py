"""Where `causal_skip` and `mask_split` apply, whether the result stays equal to the bit, and how much work is left.

    python bench/masked_blocks.py OUT.json [--set-aside] [--only NAME …]

Needs TileGym 1.5.1 on the path (`pip install --no-deps tilegym==1.5.1`) and torch, and no GPU. TileGym's own functions
launch its kernels on tensors of the CPU; the launches are recorded, not made. Each kernel and each changed version of
it runs in the interpreter on the same data. All bytes of all arrays are compared, and the work of both runs is counted.
Both are compiled for an H200, too. The kernels in ``masked_blocks_set_aside.txt`` run with ``--set-aside`` alone.
"""

from __future__ import annotations

import argparse
import importlib.util
import inspect
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import cuda.tile as ct
import numpy as np
import torch
from captured_kinds import LIGER, OPS, bf16, f32, without_a_gpu
from common import BENCH, EXAMPLES, lines_of, made_here, write
from torch.overrides import TorchFunctionMode

import tilewright as tw
from tilewright.hardware.architectures import board
from tilewright.languages import language_of
from tilewright.playbook.entries import causal_skip, mask_split
from tilewright.records import Built, Configuration
from tilewright.source.syntax import Source
from tilewright.task.loading import load_task
from tilewright.task.tensors import ArraySpec
from tilewright.tileir.read.reader import read_bytecode
from tilewright.tileir.read.tree import Op, TileType
from tilewright.tileir.run.interpreter import run
from tilewright.tileir.run.launching import bound
from tilewright.tileir.run.memory import Memory
from tilewright.verify.images import storage

H200, SECONDS = board("H200"), 60.0
ENTRIES = {"causal_skip": causal_skip.ENTRY, "mask_split": mask_split.ENTRY}
Call = Callable[[], Any]


def tilegym(module: str, function: str, *args: Any, **options: Any) -> Call:
    return lambda: getattr(import_module(f"{OPS}.{module}"), function)(*args, **options)


def f16(*shape: int) -> torch.Tensor:
    return torch.empty(shape, dtype=torch.float16)


def neighborhood() -> None:
    query, key, value = (bf16(1, 2, 500, 64).requires_grad_() for _ in "qkv")
    function = import_module(f"{LIGER}.fused_neighborhood_attention").fused_neighborhood_attention
    function(query, key, value, 161).sum().backward()


Q, KV, DECODE, CACHE = (1, 2, 500, 64), (1, 2, 500, 64), (1, 4, 1, 64), (1, 2, 600, 64)
BACKWARD = tilegym("attention", "_fmha_backward", *(bf16(*Q) for _ in range(5)), f32(1, 2, 500), 0.125, True)
KERNELS: dict[str, tuple[str, Call]] = {
    "attention_sink": ("_attention_sink_kernel", tilegym(
        "attention_sink", "attention_sink", bf16(1, 1000, 2, 1, 64), *(bf16(1, 1000, 2, 64) for _ in "kv"), bf16(2),
        0.125, None, torch.tensor([0]))),
    "attention_sink_decode": ("_attention_sink_decode_kernel", tilegym(
        "attention_sink_decode", "attention_sink_decode", bf16(1, 1, 2, 8, 64), *(bf16(1, 1500, 2, 64) for _ in "kv"),
        bf16(16), 0.125, 160, torch.tensor([700]), 1024)),
    "swa_attention": ("_swa_fwd_kernel", tilegym(
        "experimental.swa_attention", "tile_swa_attention", *(f16(1, 2, 512, 64) for _ in "qkv"), 160)),
    "fmha_bwd_dkdv": ("_fmha_bwd_dkdv_kernel", BACKWARD),
    "fmha_bwd_dq": ("_fmha_bwd_dq_kernel", BACKWARD),
    "gemma_attention": ("_gemma_fmha_kernel", tilegym(
        "gemma_attention", "gemma_attention_cutile", *(bf16(1, 2, 512, 64) for _ in "qkv"), None, 160)),
    "gemma_attention_decode": ("_gemma_attention_decode_kernel_grouped", tilegym(
        "gemma_attention_decode", "gemma_fmha_decode", bf16(*DECODE), bf16(*CACHE), bf16(*CACHE), None, 0, None, 1024)),
    "flash_decode": ("_attention_decode_kernel_grouped", tilegym(
        "flash_decode", "fmha_decode", bf16(*DECODE), bf16(*CACHE), bf16(*CACHE), None, 1024)),
    "fna_forward": ("_fna_fused_forward_kernel", neighborhood),
    "fna_bwd_dkdv": ("_fna_bwd_dkdv_kernel", neighborhood),
    "fna_bwd_dq": ("_fna_bwd_dq_kernel", neighborhood),
    "layer_norm": ("_layer_norm_fwd_kernel", tilegym(
        "layer_norm", "layer_norm", f32(2, 1500, 64), 1, 2, f32(1500), f32(1500), 1e-5)),
    "layer_norm_legacy": ("_layer_norm_fwd_kernel", tilegym(
        "layer_norm_legacy", "layer_norm_legacy", f32(4, 15000), (15000,), f32(15000), f32(15000), 1e-5)),
    "attention_variant": ("_fmha_variant_kernel_bnsd", tilegym(
        "attention_variant", "fmha_variant_cutile", *(bf16(*Q) for _ in "qkv"), window_size=160)),
    "attention_variant_nsbd": ("_fmha_variant_kernel_nsbd", tilegym(
        "attention_variant", "fmha_variant_cutile", *(bf16(2, 500, 1, 64) for _ in "qkv"), window_size=160,
        layout="nsbd")),
    "mla_prefill": ("_prefill_mla_kernel", tilegym(
        "mla", "tile_mla", *(bf16(1, 2, 512, 128) for _ in "qkv"), bf16(1, 2, 512, 64), bf16(1, 1, 512, 64), True,
        None)),
    "mla_decode_split_kv": ("_naive_absorb_mla_transpose_kernel", tilegym(
        "mla_decoding_split_kv", "mla_decoding_split_kv", bf16(1, 16, 512), bf16(1, 16, 64), bf16(1, 900, 512),
        bf16(1, 900, 64))),
    "naive_attention": ("attention", lambda: None),
}  # fmt: skip
"""Each kernel with the call that launches it."""


class OnTheCpu(TorchFunctionMode):
    """Makes tensors on the CPU, where TileGym asks for a GPU."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is torch.Tensor.cuda:
            return args[0]
        return function(*args, **{**(kwargs or {}), **({"device": "cpu"} if (kwargs or {}).get("device") else {})})


@cache
def launches(call: Call) -> list[tuple[Any, tuple[int, ...], tuple[Any, ...]]]:
    """The launches of a call: kernel, grid and arguments."""
    found: list[Any] = []
    with (
        without_a_gpu(),
        OnTheCpu(),
        mock.patch.object(ct, "launch", lambda _, grid, kernel, args: found.append((kernel, tuple(grid), tuple(args)))),
    ):
        for module in (OPS, LIGER):
            import_module(module)
        call()
    return found


def launched(name: str) -> tuple[Any, tuple[int, ...], tuple[Any, ...], Path]:
    """The launch of a kernel, and the file of the kernel."""
    kernel, call = KERNELS[name]
    if name == "naive_attention":
        task = load_task(str(file := EXAMPLES / "naive" / "attention.py"))
        dims = {"B": 1, "H": 2, "S": 500, "D": 64, "causal": True}
        launch = task.launched(task.space.shipped, dims, task.arrays(dims), H200)
        args = (bf16(*arg.shape) if isinstance(arg, ArraySpec) else arg for arg in launch.args)
        return launch.kernel, launch.grid, tuple(args), file
    found = next(each for each in launches(call) if each[0]._pyfunc.__name__ == kernel)
    return *found, Path(inspect.getfile(found[0]._pyfunc))


def specified(args: tuple[Any, ...]) -> tuple[tuple[Any, ...], dict[str, np.ndarray[Any, Any]]]:
    """The arguments with specifications in place of tensors, and the data of each tensor: random, or as it is."""
    rng, arrays, given = np.random.default_rng(7), dict[str, np.ndarray[Any, Any]](), []
    for place, arg in enumerate(args):
        if not isinstance(arg, torch.Tensor):
            given.append(arg)
            continue
        dtype = str(arg.dtype).removeprefix("torch.")
        assert arg.is_contiguous(), "only row-major tensors are given data"
        given.append(ArraySpec(f"a{place}", tuple(arg.shape), dtype))
        kept = not arg.dtype.is_floating_point
        data = arg.numpy() if kept else rng.normal(0, 1, tuple(arg.shape)).astype(storage(dtype))
        arrays[f"a{place}"] = np.array(data)
    return tuple(given), arrays


def executed(launch: tw.Launch, arrays: Mapping[str, np.ndarray[Any, Any]]) -> dict[str, Any]:
    """Runs a launch on copies of the arrays, and compiles it."""
    language, hints = language_of(launch.kernel), tw.decorated_hints(launch.kernel)
    lowered = language.tile_ir_of(launch, hints, Configuration({}), H200.arch)
    assert hasattr(lowered, "code"), lowered
    memory, copies = Memory(), {name: array.copy() for name, array in arrays.items()}
    addresses = {name: memory.allocate(name, array).address for name, array in copies.items()}
    done = run(read_bytecode(lowered.code), bound(language.arguments(launch), addresses, memory), launch.grid, memory)
    assert not done.findings, done.findings
    built = language.assemble(language.lower(launch, hints, Configuration({}), H200.arch), SECONDS)
    counts = done.counts
    return {
        "bytes": {name: array.tobytes() for name, array in copies.items()},
        "elements": sum(each.executed * _elements(each.op) for each in counts.ops),
        "tensor_flop": counts.tensor_flop, "moved": counts.loaded_bytes + counts.stored_bytes,
        "compiles": isinstance(built, Built) or str(built),
    }  # fmt: skip


def _elements(op: Op) -> int:
    """The elements that an operation computes outside of the tensor cores."""
    plain = op.result_types and isinstance(op.result_types[0], TileType) and not op.name.startswith(("mma", "load"))
    return op.tile().size if plain else 0


@contextmanager
def changed_kernel(file: Path, module: str, text: str, name: str) -> Iterator[Any]:
    """The kernel of a changed text of a module."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / file.name
        path.write_text(text)
        spec = importlib.util.spec_from_file_location(f"{module}_changed", path)
        assert spec is not None and spec.loader is not None
        made = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = made
        with without_a_gpu(), mock.patch("tilegym.backend.register_impl", return_value=lambda made: made):
            spec.loader.exec_module(made)
        yield getattr(made, name)


def rows(name: str) -> Iterator[dict[str, Any]]:
    """What each value of each entry does to one kernel."""
    kernel, grid, args, file = launched(name)
    given, arrays = specified(args)
    launch = tw.Launch(kernel, grid, given)
    function = kernel._pyfunc.__name__
    source = Source(file.name, file.read_text(encoding="utf-8"))
    facts = SimpleNamespace(kernel=function, launches=[launch])
    before = None
    for entry_name, entry in ENTRIES.items():
        sites = entry.sites(source, facts)  # type: ignore[arg-type]
        if not sites:
            yield {"kernel": name, "entry": entry_name, "applies": False}
        for site, value in [(each, value) for each in sites for value in each.values]:
            before = before or executed(launch, arrays)
            text = entry.change(source, site, value)
            with changed_kernel(file, kernel._pyfunc.__module__, text, function) as again:
                after = executed(replace(launch, kernel=again.replace_hints(**_set(kernel))), arrays)
            ratios = {
                key: after[key] / before[key] if before[key] else 1.0 for key in ("elements", "tensor_flop", "moved")
            }
            yield {
                "kernel": name, "entry": entry_name, "applies": True, "value": str(value), "site": str(site),
                "why": site.why, "equal_to_the_bit": after["bytes"] == before["bytes"], "compiles": after["compiles"],
                **{f"{key}_ratio": round(ratio, 4) for key, ratio in ratios.items()},
            }  # fmt: skip


def _set(kernel: Any) -> dict[str, int]:
    return {name: value for name, value in tw.decorated_hints(kernel).items() if value is not None}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--set-aside", action="store_true", help="only the six kernels that were set aside")
    parser.add_argument("--only", nargs="*", choices=KERNELS, default=[], metavar="NAME")
    given = parser.parse_args()
    aside = lines_of(BENCH / "masked_blocks_set_aside.txt")
    chosen = given.only or [name for name in KERNELS if (name in aside) == given.set_aside]
    found = []
    for name in chosen:
        try:
            found += rows(name)
        except Exception as reason:  # TileGym's own host code, without a GPU
            found.append({"kernel": name, "not_run": f"{type(reason).__name__}: {reason}"})
        for row in (each for each in found if each["kernel"] == name):
            print({key: value for key, value in row.items() if key != "site"}, flush=True)
        write(given.out, {**made_here(), "kernels": len(chosen), "rows": found})


if __name__ == "__main__":
    main()
