"""Sets ``torch.backends.cudnn.benchmark = True``: cuDNN times its algorithms once for each shape."""

from __future__ import annotations

from collections.abc import Iterator

from tilewright.program.changes.base import ChangeSite, NearMiss, ProgramChange
from tilewright.program.reading.module import ReadModule
from tilewright.program.reading.scripts import after_imports

SETTING = "torch.backends.cudnn.benchmark"
DETERMINISTIC = ("torch.backends.cudnn.deterministic", "torch.use_deterministic_algorithms")
CONVOLUTIONS = tuple(f"torch.nn.{name}{n}d" for name in ("Conv", "ConvTranspose") for n in (1, 2, 3))


class CudnnBenchmark(ProgramChange):
    name = "cudnn_benchmark"
    about = "lets cuDNN time its algorithms once for each shape of a convolution, and use the fastest"
    words = ("cudnn benchmark", "cudnn.benchmark", "convolution algorithm")
    findings = ()
    order = 70
    absent = "the program is no script with convolutions"

    def look(self, module: ReadModule) -> Iterator[ChangeSite | NearMiss]:
        layer = next(module.calls(*CONVOLUTIONS), None)
        if layer is None or self.present(module):
            return
        if fixed := next((node for node in module.file.nodes if module.full(node) in DETERMINISTIC), None):
            yield NearMiss(getattr(fixed, "lineno", 1), "the program asks for deterministic algorithms")
            return
        edit = after_imports(module, f"{{{SETTING}}} = True", "torch")
        if edit is not None:
            yield ChangeSite(layer.lineno, "convolutions", (edit,), "another algorithm may round differently")

    def present(self, module: ReadModule) -> str:
        node = next((node for node in module.file.nodes if module.full(node) == SETTING), None)
        return f"{module.place(node)} sets {SETTING}" if node is not None else ""


CHANGE = CudnnBenchmark()
