"""One use, or several, of every operation that has no region: what is built, and so what must be read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tilewright.tileir.read.syntax import CHOICES
from tilewright.tileir.read.tree import (
    Assumption,
    GatherScatterViewType,
    PartitionViewType,
    StridedViewType,
    TensorViewType,
    Type,
)

F, N, P, B, T = "4xf32", "4xi32", "4xptr<f32>", "4xi1", "token"
TENSOR = TensorViewType((None, 64), "f32", (None, 1))
KNOWN = TensorViewType((32, 64), "f32", (64, 1))
PARTITION = PartitionViewType((4, 8), (0, 1), None, TENSOR)
SPARSE = GatherScatterViewType((4, 8), 1, "zero", TENSOR)
HINTS = {"sm_100": {"allow_tma": False, "latency": 3}, "sm_120": {"latency": 2}}

VIEWS: tuple[tuple[str, Type], ...] = (
    *(
        ("MakePartitionView", PartitionViewType((4, 8), (0, 1), padding, TENSOR))
        for padding in (None, "zero", "neg_zero", "nan", "pos_inf", "neg_inf")
    ),
    ("MakePartitionView", PartitionViewType((4, 8), (1, 0), None, KNOWN)),
    ("MakePartitionView", PartitionViewType((16,), (0,), "nan", TensorViewType((None,), "bf16", (1,)))),
    ("MakeStridedView", StridedViewType((4, 8), (2, 8), (0, 1), None, TENSOR)),
    ("MakeStridedView", StridedViewType((4, 8), (2, 8), (1, 0), "nan", TENSOR)),
    ("MakeGatherScatterView", GatherScatterViewType((4, 8), 0, None, TENSOR)),
    ("MakeGatherScatterView", SPARSE),
)


@dataclass(frozen=True)
class Case:
    """``operands``: types by name, a list where there may be several. ``attributes``: as the tree has them."""

    operation: str
    results: Sequence[str | Type]
    operands: Mapping[str, str | Type | Sequence[str | Type]] = field(default_factory=dict)
    attributes: Mapping[str, Any] = field(default_factory=dict)
    since: str = "13.1"

    def __str__(self) -> str:
        return f"{self.operation} {dict(self.attributes)} {list(self.operands)}"


def unary(operation: str, tile: str = F, since: str = "13.1", **attributes: Any) -> Case:
    return Case(operation, [tile], {"source": tile}, attributes, since)


def binary(operation: str, tile: str = F, **attributes: Any) -> Case:
    return Case(operation, [tile], {"lhs": tile, "rhs": tile}, attributes)


def cast(operation: str, start: str, end: str, name: str = "source", **attributes: Any) -> Case:
    return Case(operation, [end], {name: start}, attributes)


ORDINARY = ("nearest_even", "zero", "negative_inf", "positive_inf")
MODES = {**dict.fromkeys(("AddF", "SubF", "MulF"), ORDINARY), "DivF": (*ORDINARY, "approx", "full")}

ARITHMETIC = (
    *map(unary, ["AbsF", "Ceil", "Cos", "CosH", "Floor", "Log", "Log2", "NegF", "Sin", "SinH", "Tan"]),
    *(unary(name, rounding_mode="full") for name in ("Exp", "TanH")),
    unary("Exp", since="13.3", rounding_mode="approx"),
    unary("TanH", since="13.2", rounding_mode="approx"),
    *(unary(name, flush_to_zero=flag) for name in ("Exp2", "Rsqrt") for flag in (False, True)),
    *(unary("Sqrt", rounding_mode=mode) for mode in (*ORDINARY, "approx")),
    unary("Sqrt", flush_to_zero=True),
    *(binary(name, rounding_mode=mode) for name, modes in MODES.items() for mode in modes),
    *(binary(name, flush_to_zero=True, rounding_mode="zero") for name in MODES),
    *(
        binary(name, propagate_nan=nan, flush_to_zero=flush)
        for name in ("MaxF", "MinF")
        for nan in (False, True)
        for flush in (False, True)
    ),
    binary("RemF", "4xf64"),
    Case("Fma", [F], {"lhs": F, "rhs": F, "acc": F}, {"rounding_mode": "zero", "flush_to_zero": True}),
    Case("Fma", ["f16"], {"lhs": "f16", "rhs": "f16", "acc": "f16"}),
    Case("Atan2", [F], {"x": F, "y": F}, since="13.2"),
    Case("FPowF", [F], {"source": F, "exponent": F}),
    Case("FPowI", [F], {"source": F, "exponent": N}, since="13.4"),
    Case("AbsI", [N], {"source": N}),
    *(
        binary(name, N, overflow=overflow)
        for name in ("AddI", "MulI", "ShLI", "SubI")
        for overflow in CHOICES["overflow"]
    ),
    unary("NegI", N),
    *(unary("NegI", N, "13.2", overflow=one) for one in ("none", "no_signed_wrap", "no_wrap")),
    *(binary(name, N, signedness=one) for name in ("MaxI", "MinI", "RemI", "ShRI") for one in ("signed", "unsigned")),
    *(
        binary("DivI", N, signedness=one, rounding=mode)
        for one, mode in (
            ("unsigned", "zero"),
            ("unsigned", "positive_inf"),
            ("signed", "zero"),
            ("signed", "negative_inf"),
            ("signed", "positive_inf"),
        )
    ),
    *(binary(name, N) for name in ("AndI", "OrI", "XOrI")),
    Case("MulhiI", [N], {"x": N, "y": N}),
    *(
        Case("CmpF", [B], {"lhs": F, "rhs": F}, {"comparison_predicate": how, "comparison_ordering": order})
        for how in CHOICES["comparison_predicate"]
        for order in CHOICES["comparison_ordering"]
    ),
    *(
        Case("CmpI", [B], {"lhs": N, "rhs": N}, {"comparison_predicate": how, "signedness": one})
        for how in CHOICES["comparison_predicate"]
        for one in CHOICES["signedness"]
    ),
    Case("Select", [F], {"cond": B, "val_if_true": F, "val_if_false": F}),
    *(
        Case(
            "MmaI",
            ["4x8xi32"],
            {"lhs": "4x16xi8", "rhs": "16x8xi8", "acc": "4x8xi32"},
            {"signedness_lhs": left, "signedness_rhs": right},
        )
        for left in CHOICES["signedness"]
        for right in CHOICES["signedness"]
    ),
    Case("MmaF", ["4x8xf32"], {"lhs": "4x16xf16", "rhs": "16x8xf16", "acc": "4x8xf32"}),
    Case(
        "MmaF",
        ["4x8xf32"],
        {"lhs": "4x16xf8E4M3FN", "rhs": "16x8xf8E4M3FN", "acc": "4x8xf32"},
        {"fast_acc": True},
        "13.3",
    ),
    Case(
        "MmaFScaled",
        ["2x4x8xf32"],
        {
            "lhs": "2x4x32xf8E4M3FN",
            "rhs": "2x32x8xf8E4M3FN",
            "acc": "2x4x8xf32",
            "lhs_scale": "2x4x1xf8E8M0FNU",
            "rhs_scale": "2x1x8xf8E8M0FNU",
        },
        since="13.3",
    ),
)

SHAPES = (
    cast("Bitcast", F, N),
    cast("Broadcast", "1x4xf32", "8x4xf32"),
    cast("Reshape", "8x4x2xf32", "64xf32"),
    cast("IntToPtr", "4xi64", P),
    cast("PtrToInt", P, "4xi64"),
    cast("PtrToPtr", P, "4xptr<i8>"),
    Case("Pack", ["4xi8"], {"source": "8xi4"}, since="13.3"),
    Case("Unpack", ["8xf4E2M1FN"], {"source": "4xi8"}, since="13.3"),
    cast("FToF", F, "4xf16", "from_", rounding_mode="zero"),
    cast("FToF", "4xf16", F, "from_"),
    cast("ExtI", N, "4xi64", "from_", signedness="unsigned"),
    cast("TruncI", N, "4xi8", "from_", overflow="no_wrap"),
    *(cast("IToF", N, F, "from_", signedness=one) for one in CHOICES["signedness"]),
    *(cast("FToI", F, N, "from_", signedness=one) for one in CHOICES["signedness"]),
    Case("FToI", [N], {"from_": F}, {"saturating": True}, "13.4"),
    Case("Cat", ["4x8xf32"], {"lhs": "4x4xf32", "rhs": "4x4xf32"}, {"dim": 1}),
    Case("Extract", ["4x4xf32"], {"source": "8x8xf32", "indices": ["i32", "i32"]}),
    Case(
        "Insert", ["8x8xf32"], {"source": "4x4xf32", "destination": "8x8xf32", "indices": ["i32", "i32"]}, since="13.4"
    ),
    Case("Iota", [N]),
    Case("Permute", ["2x8x4xf32"], {"source": "8x4x2xf32"}, {"permutation": (2, 0, 1)}),
    *(
        Case("Assume", [of], {"value": of}, {"predicate": predicate})
        for of, predicate in (
            (N, Assumption("div_by", divisor=16)),
            (P, Assumption("div_by", divisor=16, every=2, along=0)),
            (TENSOR, Assumption("div_by", divisor=16)),
            (N, Assumption("bounded", low=-3, high=5)),
            (N, Assumption("bounded", low=0)),
            (N, Assumption("bounded", high=5)),
            (N, Assumption("bounded")),
            ("4x8xi32", Assumption("same_elements", values=(2, 4))),
        )
    ),
)

MEMORY = (
    *(
        Case("LoadPtrTko", [F, T], {"source": P}, {"memory_ordering_semantics": order, "memory_scope": scope})
        for order in ("relaxed", "acquire")
        for scope in CHOICES["memory_scope"]
    ),
    Case("LoadPtrTko", [F, T], {"source": P, "mask": B}),
    Case(
        "LoadPtrTko",
        [F, T],
        {"source": P, "mask": B, "paddingValue": F, "token": T},
        {"optimization_hints": {"sm_100": {"latency": 3}}},
    ),
    Case("LoadPtrTko", [F, T], {"source": P, "token": T}),
    Case("StorePtrTko", [T], {"destination": P, "value": F}),
    Case(
        "StorePtrTko",
        [T],
        {"destination": P, "value": F, "mask": B, "token": T},
        {"memory_ordering_semantics": "release", "memory_scope": "sys"},
    ),
    *(
        Case(
            "AtomicCASTko",
            [F, T],
            {"pointers": P, "cmp": F, "val": F, **more},
            {"memory_ordering_semantics": "acq_rel", "memory_scope": "device"},
        )
        for more in ({}, {"mask": B}, {"token": T}, {"mask": B, "token": T})
    ),
    *(
        Case(
            "AtomicRMWTko",
            [of, T],
            {"pointers": f"4xptr<{of[2:]}>", "arg": of, **more},
            {"memory_ordering_semantics": "relaxed", "memory_scope": "tl_blk", "mode": mode},
        )
        for mode in CHOICES["mode"]
        for of in [F if mode == "addf" else N]
        for more in ({}, {"mask": B, "token": T})
    ),
    *(
        Case(
            "AtomicRedViewTko",
            [T],
            {"view": PARTITION, "index": ["i32", "i32"], "value": "4x8xf32", **more},
            {"memory_ordering_semantics": "relaxed", "memory_scope": "device", "mode": "addf"},
            "13.3",
        )
        for more in ({}, {"token": T})
    ),
    *(
        Case("LoadViewTko", ["4x8xf32", T], {"view": PARTITION, "index": ["i32", "i32"], **more}, attributes, since)
        for more in ({}, {"token": T})
        for attributes, since in (
            ({}, "13.1"),
            ({"memory_ordering_semantics": "relaxed", "memory_scope": "sys"}, "13.1"),
            ({"optimization_hints": HINTS}, "13.1"),
            ({"inbounds": (True, False)}, "13.4"),
            ({"inbounds": (True, True), "optimization_hints": HINTS}, "13.4"),
        )
    ),
    *(
        Case(
            "StoreViewTko",
            [T],
            {"tile": "4x8xf32", "view": PARTITION, "index": ["i32", "i32"], **more},
            attributes,
            since,
        )
        for more in ({}, {"token": T})
        for attributes, since in (
            ({}, "13.1"),
            ({"memory_ordering_semantics": "release", "memory_scope": "sys"}, "13.1"),
            ({"optimization_hints": HINTS}, "13.1"),
            ({"inbounds": (True, True), "optimization_hints": HINTS}, "13.4"),
        )
    ),
    Case("LoadViewTko", ["4x8xf32", T], {"view": SPARSE, "index": ["i32", "8xi32"]}, since="13.3"),
    Case("StoreViewTko", [T], {"tile": "4x8xf32", "view": SPARSE, "index": ["i32", "8xi32"]}, since="13.3"),
    Case("MakeTensorView", [TENSOR], {"base": "ptr<f32>", "dynamicShape": ["i64"], "dynamicStrides": ["i64"]}),
    Case("MakeTensorView", [KNOWN], {"base": "ptr<f32>"}),
    *(
        Case(name, [view], {"tensor_view": view.tensor}, since="13.1" if name == "MakePartitionView" else "13.3")
        for name, view in VIEWS
    ),
    Case("GetIndexSpaceShape", ["i32", "i32"], {"src": PARTITION}),
    Case("GetTensorShape", ["i64", "i64"], {"src": TENSOR}),
    Case("Offset", [P], {"ptr": P, "offset": N}),
    Case("GetTileBlockId", ["i32", "i32", "i32"]),
    Case("GetNumTileBlocks", ["i32", "i32", "i32"]),
    Case("Alloca", ["ptr<f32>"], {}, {"num_elem": 16, "alignment": 64}, "13.3"),
    Case("Alloca", ["ptr<f32>"], {}, {"num_elem": 16, "alignment": 64, "global_": True}, "13.3"),
    Case("MakeToken", [T]),
    Case("JoinTokens", [T], {"tokens": [T, T, T]}),
    Case("MemoryFenceAliasTko", [T], {"token": T}, since="13.4"),
    *(
        Case(name, [T], operands, since="13.4")
        for name in ("GdcLaunchDependentsTko", "GdcWaitTko")
        for operands in ({}, {"token": T})
    ),
    Case("Assert", [], {"condition": B}, {"message": 'say "no"\n\\ é\t\x01 {}'}),
    Case("PrintTko", [T], {"args": [F, N], "token": T}, {"str": "%f and %i"}, "13.2"),
    Case("PrintTko", [T], {"args": []}, {"str": "text"}, "13.2"),
)

CASES = (*ARITHMETIC, *SHAPES, *MEMORY)

REFUSED = {
    "MultimemLoadReduceViewTko": "since 13.5",
    "MultimemReduceViewTko": "since 13.5",
    "MultimemStoreViewTko": "since 13.5",
    "PreviewCall": "a preview",
}
"""Operations that no released bytecode holds; the disassembler of 13.4 does not know them."""

ELSEWHERE = {
    "Constant", "GetGlobal", "For", "Loop", "If", "Reduce", "Scan", "Break", "Continue", "Return", "Yield",
    "Entry", "Global", "Module",
}  # fmt: skip
"""Tested by themselves: what has regions, ends one, or is no operation inside an entry."""
