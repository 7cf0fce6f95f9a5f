"""Makes Triton print a module in MLIR's generic form, in which all operations have the same syntax.

Triton's Python bindings do not give the attributes and the source places of operations, so TTIR is read from text. The
usual text of TTIR has a different syntax for each operation, which changes with each release. MLIR prints the generic
form for invalid TTIR. So an attribute of the wrong type is added to a copy, which makes the copy invalid.
"""

from __future__ import annotations

from pathlib import Path

from tilewright.errors import ToolFailed
from tilewright.tools.child import workplace


def generic_text(ttir: str) -> str:
    """Returns TTIR in generic form. Raises ToolFailed if Triton cannot read the TTIR or does not print the generic
    form."""
    from triton._C.libtriton import ir

    context = ir.context()
    ir.load_dialects(context)
    with workplace() as folder:
        path = Path(folder, "kernel.ttir")
        path.write_text(ttir)
        try:
            module = ir.parse_mlir_module(str(path), context)
        except RuntimeError as error:
            raise ToolFailed(f"Triton cannot read its own TTIR: {error}") from None
    module.context = context
    module.set_attr("llvm.data_layout", ir.builder(context).get_int32_attr(0))
    text = str(module)
    if '"builtin.module"' not in text:
        raise ToolFailed("this release of Triton prints no generic form of TTIR; use triton 3.6 to 3.9")
    return text
