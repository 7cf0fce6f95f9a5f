"""Finds where a file asks whether tuning is switched off."""

from __future__ import annotations

import ast
import re

from tilewright.source.source_file import SourceFile, remembered

ASKS = re.compile(
    r"(auto_?)?tun(e|ing).*(disabled|enabled|allowed)|(disable|enable|use|skip)_(auto)?_?tun(e|ing)", re.I
)
VARIABLES = re.compile(r"TUNE|TUNING")
READERS = {"os.environ.get", "os.getenv", "os.environ"}


@remembered
def switches(file: SourceFile) -> tuple[ast.AST, ...]:
    """Calls that ask for the switch, reads of its environment variable, and names such as ``use_tuning``."""
    asking: list[ast.AST] = []
    for node in file.nodes:
        if isinstance(node, ast.Call):
            called = file.dotted(node.func)
            first = node.args[0] if node.args else None
            word = str(first.value) if isinstance(first, ast.Constant) else ""
            read = ast.unparse(first) if first is not None and called in READERS else ""
            asks = ASKS.search(called.rpartition(".")[2]) or ASKS.search(word) or VARIABLES.search(read)
        elif isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load):
            asks = VARIABLES.search(ast.unparse(node.slice)) if file.dotted(node.value) in READERS else None
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            parent = file.parent(node)  # the name of a called function counts as the call
            asks = None if isinstance(parent, ast.Call) and parent.func is node else ASKS.search(node.id)
        else:
            continue
        if asks:
            asking.append(node)
    return tuple(asking)
