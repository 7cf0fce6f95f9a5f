"""An environment variable is set that nothing reads.

DISABLE_AUTOTUNE and DISABLE_CUTILE_TUNE are read nowhere in TileGym, whose own CI sets the first; no variable turns on
flush-to-zero or approximate arithmetic in cuda-tile 1.7. Of all these only Tilewright's own wrapper honours
DISABLE_AUTOTUNE=1.

Fix: set the name that is read: TILEGYM_DISABLE_AUTOTUNE, or the operation's own argument.

Sources: cuda-tile 1.7; TileGym 1.5.1.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tilewright.lint.rule import LintFinding, Rule
from tilewright.source.source_file import SourceFile

UNREAD = {
    "DISABLE_AUTOTUNE": "TILEGYM_DISABLE_AUTOTUNE=1 is what TileGym reads",
    "DISABLE_CUTILE_TUNE": "TILEGYM_DISABLE_AUTOTUNE=1 is what TileGym reads",
    "TILEIR_ENABLE_FTZ": "pass flush_to_zero=True to the operations",
    "TILEIR_ENABLE_APPROX": "pass rounding_mode=ct.RoundingMode.APPROX to the operations",
    "TILEIR_OPT_LEVEL": "pass opt_level= to ct.kernel",
    "ENABLE_TILE": "it belongs to Triton's back end",
}
"""Variables that neither cuda-tile 1.7 nor TileGym 1.5 reads → what does the job."""
SETS = {"os.environ.setdefault", "os.putenv", "monkeypatch.setenv"}
ASKS = {"os.environ.get", "os.getenv"}


class DeadSwitch(Rule):
    code = "TW207"
    level = "warning"

    def findings(self, file: SourceFile) -> Iterator[LintFinding]:
        packages = {origin.split(".")[0] for origin in file.imports.values()}
        if packages & {"triton", "tilewright"} or not packages & {"cuda", "tilegym"}:
            return
        asked = {name for _, name in _variables(file, ASKS, ast.Load)}
        for node, name in _variables(file, SETS, ast.Store):
            if name in UNREAD and name not in asked:
                yield self.at(file, node, f"nothing reads {name}: {UNREAD[name]}")


def _variables(file: SourceFile, calls: set[str], context: type[ast.Load | ast.Store]) -> Iterator[tuple[ast.AST, str]]:
    """Places where the file reads or sets an environment variable whose name it writes."""
    for node in file.nodes:
        key: ast.expr | None = None
        if isinstance(node, ast.Subscript) and isinstance(node.ctx, context):
            key = node.slice if file.dotted(node.value) == "os.environ" else None
        elif isinstance(node, ast.Call) and file.dotted(node.func) in calls:
            key = node.args[0] if node.args else None
        if isinstance(key, ast.Constant):
            yield node, str(key.value)


RULE = DeadSwitch()
