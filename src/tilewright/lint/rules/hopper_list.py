"""TW109: Hopper falls into Blackwell's list of tiles (W2)."""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from tilewright.lint.findings import About, Finding
from tilewright.source.cutile import searches
from tilewright.source.source_file import SourceFile, keywords

HOPPER, BLACKWELL = (9, 0), (10, 0)
LARGE = 256
COMPARED: Mapping[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.In: lambda left, right: left in right,
    ast.NotIn: lambda left, right: left not in right,
}
CAPABILITY = "torch.cuda.get_device_capability"


class HopperList:
    about = About(
        code="TW109",
        name="hopper-takes-blackwell",
        level="warning",
        title="Hopper is given the tiles of Blackwell",
        why="Hopper has no tensor memory: accumulators sit in registers, and tiles of 256 spill. Of "
        "TileGym's matmul list 256×256×64, 512×256×64 and 256×256×128 make 1240 to 1590 spill stores on "
        "sm_90 (W2); attention tiles of 256×128 make 4029.",
        fix="add a branch for capability 9 with tiles of 64 to 128, or keep large tiles to num_ctas 2 and more",
        sources=("W2",),
    )

    def findings(self, file: SourceFile) -> Iterator[Finding]:
        if not searches(file):
            return
        for function in file.every(ast.FunctionDef):
            name = self._capability(file, function)
            chains = [
                node for node in file.every(ast.If, function)
                if not (isinstance(parent := file.parent(node), ast.If) and node in parent.orelse)
            ]  # fmt: skip
            for chain in chains if name else ():
                branch = self._shared(chain, name)
                place = self._large(file, branch) if branch else None
                if place is not None:
                    yield self.about.at(
                        file, place,
                        f"capability 9 takes the same branch of {function.name} as capability 10, with tiles of "
                        f"{LARGE} and more",
                    )  # fmt: skip

    def _capability(self, file: SourceFile, function: ast.FunctionDef) -> str:
        """The name that holds the capability."""
        for node in file.every(ast.Assign, function):
            call = node.value
            asked = isinstance(call, ast.Call) and file.dotted(call.func) == CAPABILITY
            if asked and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
                return node.targets[0].id
        return ""

    def _shared(self, chain: ast.If, name: str) -> list[ast.stmt] | None:
        """The branch that both take, of a chain that tells architectures apart."""
        taken = [self._taken(chain, name, capability) for capability in (HOPPER, BLACKWELL)]
        return taken[0] if taken[0] is not None and taken[0] is taken[1] else None

    def _taken(self, chain: ast.If, name: str, capability: tuple[int, int]) -> list[ast.stmt] | None:
        holds = _holds(chain.test, name, capability)
        if holds is None:
            return None
        if holds:
            return chain.body
        if len(chain.orelse) == 1 and isinstance(chain.orelse[0], ast.If):
            return self._taken(chain.orelse[0], name, capability)
        return chain.orelse

    def _large(self, file: SourceFile, branch: list[ast.stmt]) -> ast.AST | None:
        """The first configuration of the branch with a large tile and one CTA."""
        for statement in branch:
            for call in file.every(ast.Call, statement):
                given = keywords(call)
                tiles = [v for k, v in given.items() if k.startswith(("TILE", "BLOCK")) and not k.endswith("_K")]
                extents = [v.value for v in tiles if isinstance(v, ast.Constant) and isinstance(v.value, int)]
                clusters = given.get("num_ctas")
                ctas = clusters.value if isinstance(clusters, ast.Constant) else 1 if clusters is None else 0
                if not extents or not isinstance(ctas, int) or not ctas:
                    continue
                if max(extents) >= LARGE and (ctas == 1 or math.prod(extents) // ctas >= LARGE * LARGE):
                    return call
        return None


def _holds(test: ast.expr, name: str, capability: tuple[int, int]) -> bool | None:
    """What a test of the capability alone says; None where it asks for anything else."""
    if isinstance(test, ast.BoolOp):
        parts = [_holds(one, name, capability) for one in test.values]
        if None in parts:
            return None
        return all(parts) if isinstance(test.op, ast.And) else any(parts)
    if not isinstance(test, ast.Compare) or len(test.ops) != 1:
        return None
    left = _number(test.left, name, capability)
    try:
        right = ast.literal_eval(test.comparators[0])
    except ValueError:
        return None
    if left is None:
        return None
    compared = COMPARED.get(type(test.ops[0]))
    try:
        return None if compared is None else bool(compared(left, right))
    except TypeError:
        return None


def _number(node: ast.expr, name: str, capability: tuple[int, int]) -> tuple[int, int] | int | None:
    if isinstance(node, ast.Name) and node.id == name:
        return capability
    return {f"{name}[0]": capability[0], f"{name}[1]": capability[1]}.get(ast.unparse(node))


RULE = HopperList()
