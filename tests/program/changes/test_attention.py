"""Hand-written attention → scaled_dot_product_attention: what is rewritten is equal, and near misses are left."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.program.changes.attention_programs import CHANGED_BUFFER, RIGHT, WRONG, AttentionProgram
from tests.program.changes.executing import outputs, read, rewritten, same

from tilewright.program.changes.scaled_dot_product_attention import CHANGE

SET_ASIDE = json.loads(Path(__file__).with_name("set_aside_attention.json").read_text())


@pytest.mark.parametrize("program", RIGHT, ids=lambda each: each.name)
def test_attention_is_found_and_equal(program: AttentionProgram) -> None:
    new = rewritten(CHANGE, program.source)
    assert "scaled_dot_product_attention(" in new
    assert program.says in new
    before, after = (outputs(text, program.call, program.inputs) for text in (program.source, new))
    assert same(before, after)
    assert not CHANGE.sites(read(new)), "nothing is left to change"
    assert "scaled_dot_product_attention" in CHANGE.present(read(new))


def test_a_mask_that_may_be_changed_is_passed_on() -> None:
    new = rewritten(CHANGE, CHANGED_BUFFER.source)
    assert "is_causal" not in new and "attn_mask=self.tril[:t, :t] != 0" in new
    before, after = (outputs(each, CHANGED_BUFFER.call, CHANGED_BUFFER.inputs) for each in (CHANGED_BUFFER.source, new))
    assert same(before, after)


@pytest.mark.parametrize("program", WRONG, ids=lambda each: each.name)
def test_near_misses_are_left(program: AttentionProgram) -> None:
    module = read(program.source)
    assert not CHANGE.sites(module)
    assert program.says in "; ".join(miss.reason for miss in CHANGE.near_misses(module))


@pytest.mark.parametrize("program", SET_ASIDE, ids=lambda each: each["name"])
def test_programs_that_were_set_aside(program: dict[str, object]) -> None:
    text = "\n".join(program["source"]) + "\n"  # type: ignore[call-overload]
    if program["expect"] == "left":
        assert not CHANGE.sites(read(text))
    else:
        call, inputs = str(program["call"]), program["inputs"]
        before, after = (outputs(each, call, inputs) for each in (text, rewritten(CHANGE, text)))  # type: ignore[arg-type]
        assert same(before, after)
