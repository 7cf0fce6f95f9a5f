"""``torch.set_float32_matmul_precision("high")``: float32 matrix products by TensorFloat-32. Only if it is allowed."""

from __future__ import annotations

from collections.abc import Iterator

from tilewright.program.changes.base import ChangeSite, NearMiss, ProgramChange
from tilewright.program.reading.module import ReadModule
from tilewright.program.reading.scripts import after_imports

SETTING = "torch.set_float32_matmul_precision"


class Float32MatmulPrecision(ProgramChange):
    name = "float32_matmul_precision"
    about = "multiplies float32 matrices with the tensor cores, which keep 10 bits of each factor's fraction"
    risk = "lossy"
    words = ("tf32", "tensorfloat*", "set_float32_matmul_precision", "float32 matmul precision", "matmul precision",
             "tensor core float32", "lower precision")  # fmt: skip
    findings = ("float32-products",)
    ran = (r"(?i)tf32|tensorop|s1688|s16816gemm",)
    gone = (r"(?i)sgemm|ffma|simt",)
    order = 40
    asked_only = True
    absent = "the program is no script that imports torch"

    def look(self, module: ReadModule) -> Iterator[ChangeSite | NearMiss]:
        if self.present(module):
            return
        edit = after_imports(module, f'{{{SETTING}}}("high")', "torch")
        if edit is not None:
            note = "products are rounded to TensorFloat-32"
            yield ChangeSite(module.line_of(edit), "float32 matrix products", (edit,), note)

    def present(self, module: ReadModule) -> str:
        for node in module.file.nodes:
            if module.full(node) in (SETTING, "torch.backends.cuda.matmul.allow_tf32"):
                return f"{module.place(node)} sets the precision of float32 products"
        return ""


CHANGE = Float32MatmulPrecision()
