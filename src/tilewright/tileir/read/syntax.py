"""Describes the syntax of each operation in the text of Tile IR by a line in a table.

A line describes the text after the operation's name: its parts, a ``:``, and the types. The parts are:

    %x      the operand x              ,%x?    a comma and the operand x, optional   %x*   values with commas
    $x      one of the words that `CHOICES` has for the attribute x; $x? if it is optional (None if absent)
    ~x      rounding<…> or overflow<…> for the attribute x; ~x=word if the default is not that of `DEFAULT`
    !x      the word of a flag, optional (!global_=global if the word is not the attribute's name)
    #x      an integer                 @x      an attribute with a reader of its own in `operations`
    token?  token = %value, optional
    other words and signs are literals

The types are separated by commas. ``x`` is the type of the operand x. ``0`` is the type of the first result. ``x/y/0``
is one type, which x, y and the first result share. ``all`` is one type for all results. ``x?`` is written if the
operand is present, ``x*`` for each value of x. ``x+`` is written once if all values of x have the same type, otherwise
for each. ``->`` is a literal. A colon that is written ``?:`` is absent if there are no types.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

ROUNDING = (
    "nearest_even", "zero", "negative_inf", "positive_inf", "approx", "full", "nearest_int_to_zero", "nearest_away",
)  # fmt: skip

CHOICES: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("rounding_mode", "rounding"), ROUNDING),
    "overflow": ("none", "no_signed_wrap", "no_unsigned_wrap", "no_wrap"),
    **dict.fromkeys(("signedness", "signedness_lhs", "signedness_rhs"), ("signed", "unsigned")),
    "comparison_predicate": (
        "equal", "not_equal", "less_than", "less_than_or_equal", "greater_than", "greater_than_or_equal",
    ),
    "comparison_ordering": ("unordered", "ordered"),
    "memory_ordering_semantics": ("weak", "relaxed", "acquire", "release", "acq_rel"),
    "memory_scope": ("tl_blk", "device", "sys"),
    "mode": ("and", "or", "xor", "add", "addf", "max", "min", "umax", "umin", "xchg"),
}  # fmt: skip
WORD = {"rounding_mode": "rounding", "rounding": "rounding", "overflow": "overflow"}
DEFAULT = {"rounding_mode": "nearest_even", "rounding": "zero", "overflow": "none"}

_UNARY = "source/0"
_BINARY = "lhs/rhs/0"
_ROUNDED = "%lhs , %rhs ~rounding_mode !flush_to_zero"
_WRAPPING = "%lhs , %rhs ~overflow"
_SIGNED = "%lhs , %rhs $signedness"
_EXTREME = "%lhs , %rhs !flush_to_zero !propagate_nan"
_ATOMIC = "$memory_ordering_semantics $memory_scope"
_ORDERED = "$memory_ordering_semantics $memory_scope?"
_HINTED = "token? @optimization_hints"


def _each(names: str, line: str) -> dict[str, str]:
    return dict.fromkeys(names.split(), line)


TABLE: Mapping[str, str] = {
    **_each("absf absi ceil cos cosh floor log log2 negf sin sinh tan", f"%source : {_UNARY}"),
    **_each("bitcast broadcast int_to_ptr pack ptr_to_int ptr_to_ptr reshape unpack", "%source : source -> 0"),
    **_each("andi ori remf xori", f"%lhs , %rhs : {_BINARY}"),
    **_each("addf divf mulf subf", f"{_ROUNDED} : {_BINARY}"),
    **_each("addi muli shli subi", f"{_WRAPPING} : {_BINARY}"),
    **_each("maxi mini remi shri", f"{_SIGNED} : {_BINARY}"),
    **_each("maxf minf", f"{_EXTREME} : {_BINARY}"),
    **_each("exp2 rsqrt", f"%source !flush_to_zero : {_UNARY}"),
    **_each("exp tanh", f"%source ~rounding_mode=full : {_UNARY}"),
    **_each("break continue return yield", "%operands* ?: operands*"),
    **_each("gdc_launch_dependents_tko gdc_wait_tko", "token? -> 0"),
    **_each("get_num_tile_blocks get_tile_block_id", ": all"),
    **_each("get_index_space_shape get_tensor_shape", "%src : src -> all"),
    **_each("make_gather_scatter_view make_partition_view make_strided_view", "%tensor_view : 0"),
    "alloca": "num_elem = #num_elem , alignment = #alignment !global_=global : 0",
    "assert": "%condition , @message : condition",
    "assume": "@predicate , %value : value/0",
    "atan2": "%x , %y : x/y/0",
    "atomic_cas_tko": f"{_ATOMIC} %pointers , %cmp , %val ,%mask? token? : pointers, cmp/val, mask? -> 0, 1",
    "atomic_red_view_tko": (
        f"{_ATOMIC} %view [ %index* ] , $mode , %value token? @inbounds : value, view, index+ -> 0"
    ),
    "atomic_rmw_tko": f"{_ATOMIC} %pointers , $mode , %arg ,%mask? token? : pointers, arg, mask? -> 0, 1",
    "cat": "%lhs , %rhs dim = #dim : lhs, rhs -> 0",
    "cmpf": "$comparison_predicate $comparison_ordering %lhs , %rhs : lhs/rhs -> 0",
    "cmpi": "$comparison_predicate %lhs , %rhs , $signedness : lhs/rhs -> 0",
    "divi": f"%lhs , %rhs $signedness ~rounding : {_BINARY}",
    "extract": "%source [ %indices* ] : source -> 0",
    "exti": "%from_ $signedness : from_ -> 0",
    "fma": "%lhs , %rhs , %acc ~rounding_mode !flush_to_zero : lhs/rhs/acc/0",
    "fpowf": "%source , %exponent : source/exponent/0",
    "fpowi": "%source , %exponent : source/0, exponent",
    "ftof": "%from_ ~rounding_mode : from_ -> 0",
    "ftoi": "%from_ $signedness ~rounding_mode=nearest_int_to_zero !saturating : from_ -> 0",
    "get_global": "@name : 0",
    "insert": "%source , %destination [ %indices* ] : source, destination/0",
    "iota": ": 0",
    "itof": "%from_ $signedness ~rounding_mode : from_ -> 0",
    "join_tokens": "%tokens* : 0",
    "load_ptr_tko": f"{_ORDERED} %source ,%mask? ,%paddingValue? {_HINTED} : source, mask?, paddingValue? -> 0, 1",
    "load_view_tko": f"{_ORDERED} %view [ %index* ] {_HINTED} @inbounds : view, index+ -> 0, 1",
    "make_token": ": 0",
    "memory_fence_alias_tko": "%token",
    "mmaf": "%lhs , %rhs , %acc !fast_acc : lhs, rhs, acc/0",
    "mmaf_scaled": "%lhs , %rhs , %acc , %lhs_scale , %rhs_scale : lhs, rhs, acc/0, lhs_scale, rhs_scale",
    "mmai": "%lhs , %rhs , %acc $signedness_lhs $signedness_rhs : lhs, rhs, acc/0",
    "mulhii": "%x , %y : x/y/0",
    "negi": f"%source ~overflow : {_UNARY}",
    "offset": "%ptr , %offset : ptr, offset -> 0",
    "permute": "%source @permutation : source -> 0",
    "print_tko": "@str ,%args* token? ?: args* -> 0",
    "select": "%cond , %val_if_true , %val_if_false : cond, val_if_true/val_if_false/0",
    "sqrt": f"%source ~rounding_mode !flush_to_zero : {_UNARY}",
    "store_ptr_tko": f"{_ORDERED} %destination , %value ,%mask? {_HINTED} : destination, value, mask? -> 0",
    "store_view_tko": f"{_ORDERED} %tile , %view [ %index* ] {_HINTED} @inbounds : tile, view, index+ -> 0",
    "trunci": "%from_ ~overflow : from_ -> 0",
}
"""The line of each operation. Two operations have code in `operations` instead: `constant` and `make_tensor_view`.
Operations with regions have code in `reader` instead."""


@dataclass(frozen=True)
class Part:
    """One part of a line. ``sign``: a sign in this module's docstring, such as ``,%``, or "" for a literal."""

    sign: str
    name: str
    optional: bool = False
    many: bool = False
    default: str | None = None


@cache
def parts_of(line: str) -> tuple[tuple[Part, ...], str]:
    """Returns the parts of a line, and the text of its types. The text starts with ``?`` if the colon may be absent."""
    body, colon, types = f" {line} ".partition(" : ")
    if not colon and " ?: " in body:
        body, _, types = body.partition(" ?: ")
        types = f"?{types.strip()}"
    elif not colon and "->" in body:
        body, _, types = body.partition("->")
        types = f"->{types.strip()}"
    return tuple(map(_part, body.split())), types.strip()


def _part(text: str) -> Part:
    if text == "token?":
        return Part("token", "token", optional=True)
    sign = next((sign for sign in (",%", "%", "$", "~", "!", "#", "@") if text.startswith(sign)), "")
    name, _, default = text.removeprefix(sign).partition("=") if sign else (text, "", "")
    return Part(sign, name.rstrip("?*"), optional=name.endswith("?"), many=name.endswith("*"), default=default or None)
