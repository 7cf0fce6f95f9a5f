"""cuda.tile has no such name.

Documents and models carry over names of other languages, such as ct.constexpr, which does not exist in cuda-tile 1.7:
AttributeError when the line runs. Compared with the cuda-tile that is installed beside Tilewright.

Fix: see the message, or cuda.tile's own list of names.

Sources: cuda-tile 1.7.
"""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from tilewright.lint.rule import LintFinding, Rule
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


class NoSuchName(Rule):
    code = "TW302"

    def findings(self, file: SourceFile) -> Iterator[LintFinding]:
        known = names_of_cutile()
        for node in file.every(ast.Attribute) if known else ():
            if file.dotted(node.value) != "cuda.tile" or node.attr in known or node.attr.startswith("_"):
                continue
            if not any(isinstance(parent, ast.Try) for parent, _ in file.above(node)):
                instead = f"; {INSTEAD[node.attr]}" if node.attr in INSTEAD else ""
                yield self.at(file, node, f"cuda.tile has no {node.attr}{instead}")


@cache
def names_of_cutile() -> frozenset[str]:
    """What `import cuda.tile` offers, read from its text; empty where it is not installed."""
    cuda = importlib.util.find_spec("cuda")
    for folder in cuda.submodule_search_locations or () if cuda is not None else ():
        package = Path(folder) / "tile"
        if (package / "__init__.py").is_file():
            submodules = {path.stem for path in package.iterdir() if not path.name.startswith("_")}
            return frozenset(submodules | SourceFile.read(package / "__init__.py").imports.keys())
    return frozenset()


RULE = NoSuchName()
