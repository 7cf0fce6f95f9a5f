"""Hand-written attention → ``torch.nn.functional.scaled_dot_product_attention``, which stores no matrix of weights.

The scale is always given, because the function's default is 1/√d. A mask that is provably causal becomes ``is_causal``;
one that blocks with minus infinity stays a mask of True and False; all others are still added to the scores.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tilewright.program.changes.base import ChangeSite, NearMiss, ProgramChange
from tilewright.program.reading.attention import Attention, ScoreMask, traced
from tilewright.program.reading.einsum import permuted, scores_layout, values_layout
from tilewright.program.reading.flow import assigned, last_change, used_elsewhere
from tilewright.program.reading.masks import triangle
from tilewright.program.reading.module import WIDTH, Edit, NotSure, ReadModule
from tilewright.program.reading.operations import MatrixProduct, product, swapped_axes, swaps_last_two

FUNCTION = "torch.nn.functional.scaled_dot_product_attention"
PRESENT = (FUNCTION, "torch.nn.MultiheadAttention", "torch.nn.attention.flex_attention.flex_attention",
           "flash_attn.flash_attn_func", "xformers.ops.memory_efficient_attention")  # fmt: skip
INFINITE = float("-inf")
LEAST_ADDED = -1e9
"""A finite fill value must be so small that adding it has the effect of setting it."""


class ScaledDotProductAttention(ProgramChange):
    name = "scaled_dot_product_attention"
    about = "computes attention in one fused kernel, which never stores the matrix of weights"
    words = ("flashattention", "flash attention", "scaled dot product attention", "scaled_dot_product_attention",
             "sdpa", "fuse* attention", "memory efficient attention", "hand written attention",
             "attention kernel")  # fmt: skip
    findings = ("hot-kernel", "short-kernels", "float32-products")
    ran = (r"scaled_dot_product|flash|fmha|efficient_attention",)
    gone = (r"softmax",)
    impact = "High"
    order = 10
    absent = "the program has no attention that is written by hand"

    def look(self, module: ReadModule) -> Iterator[ChangeSite | NearMiss]:
        for node in module.file.nodes:
            if not isinstance(node, ast.expr) or product(module, node) is None:
                continue
            try:
                found = traced(module, node)
                if found is not None and (call := _second_derivative(module)):
                    raise NotSure(
                        f"line {call.lineno} takes second derivatives, which the fused kernels do not support", node
                    )
                if found is not None:
                    yield _site(found)
            except NotSure as reason:
                yield NearMiss(reason.line, reason.reason)

    def present(self, module: ReadModule) -> str:
        call = next(module.calls(*PRESENT), None)
        return f"{module.place(call)} calls {module.code(call.func)}" if call else ""


def _second_derivative(module: ReadModule) -> ast.Call | None:
    calls = module.file.every(ast.Call)
    return next((call for call in calls if any(keyword.arg == "create_graph" for keyword in call.keywords)), None)


def _site(found: Attention) -> ChangeSite:
    module = found.module
    assert found.scores is not None
    query, key, value, result, axes = _operands(module, found)
    if found.axis != -1 and (axes is None or found.axis != axes - 1):
        raise NotSure("its softmax is over another axis than the keys", found.weighted)
    arguments, deleted = _masks(found)
    if found.dropout:
        arguments.append(f"dropout_p={found.dropout}")
    arguments.append(f"scale={_scale(found)}")
    name = module.spelled(FUNCTION, found.weighted)
    text = _call(module, found, name, [query, key, value, *arguments])
    start, end = module.span(found.weighted)
    text = f"{text}.transpose(-2, -1)" if found.values_first else text
    edits = [Edit(start, end, permuted(text, result))]
    edits += [module.delete(statement) for statement in dict.fromkeys((*(each for each, _ in found.gone), *deleted))]
    note = "dropout draws other random numbers" if found.dropout else ""
    return ChangeSite(found.weighted.lineno, _what(module, found), tuple(edits), note)


def _what(module: ReadModule, found: Attention) -> str:
    function = module.function_of(found.weighted)
    return f"attention in {function.name}" if function else "attention"


def _operands(module: ReadModule, found: Attention) -> tuple[str, str, str, tuple[int, ...], int | None]:
    """Returns queries, keys and values as texts, the order of the result's axes, and the count of axes if known."""
    scores, values = found.scores, found.values
    assert scores is not None
    assert values is not None
    axes = scores.axes or values.axes
    if scores.spec:
        layout = scores_layout(scores.spec)
        if layout is None:
            raise NotSure(
                f"its einsum {','.join(scores.spec[:2])}->{scores.spec[2]} is no product of rows", scores.left
            )
        query = _in_order(module, scores.left, layout.left)
        key = _in_order(module, scores.right, layout.right)
    else:
        query, (key, axes) = module.argument(scores.left), _key(module, found, scores, axes)
    if found.values_first:
        return query, key, f"{module.operand(values.left)}.transpose(-2, -1)", (), axes
    if not values.spec:
        return query, key, module.argument(values.right), (), axes
    layout = values_layout(values.spec)
    if layout is None:
        raise NotSure(f"its einsum {','.join(values.spec[:2])}->{values.spec[2]} is no product of rows", values.left)
    return query, key, _in_order(module, values.right, layout.right), layout.result, axes


def _in_order(module: ReadModule, node: ast.expr, order: tuple[int, ...]) -> str:
    return permuted(module.operand(node), order) if order else module.argument(node)


def _key(module: ReadModule, found: Attention, scores: MatrixProduct, axes: int | None) -> tuple[str, int | None]:
    """Returns the keys as rows. A right operand that is transposed in an unknown way is transposed back."""
    swapped = swapped_axes(module, scores.right)
    if swapped is not None:
        tensor, order = swapped
        axes = len(order) if len(order) > 2 else axes
        if swaps_last_two(order, axes):
            return module.argument(tensor), axes
    elif isinstance(scores.right, ast.Name) and found.where is not None:
        change = last_change(module, scores.right.id, found.where)
        value = assigned(change, scores.right.id)
        swapped = swapped_axes(module, value) if value is not None else None
        axes = len(swapped[1]) if swapped and len(swapped[1]) > 2 else axes
    batched = scores.axes == 3 and found.values is not None and found.values.axes == 3  # bmm: no axis is broadcast
    if swapped is None and not batched:
        raise NotSure(f"{module.code(scores.right)} is not visibly the transposed keys", found.weighted)
    return f"{module.operand(scores.right)}.transpose(-2, -1)", axes


def _scale(found: Attention) -> str:
    times = [each.node for sign, each in found.scales if sign == "*"]
    over = [each.node for sign, each in found.scales if sign == "/"]
    operand, module = found.module.operand, found.module
    if len(found.scales) == 1 and times:
        return module.argument(times[0])
    text = " * ".join(map(operand, times)) or "1.0"
    return " / ".join((text, *map(operand, over)))


def _masks(found: Attention) -> tuple[list[str], list[ast.stmt]]:
    """Returns the arguments that replace the masks, and the statements that only made a mask that ``is_causal`` now
    replaces.
    """
    if not found.masks:
        return [], []
    if len(found.masks) == 1 and _is_causal(found.module, found.masks[0]):
        (mask,) = found.masks
        test = "True" if mask.test is None else f"bool({found.module.code(mask.test.node)})"
        return [f"is_causal={test}"], _only_for(found, mask)
    added = [mask for mask in found.masks if mask.kind in ("added", "subtracted")]
    filled = [mask for mask in found.masks if mask not in added]
    if len(found.masks) > 1 and any(mask.test is not None for mask in found.masks):
        raise NotSure("it has several masks, and one is not always there", found.weighted)
    if len({mask.fill_code for mask in filled}) > 1 or (added and any(mask.fill != INFINITE for mask in filled)):
        raise NotSure("it has several masks of different kinds", found.weighted)
    text = _added(found, added, filled) if added else _filled(found, filled)
    condition = found.masks[0].test
    whole = text if condition is None else f"({text}) if {found.module.code(condition.node)} else None"
    return [f"attn_mask={whole}"], []


def _added(found: Attention, added: list[ScoreMask], filled: list[ScoreMask]) -> str:
    module, sign = found.module, {"added": " + ", "subtracted": " - "}
    text = "".join(sign[mask.kind] + module.operand(mask.value.node) for mask in reversed(added))
    text = text.removeprefix(" + ").replace(" - ", "-", 1) if text.startswith(" - ") else text.removeprefix(" + ")
    plain = len(added) == 1 and added[0].kind == "added"
    typed = f"{text if plain else f'({text})'}.to({_dtype(found)})"
    return f'{typed}.masked_fill({_blocked(module, filled)}, float("-inf"))' if filled else typed


def _filled(found: Attention, filled: list[ScoreMask]) -> str:
    module = found.module
    if all(mask.fill == INFINITE for mask in filled):
        return _kept(module, filled)
    dtype = _dtype(found)
    value, code = filled[0].fill, filled[0].fill_code.format(dtype=dtype) if filled[0].fill is None else ""
    if value is not None and value > LEAST_ADDED:
        raise NotSure(
            f"its fill value {value:g} differs from minus infinity where all keys are blocked", found.weighted
        )
    tensor = dtype.removesuffix(".dtype")
    return f"{tensor}.new_zeros(()).masked_fill({_blocked(module, filled)}, {code or filled[0].fill_code})"


def _kept(module: ReadModule, masks: list[ScoreMask]) -> str:
    if len(masks) > 1:
        return f"~({_blocked(module, masks)})"
    (mask,) = masks
    if mask.kind == "kept":
        return module.argument(mask.value.node)
    match mask.value.node:
        case ast.UnaryOp(op=ast.Invert(), operand=operand):
            return module.argument(operand)
        case ast.Compare(left=left, ops=[ast.Eq()], comparators=[ast.Constant(value=0) as zero]):
            return f"{module.operand(left)} != {module.code(zero)}"
    return f"~{module.operand(mask.value.node)}"


def _blocked(module: ReadModule, masks: list[ScoreMask]) -> str:
    """Returns the text of a mask that is True where a key is blocked."""
    texts = [("~" if mask.kind == "kept" else "") + module.operand(mask.value.node) for mask in reversed(masks)]
    if len(masks) == 1 and masks[0].kind == "blocked":
        return module.argument(masks[0].value.node)
    return " | ".join(texts)


def _dtype(found: Attention) -> str:
    """Returns the text of the queries' type; raises NotSure if no operand is a plain name."""
    assert found.scores is not None
    assert found.values is not None
    for node in (found.scores.left, found.values.right):
        if isinstance(node, ast.Name):
            return f"{node.id}.dtype"
    raise NotSure("its mask needs the type of the queries, which have no name", found.weighted)


def _is_causal(module: ReadModule, mask: ScoreMask) -> bool:
    half = triangle(module, mask.value.node, mask.value.at)
    if half is None or mask.kind == "subtracted":
        return False
    if mask.kind == "added":
        return half.half == "upper" and half.value == INFINITE
    return half.half == ("lower" if mask.kind == "kept" else "upper")


def _only_for(found: Attention, mask: ScoreMask) -> list[ast.stmt]:
    """Returns the statement before the attention that makes this mask, if nothing else reads it."""
    module, names = found.module, [n for n in ast.walk(mask.value.node) if isinstance(n, ast.Name)]
    for name in names:
        made = last_change(module, name.id, mask.value.at)
        if assigned(made, name.id) is None or made is None:
            continue
        own = [each for each in names if each.id == name.id]
        if used_elsewhere(module, name.id, own, [made, *(each for each, _ in found.gone)], found.final) is None:
            return [made]
    return []


def _call(module: ReadModule, found: Attention, name: str, arguments: list[str]) -> str:
    line = f"{name}({', '.join(arguments)})"
    start = module.span(found.weighted)[0]
    begin = module.text.rfind("\n", 0, start) + 1
    if start - begin + len(line) <= WIDTH and "\n" not in line:
        return line
    indentation = module.text[begin:start]
    inner = indentation[: len(indentation) - len(indentation.lstrip())]
    return f"{name}(\n" + "".join(f"{inner}    {each},\n" for each in arguments) + f"{inner})"


CHANGE = ScaledDotProductAttention()
