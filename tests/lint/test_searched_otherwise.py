"""Keys that say too much, configurations that repeat, grids that do not follow the tile, and searches of something else
than what is launched (issue 19, point 13)."""

from __future__ import annotations

import pytest
from tests.lint.rule_examples import COPY
from tests.lint.rule_examples import HEAD as CUTILE
from tests.lint.triton_examples import BODY, HEAD, tuned

from tilewright.lint.rules import named
from tilewright.testing.rules import found


def messages(rule: str, text: str) -> list[str]:
    (one,) = named([rule])
    return [finding.message for finding in found(one, text)]


# Exact lengths in the key of a tuner ------------------------------------------------------------------

CALLED = HEAD + tuned('CONFIGS, key=["n"]') + "\n\ndef run(x, y, seq_len, groups):\n"


@pytest.mark.parametrize(
    ("before", "passed"),
    [
        ("", "x.numel()"),
        ("n = x.numel()", "n"),
        ("flat = x.reshape(-1, x.shape[-1])", "flat.shape[0]"),
        ("flat = x.view(-1, 64)", "flat.size(0)"),
        ("rows, size = x.reshape(-1, 64).shape", "rows"),
        ("", "x.numel() // x.shape[-1]"),
        ("", "seq_len"),
        ("", "2 * seq_len"),
    ],
)
def test_a_length_in_the_key_is_found_with_its_price(before: str, passed: str) -> None:
    (message,) = messages("TW610", f"{CALLED}    {before or 'pass'}\n    scale[(4,)](x, y, {passed})\n")
    assert message.startswith("the key of scale has the exact length n")
    assert message.endswith("each new length times 4 configurations again, for 0.5 s")


@pytest.mark.parametrize(
    ("before", "passed"),
    [
        ("", "groups"),
        ("", "x.shape[0]"),
        ("", "64"),
        ("", "triton.next_power_of_2(seq_len)"),
        ("", "min(seq_len, 4096)"),
        ("n = round_up(x.numel())", "n"),
        ("n = x.numel()\n    n = 64", "n"),
        ("", "x.numel() // groups"),
        ("", "weight.numel()"),
        ("rows, size = x.reshape(-1, 64).shape", "size"),
    ],
)
def test_a_size_of_the_model_and_a_rounded_length_are_left_alone(before: str, passed: str) -> None:
    assert not messages("TW610", f"{CALLED}    {before or 'pass'}\n    scale[(4,)](x, y, {passed})\n")


def test_a_length_that_is_a_constant_is_compiled_again_too() -> None:
    body = BODY.replace("n, BLOCK", "num_tokens: tl.constexpr, BLOCK").replace("at < n", "at < num_tokens")
    (message,) = messages("TW610", HEAD + tuned('CONFIGS, key=["num_tokens"]', body))
    assert "each new length compiles and times 4 configurations" in message
    assert not messages("TW610", HEAD + tuned('CONFIGS[:1], key=["num_tokens"]', body).replace("CONFIGS[:1]", ONE))


def test_a_length_that_the_packages_own_tuner_rounds_is_left_alone() -> None:
    body = BODY.replace("n, BLOCK", "num_tokens, BLOCK").replace("at < n", "at < num_tokens")
    assert messages("TW610", HEAD + tuned('CONFIGS, key=["num_tokens"], nearest=["other"]', body))
    assert not messages("TW610", HEAD + tuned('CONFIGS, key=["num_tokens"], nearest=["num_tokens"]', body))


ONE = '[triton.Config({"BLOCK": 64}), triton.Config({"BLOCK": 128})]'


def test_few_configurations_are_not_worth_a_finding() -> None:
    text = CALLED.replace("CONFIGS, key", f"{ONE}, key") + "    scale[(4,)](x, y, seq_len)\n"
    assert not messages("TW610", text)


# Configurations and grids -----------------------------------------------------------------------------


def test_two_branches_of_a_program_are_no_repetition() -> None:
    configs = "[triton.Config({'BLOCK': 64})]"
    assert not messages("TW611", HEAD + tuned(f"{configs} if DEBUG else {configs}, key=['n']"))
    (message,) = messages("TW611", HEAD + tuned("[triton.Config({'BLOCK': b}) for b in (64, 128, 64)], key=['n']"))
    assert message.startswith("1 of 3 configurations of scale repeat another")


@pytest.mark.parametrize("extent", ["n", "triton.cdiv(n, 32)", "triton.cdiv(n, block)", "triton.cdiv(n, 128) // 1"])
def test_a_grid_that_may_be_large_enough_is_left_alone(extent: str) -> None:
    text = f"{CALLED}    n, block = 4096, x.shape[0]\n    scale[({extent},)](x, y, n)\n"
    assert not messages("TW612", text)
    (message,) = messages("TW612", text.replace(f"({extent},)", "(triton.cdiv(n, 256),)"))
    assert message.endswith("with BLOCK=64, 75 % of the data are not computed")


def test_a_kernel_that_loops_over_tiles_may_have_any_grid() -> None:
    text = f"{CALLED}    scale[(triton.cdiv(x.shape[0], 256),)](x, y, 9)\n"
    assert messages("TW612", text)
    loops = text.replace("    at = ", "    for _ in range(tl.cdiv(n, tl.num_programs(0))):\n        pass\n    at = ")
    assert not messages("TW612", loops)


# Exact lengths in the key of a cache of cuTile --------------------------------------------------------


@pytest.mark.parametrize(
    ("size", "exact", "rounds"),
    [
        ("num_tokens", True, False),
        ("x.numel()", True, False),
        ("next_power_of_2(num_tokens)", False, False),
        ("next_power_of_2(features)", False, True),
        ("features", False, False),
    ],
)
def test_a_key_has_lengths_rounded_and_sizes_of_the_model_exact(size: str, exact: bool, rounds: bool) -> None:
    text = f"""{CUTILE}{COPY}
def run(x, y, num_tokens, features, stream):
    key = ({size}, x.dtype, str(x.device), x.stride(), x.data_ptr() % 16)
    if key not in _cache:
        _cache[key] = exhaustive_search([64], stream, lambda t: (8,), copy, lambda t: (x, y, t)).best.config
"""
    said = [f"the key of _cache has the exact length {size}: each new value is searched"]
    assert messages("TW209", text) == (said if exact else [])
    assert any("to a power of two" in message for message in messages("TW201", text)) == rounds


# What a search of cuTile times ------------------------------------------------------------------------

KERNELS = CUTILE + COPY + COPY.replace("def copy", "def other")
SEARCH = """\
def run(x, y, n, stream):
    {before}
    key = (n, x.dtype, str(x.device), x.stride(), x.data_ptr() % 16)
    if key not in _cache:
        _cache[key] = exhaustive_search([64], stream, lambda t: {grid}, copy, lambda t: {arguments}).best.config
    ct.launch(stream, (n, 1), {kernel}, (x, y, 64))
"""


def searched(before: str = "pass", grid: str = "(n, 1)", arguments: str = "(x, y, 64)", kernel: str = "copy") -> str:
    return KERNELS + SEARCH.format(before=before, grid=grid, arguments=arguments, kernel=kernel)


@pytest.mark.parametrize(
    ("difference", "said"),
    [
        ({"kernel": "other"}, "this launches other, but the search times copy"),
        ({"grid": "(n, 8)"}, "axis 1 of the grid is 1, but the search times 8"),
        ({"arguments": "(x, y, 128)"}, "TILE is 64 here, but 128 in the search"),
        ({"arguments": "(x[:64], y, 64)"}, "x is x here, but the search times the part x[:64]"),
        ({"before": "z = torch.rand(9)", "arguments": "(z, y, 64)"}, "x is x here, but the search times torch.rand(9)"),
    ],
)
def test_a_search_of_something_else_is_found(difference: dict[str, str], said: str) -> None:
    (message,) = messages("TW112", searched(**difference))
    assert message.startswith(said) and "(search in line" in message


@pytest.mark.parametrize(
    "same",
    [
        {},
        {"grid": "(n // t, 1)"},
        {"arguments": "(x, y, t)"},
        {"arguments": "(x.clone(), y, 64)"},
        {"before": "z = torch.empty(n)", "arguments": "(x, z, 64)"},
        {"before": "z = torch.rand(x.shape)", "arguments": "(z, y, 64)"},
        {"kernel": "copy.replace_hints(occupancy=2)"},
    ],
)
def test_the_same_work_is_left_alone(same: dict[str, str]) -> None:
    assert not messages("TW112", searched(**same))
