"""The first thing to try for a message of cuda-tile or tileiras, as data.

Each row is true for cuda-tile 1.7.0 and tileiras 13.4.92 (2026-11-28): a test provokes its message with a small kernel.
A message that no row knows stays as it is.
"""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class FirstFix:
    """``message``: a pattern of the message. ``fix``: what to try first."""

    message: re.Pattern[str]
    fix: str


def _row(message: str, fix: str) -> FirstFix:
    return FirstFix(re.compile(message), fix)


FIRST_FIXES = (
    _row(r"Index size \d+ does not match the array rank",
         "the index of load and store counts tiles; give one number for each axis of the array"),
    _row(r"Expected shape length to be \d+",
         "shape= is the shape of the tile; give one extent for each axis of the array"),
    _row(r"of shape .* is not a power of two",
         "use the next power of two as the tile's extent; padding_mode covers what is beyond the array"),
    _row(r"No such attribute '(cast|to|type|float|half)'", "convert a tile with .astype(ct.float16)"),
    _row(r"'int' and 'NoneType'", "no argument may be None; pass a dummy array and a ct.Constant flag"),
    _row(r"'int' and 'str'", "no argument may be a string; pass a number or a flag as ct.Constant"),
    _row(r"unexpected keyword argument 'padding_value'",
         "a load takes padding_mode=ct.PaddingMode.ZERO; padding_value= is for gather"),
    _row(r"scatter\(\): too many positional arguments", "give the mask as mask=, or index beyond the array to skip"),
    _row(r"must have the same dtype unless they are int8/uint8",
         "convert both operands of mma to one dtype with .astype; the accumulator stays float32"),
    _row(r"Incompatible shapes for matrix mul",
         "mma multiplies (M, K) by (K, N); transpose one operand with ct.permute, or exchange its index and shape"),
    _row(r"Use of potentially undefined variable", "assign the variable before the branch or loop"),
    _row(r"Type of `\w+` depends on path taken",
         "give the variable the same shape and dtype on both paths: .astype, or another name"),
    _row(r"Expected a constant integer tuple, but given value is not constant",
         "a tile's shape is constant; pass the extent as ct.Constant[int]"),
    _row(r"item #\d+ has type Tile\[\w+,\(\d",
         "an index of load or store is a scalar; use .item() on a tile of one element, or ct.gather for many"),
    _row(r"item #\d+ has type Tile\[float", "an index is an integer; convert it with .astype(ct.int32)"),
    _row(r"Module 'cuda\.tile' has no attribute", "this version of cuda-tile has no such name; see dir(cuda.tile)"),
    _row(r"Shapes are not broadcastable",
         "extents must be equal or 1; insert an axis with ct.expand_dims, or load tiles of one shape"),
    _row(r"Tile kernels cannot return values", "store the result into an output array with ct.store"),
    _row(r"Num axes must match input's rank", "name every axis of the tile in ct.permute"),
    _row(r"Cannot reshape", "the number of elements must stay the same; use ct.permute to exchange axes"),
    _row(r"Expected a scalar value, but given value has type Tile\[bool",
         "an if needs a scalar; choose elements with ct.where, or reduce the tile first"),
    _row(r"Tiles are immutable", "make a new tile with ct.where, or write to the array with ct.scatter"),
    _row(r"Update is incompatible with the target dtype", "convert the update with .astype to the array's dtype"),
    _row(r"the kernel takes \d+ arguments, the launch passes", "give the launch one argument for each parameter"),
    _row(r"tile would exceed the maximum of \d+ elements", "make the tile smaller: loop over parts of it"),
    _row(r"Unsupported syntax",
         "a kernel has no try, with, import, comprehension or loop over a list; use range, or do it on the host"),
)  # fmt: skip


def with_first_fix(message: str) -> str:
    """Returns the message with the first thing to try, if a row knows it."""
    row = next((row for row in FIRST_FIXES if row.message.search(message)), None)
    return message if row is None else f"{message}; first try: {row.fix}"
