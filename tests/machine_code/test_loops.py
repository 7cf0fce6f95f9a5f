"""The loops of machine code: made-up code with known branches, and products whose trip counts follow from the work."""

from __future__ import annotations

import pytest
from tests.compile.test_screen import H200, PRODUCT
from tests.machine_code.test_machine_code import code_of, product

from tilewright.hardware.executions import Executions, parts, shape_of
from tilewright.machine_code.loops import Instruction, LoopSpan, loops


def code(*lines: str) -> list[Instruction]:
    """``BRA 3`` branches to place 3 if a condition holds, ``JMP 3`` always; other words are plain instructions."""
    made = []
    for line in lines:
        opcode, _, target = line.partition(" ")
        made.append(Instruction("BRA", int(target), opcode == "BRA") if target else Instruction(opcode))
    return made


def test_a_loop_within_a_loop() -> None:
    found = loops(code("MOV", "MOV", "FADD", "FMUL", "BRA 2", "MOV", "BRA 1", "EXIT"))
    assert found == (LoopSpan((1, 5, 6), None), LoopSpan((2, 3, 4), 0))


def test_a_branch_back_from_code_out_of_line_is_no_loop() -> None:
    """tileiras puts what rarely runs behind the end, from where it jumps back."""
    assert loops(code("MOV", "BRA 5", "FADD", "MOV", "EXIT", "MOV", "JMP 2")) == ()


def test_a_loop_that_waits_belongs_to_the_code_around_it() -> None:
    assert loops(code("MOV", "SYNCS.PHASECHK", "BRA 1", "EXIT")) == ()
    around = loops(code(*["FADD"] * 6, "SYNCS.PHASECHK", "BRA 6", "BRA 0", "EXIT"))
    assert around == (LoopSpan(tuple(range(9)), None),)


@pytest.mark.parametrize("lines", [(), ("EXIT",), ("JMP 0",), ("BRA 9", "EXIT"), ("NOP", "NOP")])
def test_odd_code_has_an_answer(lines: tuple[str, ...]) -> None:
    for span in loops(code(*lines)):
        assert span.own


def test_a_listed_branch_is_read() -> None:
    assert Instruction.of({"opcode": "BRA", "operands": "0x1dc0", "predicate": "@P0"}) == Instruction("BRA", 476, True)
    assert Instruction.of({"opcode": "BRA.U", "operands": "!UP0,0x40"}) == Instruction("BRA.U", 4, True)
    assert Instruction.of({"opcode": "BRA", "operands": "0x40"}).moved(3) == Instruction("BRA", 1, False)
    assert Instruction.of({"opcode": "EXIT"}) == Instruction("EXIT")


def test_the_loop_of_a_product_runs_as_often_as_the_work_asks() -> None:
    """All tensor instructions that run, times their FLOP, are the FLOP of the product."""
    found = code_of(product("sm_90"))
    assert found.tensor_flops and any(loop.tensor_flops for loop in found.loops)
    shape = shape_of(found, (1024,), H200)
    executed = Executions(found, shape, PRODUCT)
    flops = executed.total(lambda region: region.tensor_flops) * executed.warps * shape.ctas
    assert flops == pytest.approx(PRODUCT.flops)


def test_the_parts_of_a_code_are_the_whole_code() -> None:
    found = code_of(product("sm_90"))
    outside, inside = parts(found)
    assert sum(sum(part.mix.values()) for part in (outside, *inside)) == found.instructions
    assert sum(part.tensor_flops for part in (outside, *inside)) == found.tensor_flops
