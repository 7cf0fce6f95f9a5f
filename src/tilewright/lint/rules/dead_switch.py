"""TW207: setting an environment variable that nothing reads (X-03, X-06)."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tilewright.lint.findings import About, Finding
from tilewright.lint.switches import UNREAD
from tilewright.source.source_file import SourceFile


class DeadSwitch:
    about = About(
        code="TW207",
        name="dead-switch",
        level="warning",
        title="an environment variable is set that nothing reads",
        why="DISABLE_AUTOTUNE and DISABLE_CUTILE_TUNE are read nowhere in TileGym, whose own CI sets the "
        "first (X-03); no variable turns on flush-to-zero or approximate arithmetic in cuda-tile (X-06). Of "
        "all these only Tilewright's own wrapper honours DISABLE_AUTOTUNE=1.",
        fix="set the name that is read: TILEGYM_DISABLE_AUTOTUNE, or the operation's own argument",
        sources=("X-03", "X-06"),
    )

    def findings(self, file: SourceFile) -> Iterator[Finding]:
        known = {origin.split(".")[0] for origin in file.imports.values()}
        if "triton" in known or not known & {"cuda", "tilegym"} or "tilewright" in known:
            return
        read = self._read_here(file)
        for node in file.nodes:
            name = self._set(file, node)
            if name in UNREAD and name not in read:
                yield self.about.at(file, node, f"nothing reads {name}: {UNREAD[name]}")

    def _set(self, file: SourceFile, node: ast.AST) -> str:
        key: ast.AST | None = None
        if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store):
            key = node.slice if file.dotted(node.value) == "os.environ" else None
        elif isinstance(node, ast.Call) and file.dotted(node.func) in {
            "os.environ.setdefault", "os.putenv", "monkeypatch.setenv",
        }:  # fmt: skip
            key = node.args[0] if node.args else None
        return str(key.value) if isinstance(key, ast.Constant) else ""

    def _read_here(self, file: SourceFile) -> set[str]:
        """Names that the file itself asks for."""
        found = set()
        for node in file.nodes:
            if isinstance(node, ast.Call) and file.dotted(node.func) in {"os.environ.get", "os.getenv"}:
                found |= {one.value for one in node.args if isinstance(one, ast.Constant)}
            elif isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load):
                read = file.dotted(node.value) == "os.environ"
                found |= {node.slice.value} if read and isinstance(node.slice, ast.Constant) else set()
        return {str(name) for name in found}


RULE = DeadSwitch()
