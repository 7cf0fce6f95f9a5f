"""Reads the two einsums of an attention: which axes are rows, columns and channels, and how to reorder them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class AxisOrders:
    """The order of axes that the fused attention needs, for each operand. ``result``: the order of the result's axes.

    An empty order means that the axes are already in order.
    """

    left: tuple[int, ...]
    right: tuple[int, ...]
    result: tuple[int, ...]


def scores_layout(spec: tuple[str, ...]) -> AxisOrders | None:
    """Returns the orders that give queries [batch, i, d] and keys [batch, j, d], as for ``bihd,bjhd->bhij``;
    else None.
    """
    left, right, out = spec
    rows, columns = out[-2:-1], out[-1:]
    batch, shared = out[:-2], [each for each in left if each in right and each not in out]
    if len(shared) != 1 or not _plain(left, right, out) or rows in right or columns in left:
        return None
    channel = shared[0]
    return _layout(left, batch + rows + channel, right, batch + columns + channel, out, out)


def values_layout(spec: tuple[str, ...]) -> AxisOrders | None:
    """Returns the orders that give values [batch, j, e] and the result [batch, i, e], as for ``bhij,bjhe->bihe``; else
    None.
    """
    left, right, out = spec
    batch, rows, columns = left[:-2], left[-2:-1], left[-1:]
    own = [each for each in right if each not in left]
    if len(own) != 1 or columns in out or rows in right or not _plain(left, right, out):
        return None
    return _layout(left, left, right, batch + columns + own[0], batch + rows + own[0], out)


def _plain(*texts: str) -> bool:
    """Returns whether each index occurs once; the indices may begin with an ellipsis."""
    rest = [text.removeprefix("...") for text in texts]
    same = len({text.startswith("...") for text in texts}) == 1
    return same and all(text.isalpha() and len(set(text)) == len(text) >= 2 for text in rest)


def _layout(left: str, wanted_left: str, right: str, wanted_right: str, result: str, wanted: str) -> AxisOrders | None:
    orders = [_order(*pair) for pair in ((left, wanted_left), (right, wanted_right), (result, wanted))]
    if any(order is None for order in orders):
        return None
    known = [order or () for order in orders]
    if "..." in left and any(known):
        return None
    return AxisOrders(*known)


def _order(have: str, want: str) -> tuple[int, ...] | None:
    if have == want:
        return ()
    if sorted(have) != sorted(want):
        return None
    return tuple(have.index(each) for each in want)


def permuted(text: str, order: tuple[int, ...]) -> str:
    """Returns the text of a tensor with its axes in another order."""
    moved = [at for at, axis in enumerate(order) if at != axis]
    if not moved:
        return text
    if len(moved) == 2:
        return f"{text}.transpose({moved[0]}, {moved[1]})"
    return f"{text}.permute({', '.join(map(str, order))})"
