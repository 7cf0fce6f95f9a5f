"""Where a file asks whether tuning is switched off, and the names that nothing asks for."""

from __future__ import annotations

import ast
import re

from tilewright.source.source_file import SourceFile, remembered

ASKS = re.compile(
    r"(auto_?)?tun(e|ing).*(disabled|enabled|allowed)|(disable|enable|use|skip)_(auto)?_?tun(e|ing)", re.I
)
VARIABLES = re.compile(r"TUNE|TUNING")
READERS = {"os.environ.get", "os.getenv", "os.environ"}

UNREAD = {
    "DISABLE_AUTOTUNE": "TILEGYM_DISABLE_AUTOTUNE=1 is what TileGym reads",
    "DISABLE_CUTILE_TUNE": "TILEGYM_DISABLE_AUTOTUNE=1 is what TileGym reads",
    "TILEIR_ENABLE_FTZ": "pass flush_to_zero=True to the operations",
    "TILEIR_ENABLE_APPROX": "pass rounding_mode=ct.RoundingMode.APPROX to the operations",
    "TILEIR_OPT_LEVEL": "pass opt_level= to ct.kernel",
    "ENABLE_TILE": "it belongs to Triton's back end",
}
"""Variables that neither cuda-tile 1.7 nor TileGym 1.5 reads → what does the job (X-03, X-06)."""


@remembered
def switches(file: SourceFile) -> tuple[ast.AST, ...]:
    """Calls that ask for a switch, reads of such an environment variable, and parameters of that name."""
    found: list[ast.AST] = []
    for node in file.nodes:
        if isinstance(node, ast.Call):
            last = file.dotted(node.func).rpartition(".")[2]
            first = node.args[0] if node.args else None
            word = str(first.value) if isinstance(first, ast.Constant) else ""
            read = ast.unparse(first) if first is not None and file.dotted(node.func) in READERS else ""
            if ASKS.search(last) or ASKS.search(word) or VARIABLES.search(read):
                found.append(node)
        elif isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load):
            if file.dotted(node.value) in READERS and VARIABLES.search(ast.unparse(node.slice)):
                found.append(node)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and ASKS.search(node.id):
            parent = file.parent(node)
            if not isinstance(parent, ast.Call) or parent.func is not node:  # a call is found as one
                found.append(node)
    return tuple(found)
