"""Chains of dependent loads in made-up machine code, and in a compiled kernel that follows a list of successors."""

from __future__ import annotations

import pytest

from tilewright.machine_code.chains import growth, longest
from tilewright.machine_code.loops import Instruction


def code(*lines: str) -> list[Instruction]:
    return [Instruction.of({"opcode": line.partition(" ")[0], "operands": line.partition(" ")[2]}) for line in lines]


@pytest.mark.parametrize(
    ("lines", "length"),
    [
        (("FADD R1,R2,R3",), 0),
        (("LDG.E R4,desc[UR4][R2.64]", "LDG.E R5,desc[UR4][R2.64+0x10]"), 1),
        (("LDG.E R4,desc[UR4][R2.64]", "IMAD.WIDE R6,R4,0x4,R8", "LDG.E R5,desc[UR4][R6.64]"), 2),
        (("LDG.E.128 R4,desc[UR4][R2.64]", "LEA R8,R7.reuse,R9,0x2", "LDG.E R5,desc[UR4][R8.64]"), 2),
        (("LDG.E R4,desc[UR4][R2.64]", "MOV R4,R9", "LDG.E R5,desc[UR4][R4.64]"), 1),
        (("LDG.E R4,desc[UR4][R2.64]", "STG.E desc[UR4][R2.64],R4", "LDG.E R5,desc[UR4][R2.64]"), 1),
        (("LDG.E R4,desc[UR4][R2.64]", "ISETP.GE.AND P0,PT,R4,R1,PT", "LDG.E R5,desc[UR4][R2.64]"), 1),
        (("LDG.E R4,desc[UR4][R2.64]", "R2UR UR6,R4", "LDG.E R5,desc[UR4][UR6]"), 2),
    ],
)
def test_a_chain_follows_values_into_addresses(lines: tuple[str, ...], length: int) -> None:
    assert longest(code(*lines)) == length


def test_a_loop_lengthens_a_chain_only_if_its_address_comes_from_the_iteration_before() -> None:
    assert growth(code("LDG.E R4,desc[UR4][R4.64]")) == 1
    assert growth(code("LDG.E R4,desc[UR4][R2.64]", "IADD3 R2,R2,0x10,RZ")) == 0


def test_instructions_without_operands_have_no_chain() -> None:
    assert longest([Instruction("LDG.E"), Instruction("EXIT")]) == 0
