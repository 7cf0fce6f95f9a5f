"""Recognises what a chain of operations on elements computes, from its last operations backwards."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from tilewright.program.findings.record import Operation, RecordedRun

Chain = tuple[Operation, ...]
AROUND = 8
"""The most operations between the parts of one chain."""
SMALL = 256
"""Chains on fewer elements are left out."""
ADDED = ("add", "sub", "rsub", "clamp", "clamp_min", "maximum")
DIRECT = ("", "softmax", "log_softmax", "forward", "wrapped", "sigmoid", "silu", "tanh", "normalize", "norm", "pow")


def named_chains(last: Operation, run: RecordedRun) -> Iterator[tuple[str, Chain]]:
    """Yields what a chain around an operation computes, and its operations."""
    look = ANCHORS.get(last.base)
    if look is None or last.via not in DIRECT:
        return
    for name, chain in look(last, run):
        if all(each.via in DIRECT for each in chain) and max(map(run.numel_of, chain)) >= SMALL:
            yield name, tuple(sorted(set(chain), key=lambda each: (each.part, each.at)))


def back(run: RecordedRun, value: int, through: Sequence[str], to: Sequence[str]) -> Chain:
    """Follows first inputs back through some operations to one of others. Returns the path, its end last."""
    path: list[Operation] = []
    for _ in range(AROUND):
        made = run.maker(value)
        if made is None or made.backward:
            return ()
        path.append(made)
        if made.base in to:
            return tuple(path)
        if made.base not in through or not made.ins:
            return ()
        value = made.ins[0]
    return ()


def behind(run: RecordedRun, value: int, to: Sequence[str], deep: int = AROUND) -> Chain:
    """Returns the path back to the nearest operation with one of these names, along all inputs; () if none is near."""
    waiting: list[tuple[int, Chain]] = [(value, ())]
    while waiting:
        at, path = waiting.pop(0)
        made = run.maker(at)
        if made is None or made.backward or len(path) >= deep:
            continue
        if made.base in to:
            return (*path, made)
        if len(waiting) < 64:
            waiting += [(each, (*path, made)) for each in made.ins]
    return ()


def users_of(run: RecordedRun, made: Operation) -> tuple[Operation, ...]:
    return tuple(each for out in made.outs for each in run.users(out) if not each.backward)


def norm(root: Operation, run: RecordedRun) -> Iterator[tuple[str, Chain]]:
    """A root of the mean of squares, by which something is divided."""
    reduced = back(run, root.ins[0], (*ADDED, "div", "mul", "reciprocal"), ("mean", "sum", "var", "std", "var_mean"))
    if not reduced:
        return
    reduce = reduced[-1]
    squared = _square(run, reduce) if reduce.base in ("mean", "sum") else ()
    if reduce.base in ("mean", "sum") and not squared:
        return
    source = squared[-1].ins[0] if squared else reduce.ins[0]
    scaled = [each for each in users_of(run, root) if each.base in ("mul", "div", "reciprocal")]
    scaled += [more for each in scaled if each.base in ("add", "reciprocal") for more in users_of(run, each)]
    scaled = [each for each in scaled if run.numel_of(each) > run.numel_of(root)]
    added = [each for each in users_of(run, root) if each.base in ("add", "clamp", "clamp_min")]
    scaled += [more for each in added for more in users_of(run, each) if more.base == "div"]
    if not scaled:
        if reduce.base == "sum" and (cosine := _of_two_norms(run, root)):
            yield "cosine", (*squared, *reduced, root, *cosine)
        return
    top = scaled[0].ins[0]
    centred = _centred(run, source) or _centred(run, top) or _subtracted(run, top)
    chain = (*squared, *reduced, root, *added, *scaled[:1], *centred)
    if centred or reduce.base == "mean":
        yield _norm_name(run, source, reduce, bool(centred)), chain


def _of_two_norms(run: RecordedRun, root: Operation) -> Chain:
    """Returns the product of a root with another one, and the division by it."""
    for each in users_of(run, root):
        if each.base == "mul" and all(behind(run, value, ("sqrt",), 1) for value in each.ins[:2]):
            after = [each, *users_of(run, each)]
            divided = [two for one in after for two in (one, *users_of(run, one)) if two.base == "div"]
            return (each, divided[0]) if divided else ()
    return ()


def deviation(std: Operation, run: RecordedRun) -> Iterator[tuple[str, Chain]]:
    """A standard deviation, by which the centred values are divided."""
    around = [std, *users_of(run, std)]
    divided = [each for one in around for each in users_of(run, one) if each.base == "div"]
    divided += [each for each in around[1:] if each.base == "div"]
    for each in divided:
        if each.ins and (centred := (_centred(run, each.ins[0]) or _subtracted(run, each.ins[0]))):
            yield _norm_name(run, std.ins[0], std, True), (std, each, *centred)
            return


def _norm_name(run: RecordedRun, source: int, reduce: Operation, centred: bool) -> str:
    if not centred:
        return "RMS norm"
    before, after = run.type_of(source).shape, run.type_of(reduce.outs[0]).shape
    if len(after) == len(before):
        kept = [n for n, size in enumerate(after) if size == before[n] != 1]
        if kept == [1] and len(before) in (2, 4):
            return "batch norm"
    return "group norm" if len(before) > 3 else "layer norm"


def _square(run: RecordedRun, reduce: Operation) -> Chain:
    """Returns the operation that squares what is reduced."""
    made = run.maker(reduce.ins[0])
    if made is None or not made.ins:
        return ()
    if made.base in ("pow", "square"):
        return (made,)
    same = made.base == "mul" and len(made.ins) == 2 and run.origin(made.ins[0]) == run.origin(made.ins[1])
    return (made,) if same else ()


def _centred(run: RecordedRun, value: int) -> Chain:
    """Returns the subtraction of a mean that made a value, and the mean."""
    made = run.maker(value)
    if made is not None and made.base in ("mul", "add") and made.ins:
        made = run.maker(made.ins[0])
    if made is None or made.base != "sub" or len(made.ins) < 2:
        return ()
    mean = run.maker(made.ins[1])
    return (made, mean) if mean is not None and mean.base in ("mean", "var_mean", "div") else ()


def _subtracted(run: RecordedRun, value: int) -> Chain:
    made = run.maker(value)
    if made is None or made.base != "mul" or not made.ins:
        return ()
    return next((chain for each in made.ins if (chain := _centred(run, each))), ())


def divided(last: Operation, run: RecordedRun) -> Iterator[tuple[str, Chain]]:
    """A division: of an exponential by its sum."""
    if len(last.ins) < 2:
        return
    top, bottom = run.maker(last.ins[0]), run.maker(last.ins[1])
    if top is None or bottom is None or top.base != "exp":
        return
    total = back(run, last.ins[1], ADDED, ("sum",))
    if total and run.maker(total[-1].ins[0]) is not None:
        inner = run.maker(total[-1].ins[0])
        if inner is not None and inner.base == "exp":
            yield "softmax", (top, inner, *total, last)


def sigmoid_by_hand(last: Operation, run: RecordedRun) -> Iterator[tuple[str, Chain]]:
    """The reciprocal of one plus an exponential."""
    exp = back(run, last.ins[0], ("add",), ("exp",)) if last.ins else ()
    if len(exp) == 2 and run.maker(exp[-1].ins[0]) is not None:
        yield "sigmoid", (*exp, last)


def multiplied(last: Operation, run: RecordedRun) -> Iterator[tuple[str, Chain]]:
    """A product of a value with its own sigmoid."""
    if len(last.ins) < 2:
        return
    for one, other in (last.ins[:2], last.ins[1::-1]):
        made = run.maker(one)
        if made is not None and made.base == "sigmoid" and run.origin(made.ins[0]) == run.origin(other):
            yield "SiLU", (made, last)


def gelu(last: Operation, run: RecordedRun) -> Iterator[tuple[str, Chain]]:
    """An error function, or a hyperbolic tangent of a cube, that is multiplied with the value."""
    cube = (behind(run, last.ins[0], ("pow",), 5) or _cube(run, last.ins[0])) if last.base == "tanh" else ()
    if last.base == "tanh" and not cube:
        return
    after = users_of(run, last)
    products = [each for one in after for each in users_of(run, one) if one.base == "add" and each.base == "mul"]
    if products:
        yield "GELU", (*cube, last, *after[:1], *products[:1])


def _cube(run: RecordedRun, value: int) -> Chain:
    """Returns the sum and the products that have one value three times or more."""
    waiting, chain, times = [value], list[Operation](), Counter[int]()
    while waiting and len(chain) < AROUND:
        made = run.maker(waiting.pop(0))
        if made is not None and made.base in ("add", "mul") and not made.backward:
            chain.append(made)
            times.update(run.origin(each) for each in made.ins)
            waiting += made.ins
    return tuple(chain) if max(times.values(), default=0) > 2 else ()


def logarithm(last: Operation, run: RecordedRun) -> Iterator[tuple[str, Chain]]:
    """A logarithm: of a softmax, or of a sigmoid beside that of its complement."""
    soft = back(run, last.ins[0], ADDED, ("_softmax", "div"))
    if soft and (soft[-1].base == "_softmax" or any(divided(soft[-1], run))):
        yield "log of a softmax", (*soft, last)
        return
    sigmoid = behind(run, last.ins[0], ("sigmoid", "reciprocal", "div"), 4)
    if sigmoid and (sigmoid[-1].base == "sigmoid" or any(sigmoid_by_hand(sigmoid[-1], run))):
        both = [each for each in users_of(run, sigmoid[-1]) if each.base in ("rsub", "sub")]
        if both or any(each.base in ("rsub", "sub") for each in sigmoid[:-1]):
            products = [each for each in users_of(run, last) if each.base == "mul"]
            if products:
                yield "binary cross entropy", (*sigmoid, last, *products[:1])


def log_softmax(last: Operation, run: RecordedRun) -> Iterator[tuple[str, Chain]]:
    """Finds cross entropy by hand: a log-softmax of which labels pick one element per row, by an index, or by
    multiplying with one-hot labels and summing."""
    for each in users_of(run, last):
        if each.base in ("gather", "index"):
            yield "cross entropy", (last, each)
            return
        if each.base == "mul" or (each.base == "neg" and any(two.base == "mul" for two in users_of(run, each))):
            product = each if each.base == "mul" else next(two for two in users_of(run, each) if two.base == "mul")
            sums = [two for two in users_of(run, product) if two.base in ("sum", "neg", "mean")]
            targets = any(_labels(run, value) for value in product.ins)
            if sums and targets:
                yield "cross entropy", (last, *({each, product}), sums[0])
                return


def _labels(run: RecordedRun, value: int) -> bool:
    """Whether a value is made of labels: by a scatter or a comparison, or of whole numbers."""
    made = run.maker(value)
    whole = run.type_of(run.origin(value)).dtype in ("int64", "int32", "bool")
    near = behind(run, value, ("scatter", "one_hot", "eq", "scatter_add"), 4)
    return whole or bool(near) or (made is not None and made.base in ("scatter", "eq"))


ANCHORS: dict[str, Callable[[Operation, RecordedRun], Iterator[tuple[str, Chain]]]] = {
    "rsqrt": norm, "sqrt": norm, "std": deviation, "div": divided, "reciprocal": sigmoid_by_hand,
    "mul": multiplied, "erf": gelu, "tanh": gelu, "log": logarithm, "_log_softmax": log_softmax,
}  # fmt: skip
