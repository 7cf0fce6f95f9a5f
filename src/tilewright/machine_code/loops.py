"""Finds the loops of machine code, and the instructions of each loop.

The branches of the code give its basic blocks. A branch back to a block that dominates it closes a loop. A loop that
only waits for a barrier and does no work counts as part of the code around it.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

INSTRUCTION_BYTES = 16  # since sm_70
WAITING = 8
"""A loop with a synchronisation and at most this many instructions counts as a wait for a barrier."""
_TARGET = re.compile(r"(?:^|,)0x([0-9a-f]+)$")
_CONDITION = re.compile(r"!?U?P\d")
_ENDS = ("EXIT", "RET")
_WAITS = ("SYNCS", "NANOSLEEP", "WARPSYNC", "BAR", "ATOM", "LD")


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction. ``target``: the index of the branch target; None if it is unknown or this is no branch."""

    opcode: str
    target: int | None = None
    conditional: bool = False
    operands: str = ""

    @classmethod
    def of(cls, listed: Mapping[str, object]) -> Instruction:
        """Reads an instruction from one entry of the output of ``nvdisasm -json``."""
        opcode, operands = str(listed["opcode"]), str(listed.get("operands", ""))
        if not opcode.startswith(("BRA", "EXIT", "RET")):
            return cls(opcode, operands=operands)
        address = _TARGET.search(operands) if opcode.startswith("BRA") else None
        target = int(address.group(1), 16) // INSTRUCTION_BYTES if address else None
        return cls(opcode, target, "predicate" in listed or _CONDITION.match(operands) is not None)

    def moved(self, by: int) -> Instruction:
        """Returns this instruction with a ``target`` that is smaller by ``by``, for code that begins later."""
        return self if self.target is None or not by else replace(self, target=self.target - by)

    @property
    def base(self) -> str:
        return self.opcode.partition(".")[0]


@dataclass(frozen=True)
class LoopSpan:
    """A loop.

    own: the indices of the loop's instructions, without the instructions of inner loops.
    inside: the index of the surrounding loop in the list of loops; None if there is none.
    """

    own: tuple[int, ...]
    inside: int | None


def loops(code: Sequence[Instruction]) -> tuple[LoopSpan, ...]:
    """Returns the loops of ``code``, outer loops first."""
    if not code:
        return ()
    graph = _Graph(code)
    found = [(head, blocks) for head, blocks in graph.loops().items() if not graph.waits(blocks)]
    found.sort(key=lambda loop: (-len(loop[1]), loop[0]))
    spans = []
    for place, (_, blocks) in enumerate(found):
        inside: set[int] = set().union(*(other for _, other in found[place + 1 :] if other < blocks))
        around = [at for at, (_, other) in enumerate(found[:place]) if blocks < other]
        spans.append(LoopSpan(tuple(graph.places(blocks - inside)), around[-1] if around else None))
    return tuple(spans)


class _Graph:
    """Basic blocks, numbered in the order of the code, and the branches between them."""

    def __init__(self, code: Sequence[Instruction]) -> None:
        self.code = code
        targets = {
            at: each.target for at, each in enumerate(code) if each.target is not None and 0 <= each.target < len(code)
        }
        leaders = {0, *targets.values(), *(at + 1 for at in targets)}
        ends = {opcode for opcode in {each.opcode for each in code} if opcode.partition(".")[0] in _ENDS}
        leaders |= {at + 1 for at, each in enumerate(code) if each.opcode in ends}
        self.starts = sorted(leader for leader in leaders if leader < len(code))
        self.ends = [*self.starts[1:], len(code)]
        block = {start: number for number, start in enumerate(self.starts)}
        self.after: list[list[int]] = []
        for number, end in enumerate(self.ends):
            last, following = code[end - 1], [number + 1] if end < len(code) else []
            if end - 1 in targets:
                self.after.append([block[targets[end - 1]], *(following if last.conditional else [])])
            else:
                self.after.append(following if last.base not in _ENDS or last.conditional else [])
        self.order = self._order()
        self.before: Mapping[int, list[int]] = self._before()
        self.dominator = self._dominators()

    def places(self, blocks: set[int]) -> Iterator[int]:
        for block in sorted(blocks):
            yield from range(self.starts[block], self.ends[block])

    def loops(self) -> dict[int, set[int]]:
        """Returns the blocks of each loop, by the loop's first block."""
        found: dict[int, set[int]] = {}
        for block in self.order:
            for head in self.after[block]:
                if self._dominates(head, block):
                    body, open_ = found.setdefault(head, {head}), [block]
                    while open_:
                        if (one := open_.pop()) not in body:
                            body.add(one)
                            open_ += self.before[one]
        return found

    def waits(self, blocks: set[int]) -> bool:
        if sum(self.ends[block] - self.starts[block] for block in blocks) > WAITING:
            return False
        return any(self.code[place].base.startswith(_WAITS) for place in self.places(blocks))

    def _order(self) -> list[int]:
        """Returns the reachable blocks in reverse postorder."""
        done: list[int] = []
        seen, path = {0}, [(0, iter(self.after[0]))]
        while path:
            block, following = path[-1]
            new = next((each for each in following if each not in seen), None)
            if new is None:
                done.append(block)
                path.pop()
            else:
                seen.add(new)
                path.append((new, iter(self.after[new])))
        return done[::-1]

    def _before(self) -> dict[int, list[int]]:
        before: dict[int, list[int]] = defaultdict(list)
        for block in self.order:
            for following in self.after[block]:
                before[following].append(block)
        return before

    def _dominators(self) -> dict[int, int]:
        """Returns the immediate dominator of each block (Cooper, Harvey and Kennedy, A Simple, Fast Dominance
        Algorithm)."""
        rank = {block: place for place, block in enumerate(self.order)}
        found, changed = {0: 0}, True
        while changed:
            changed = False
            for block in self.order[1:]:
                one, *others = [each for each in self.before[block] if each in found]
                for other in others:
                    while one != other:
                        if rank[one] > rank[other]:
                            one = found[one]
                        else:
                            other = found[other]
                if found.get(block) != one:
                    found[block], changed = one, True
        return found

    def _dominates(self, head: int, block: int) -> bool:
        while block not in (head, 0):
            block = self.dominator[block]
        return block == head
