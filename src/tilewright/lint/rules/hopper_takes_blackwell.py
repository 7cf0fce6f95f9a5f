"""Hopper is given the tiles of Blackwell.

Hopper has no tensor memory: accumulators sit in registers, and tiles of 256 spill. Of TileGym's matmul list 256×256×64,
512×256×64 and 256×256×128 make 1240 to 1590 spill stores on sm_90; attention tiles of 256×128 make 4029.

Fix: add a branch for capability 9 with tiles of 64 to 128, or keep large tiles to num_ctas 2 and more.

Sources: TileGym 1.5.1: ops/cutile/matmul.py.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Iterator, Sequence

from tilewright.lint.rule import LintFinding, Rule
from tilewright.source.cutile import searches
from tilewright.source.source_file import SourceFile, keywords, names
from tilewright.source.values import Unread, value_of

LARGE = 256
CAPABILITY = "torch.cuda.get_device_capability"


class HopperTakesBlackwell(Rule):
    code = "TW109"
    level = "warning"

    def findings(self, file: SourceFile) -> Iterator[LintFinding]:
        for function in file.every(ast.FunctionDef) if searches(file) else ():
            name = _capability(file, function)
            for chain in file.every(ast.If, function) if name else ():
                above = file.parent(chain)
                is_elif = isinstance(above, ast.If) and chain in above.orelse
                hopper, blackwell = (_taken(chain, name, major) for major in (9, 10))
                place = _large(file, hopper) if hopper is blackwell and not is_elif else None
                if place is not None:
                    yield self.at(
                        file, place,
                        f"capability 9 takes the same branch of {function.name} as capability 10, with tiles of "
                        f"{LARGE} and more",
                    )  # fmt: skip


def _capability(file: SourceFile, function: ast.FunctionDef) -> str:
    """The name that holds the capability."""
    for node in file.every(ast.Assign, function):
        asked = isinstance(node.value, ast.Call) and file.dotted(node.value.func) == CAPABILITY
        if asked and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            return node.targets[0].id
    return ""


def _taken(chain: ast.If, name: str, major: int) -> Sequence[ast.stmt]:
    """The branch that a capability takes; none where the chain asks for anything else."""
    holds = value_of(chain.test, {name: [major, 0]})
    if isinstance(holds, Unread) or name not in names(chain.test):
        return ()
    if holds:
        return chain.body
    if len(chain.orelse) == 1 and isinstance(chain.orelse[0], ast.If):
        return _taken(chain.orelse[0], name, major)
    return chain.orelse


def _large(file: SourceFile, branch: Sequence[ast.stmt]) -> ast.AST | None:
    """The first configuration of the branch with a large tile and one CTA."""
    for call in (call for statement in branch for call in file.every(ast.Call, statement)):
        given = {name: value_of(value, {}) for name, value in keywords(call).items()}
        tiles = [v for k, v in given.items() if k.startswith(("TILE", "BLOCK")) and not k.endswith("_K")]
        extents = [extent for extent in tiles if isinstance(extent, int)]
        ctas = given.get("num_ctas", 1)
        if not extents or not isinstance(ctas, int) or not ctas:
            continue
        if max(extents) >= LARGE and (ctas == 1 or math.prod(extents) // ctas >= LARGE * LARGE):
            return call
    return None


RULE = HopperTakesBlackwell()
