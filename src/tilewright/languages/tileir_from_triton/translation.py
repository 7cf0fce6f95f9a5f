"""The state of one translation, and the table in which the families of operations register their handlers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from tilewright.languages.tileir_from_triton.axes import Axes
from tilewright.languages.tileir_from_triton.tokens import MemoryTokens
from tilewright.languages.tileir_from_triton.ttir import SsaValue, TtirBlock, TtirOp, Untranslated, ValueType
from tilewright.languages.tileir_from_triton.writer import Element, Handle, Writer

Handler: TypeAlias = Callable[["Translation", TtirOp], Any]
"""A function that generates an operation. It returns the result, a tuple of results, or None."""

HANDLERS: dict[str, Handler] = {}
I1, I32, I64, F32 = (ValueType(element) for element in ("i1", "i32", "i64", "f32"))

WIDEST_ACCESS = 16
"""Bytes of the widest load or store of a thread. A greater alignment has no further benefit."""

UNEXPECTED = (LookupError, ValueError, TypeError, AttributeError, AssertionError)
"""The errors of a handler whose operands or attributes differ from the known Triton releases."""


def translates(*names: str) -> Callable[[Handler], Handler]:
    """Registers a handler for operations of TTIR."""

    def register(handler: Handler) -> Handler:
        for name in names:
            assert name not in HANDLERS, f"'{name}' is registered twice"
            HANDLERS[name] = handler
        return handler

    return register


class Translation:
    """Generates the operations of one kernel."""

    tokens: MemoryTokens
    axes: Axes

    def __init__(self, writer: Writer, checks_promises: bool = False) -> None:
        self.writer = writer
        self.checks_promises = checks_promises
        self.emit = writer.emit
        self.handles: dict[SsaValue, Handle] = {}
        self.numbers: dict[SsaValue, float] = {}
        """The values of the scalar constants."""
        self._extended: dict[SsaValue, SsaValue] = {}

    def __getitem__(self, value: SsaValue) -> Handle:
        return self.handles[value]

    def __setitem__(self, value: SsaValue, handle: Handle) -> None:
        self.handles[value] = handle

    def all(self, values: Sequence[SsaValue]) -> list[Handle]:
        return [self.handles[value] for value in values]

    def run(self, op: TtirOp) -> None:
        """Generates one operation. Raises Untranslated if no family handles it."""
        if op.name not in HANDLERS:
            raise Untranslated.lacking(op)
        with self.writer.at(op.place):
            try:
                results = HANDLERS[op.name](self, op)
            except Untranslated as error:
                raise error if error.operation else Untranslated(str(error), op) from None
            except UNEXPECTED as error:
                raise Untranslated(f"{op.name} in a form that the translator does not know ({error!r})", op) from error
        if op.name == "arith.extsi":
            self._extended[op.results[0]] = op.operands[0]
        if op.results:
            handles = results if isinstance(results, (tuple, list)) else (results,)
            self.bind(op.results, self._promised(op, handles) if self.checks_promises else handles)

    def narrow(self, value: SsaValue) -> SsaValue:
        """Returns the narrower value from which an extension made ``value``; ``value`` itself if there is none."""
        return self._extended.get(value, value)

    def bind(self, values: Sequence[SsaValue], handles: Sequence[Handle]) -> None:
        for value, handle in zip(values, handles, strict=True):
            self.handles[value] = handle

    def _promised(self, op: TtirOp, handles: Sequence[Handle]) -> Sequence[Handle]:
        """Returns the results of an operation. If the kernel promises their divisibility, adds an `assume`.

        The assumed divisor is at most `WIDEST_ACCESS`.
        """
        if op.type.is_float or op.type.pointer or not self.axes.is_promised(op):
            return handles
        divisor, every, along = self.axes.alignment(op.results[0])
        group = (min(every, WIDEST_ACCESS), along) if every > 1 and op.type.shape else (None, None)
        with self.writer.at(op.place):
            return (self.writer.assume(handles[0], op.type, min(divisor, WIDEST_ACCESS), *group),)

    def body(self, block: TtirBlock) -> TtirOp:
        """Generates all operations of a block except the terminator. Returns the terminator."""
        for op in block.ops[:-1]:
            self.run(op)
        return block.ops[-1]

    def aligned(self, pointers: SsaValue, handle: Handle) -> Handle:
        """Returns the pointers of an access, with an `assume` of their known alignment."""
        bytes_, every, along = self.axes.alignment(pointers)
        divisor, kind = min(bytes_, WIDEST_ACCESS), pointers.type
        if every > 1:
            return self.writer.assume(handle, kind, divisor, every, along)
        return handle if divisor * 8 <= kind.bits else self.writer.assume(handle, kind, divisor, None, None)

    # Shared by several families ---------------------------------------------------------------------------------------

    def constant(self, value: Element | list[Element], kind: ValueType) -> Handle:
        return self.writer.constant(value, kind)

    def spread(self, handle: Handle, kind: ValueType, shape: tuple[int, ...]) -> Handle:
        """Broadcasts a value to ``shape``. If the value has fewer axes, new axes are added at the front."""
        if len(kind.shape) < len(shape):
            kind = kind.shaped(*[1] * (len(shape) - len(kind.shape)), *kind.shape)
            handle = self.emit("Reshape", kind, handle)
        return handle if kind.shape == shape else self.emit("Broadcast", kind.shaped(*shape), handle)

    def reshape(self, handle: Handle, kind: ValueType) -> Handle:
        return self.emit("Reshape", kind, handle)

    def add(self, left: Handle, right: Handle, kind: ValueType) -> Handle:
        return self.emit("AddI", kind, left, right, "NONE")

    def to_i64(self, handle: Handle, kind: ValueType) -> Handle:
        return handle if kind.element == "i64" else self.emit("ExtI", kind.of("i64"), handle, "Signed")

    def convert(self, handle: Handle, kind: ValueType, element: str) -> Handle:
        """Generates the conversion of a floating-point value of type ``kind`` to the element type ``element``."""
        if kind.element == element:
            return handle
        return self.emit("FToF", kind.of(element), handle, "NEAREST_EVEN")
