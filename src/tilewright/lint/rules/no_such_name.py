"""TW302: names that cuda.tile does not have (X-18)."""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from tilewright.lint.findings import About, Finding
from tilewright.source.source_file import SourceFile

INSTEAD = {
    "constexpr": "annotate the parameter with ct.Constant[int]",
    "autotune_launch": "use cuda.tile.tune.exhaustive_search and ct.launch",
    "cast": "use ct.astype",
    "program_id": "use ct.bid",
    "num_programs": "use ct.num_blocks",
    "dot": "use ct.mma",
    "sigmoid": "write 1 / (1 + ct.exp(-x))",
    "clamp": "use ct.minimum and ct.maximum",
}


class NoSuchName:
    about = About(
        code="TW302",
        name="no-such-name",
        level="error",
        title="cuda.tile has no such name",
        why="Documents and models carry over names of other languages, such as ct.constexpr, which does not "
        "exist (X-18): AttributeError when the line runs. Compared with the cuda-tile that is installed "
        "beside Tilewright.",
        fix="see the message, or cuda.tile's own list of names",
        sources=("X-18",),
    )

    def findings(self, file: SourceFile) -> Iterator[Finding]:
        known = names_of_cutile()
        for node in file.every(ast.Attribute) if known else ():
            if file.dotted(node.value) != "cuda.tile" or node.attr in known or node.attr.startswith("_"):
                continue
            if not self._tried(file, node):
                instead = INSTEAD.get(node.attr)
                yield self.about.at(file, node, f"cuda.tile has no {node.attr}" + (f"; {instead}" if instead else ""))

    def _tried(self, file: SourceFile, node: ast.AST) -> bool:
        return any(isinstance(parent, ast.Try) for parent, _ in file.above(node))


@cache
def names_of_cutile() -> frozenset[str]:
    """What `import cuda.tile` offers, read from its text; empty where it is not installed."""
    cuda = importlib.util.find_spec("cuda")
    for folder in cuda.submodule_search_locations or () if cuda is not None else ():
        package = Path(folder) / "tile"
        if not (package / "__init__.py").is_file():
            continue
        tree = ast.parse((package / "__init__.py").read_text(encoding="utf-8"))
        found = {alias.asname or alias.name for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)
                 for alias in node.names}  # fmt: skip
        return frozenset(found | {path.stem for path in package.iterdir() if not path.name.startswith("_")})
    return frozenset()


RULE = NoSuchName()
