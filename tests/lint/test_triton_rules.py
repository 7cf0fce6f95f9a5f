"""The rules about Triton, case by case: what is certain from the text is found, and nothing else."""

from __future__ import annotations

import pytest
from tests.lint.triton_examples import BODY, HEAD, IN_PLACE, KEYED, tuned

from tilewright.lint.rules import named
from tilewright.testing.rules import found


def messages(code: str, text: str) -> list[str]:
    (rule,) = named([code])
    return [finding.message for finding in found(rule, HEAD + text)]


# In-place updates -------------------------------------------------------------------------------------


def updated(body: str, decorator: str = 'CONFIGS, key=["n"]') -> list[str]:
    head = "def kernel(x, y, lock, n, FIRST: tl.constexpr, BLOCK: tl.constexpr):\n    at = tl.arange(0, BLOCK)\n"
    lines = "".join(f"    {line}\n" for line in body.strip().splitlines())
    return messages("TW601", f"@triton.autotune({decorator})\n@triton.jit\n{head}{lines}")


@pytest.mark.parametrize(
    "body",
    [
        "tl.atomic_add(x + at, 1.0)",
        "p = x + at\nvalue = tl.load(p)\ntl.store(p, value + 1)",
        "x += n\nvalue = tl.load(x + at)\ntl.store(x + at, value + 1)",
        "d = tl.make_tensor_descriptor(x, [n], [1], [BLOCK])\nvalue = d.load([0])\nd.store([0], value)",
        "if FIRST:\n    value = tl.load(x + at)\n    tl.store(x + at, value)",
        "for i in range(n):\n    value = tl.load(x + at)\n    if i > 0:\n        tl.store(x + at, value)",
        "tl.store(x + at, tl.load(x + at) + 1)",
    ],
)
def test_an_update_in_place_is_found(body: str) -> None:
    (message,) = updated(body)
    assert "updates x in place" in message
    assert message.endswith("add restore_value=['x']")


@pytest.mark.parametrize(
    "body",
    [
        "tl.store(y + at, tl.load(x + at))",
        "tl.store(x + at, 0.0)\nvalue = tl.load(x + at)\ntl.store(x + at, value)",
        "tl.store(x + at, 0.0)\ntl.atomic_add(x + at, 1.0)",
        "if FIRST:\n    value = tl.load(x + at)\nelse:\n    tl.store(x + at, 1.0)",
        "for i in range(n):\n    if i > 0:\n        value = tl.load(x + at)\n    tl.store(x + at, 1.0)",
        "tl.atomic_max(x + at, 1.0)",
        "while tl.atomic_cas(lock, 0, 1) == 1:\n    pass\ntl.atomic_xchg(lock, 0)",
        "p = x + at\nvalue = tl.load(p)\np = y + at\ntl.store(p, value)",
        "value = tl.load(x + at)\ntl.store(x + n + at, value)",
    ],
)
def test_what_a_second_trial_does_not_change_is_left_alone(body: str) -> None:
    assert not updated(body)


@pytest.mark.parametrize(
    "decorator",
    [
        'CONFIGS, key=["n"], restore_value=["x"]',
        'CONFIGS, key=["n"], reset_to_zero=("x",)',
        'CONFIGS, key=["n"], restore_value=NAMES',
        'CONFIGS, key=["n"], pre_hook=lambda arguments: arguments["x"].zero_()',
        '[triton.Config({"BLOCK": 64})], key=["n"]',
    ],
)
def test_no_trial_harms_what_is_restored_or_never_tuned(decorator: str) -> None:
    assert not updated("tl.atomic_add(x + at, 1.0)", decorator)


def test_an_update_by_another_function_counts_at_its_call() -> None:
    helper = "@triton.jit\ndef add(p, at):\n    tl.atomic_add(p + at, 1.0)\n\n\n"
    kernel = BODY.replace("tl.store(y + at, tl.load(x + at, at < n) * 2, at < n)", "add(y, at)")
    (message,) = messages("TW601", helper + tuned('CONFIGS, key=["n"]', kernel))
    assert "updates y in place" in message


def test_a_hook_that_only_sets_blocks_restores_nothing() -> None:
    config = 'CONFIGS = [triton.Config({"BLOCK": block}, pre_hook=hook) for block in (64, 128)]\n\n\n'
    tuner = tuned('CONFIGS, key=["n"]', IN_PLACE)
    sets = 'def hook(arguments):\n    arguments["x"].block_shape = [arguments["BLOCK"]]\n\n\n'
    (rule,) = named(["TW601"])
    start = HEAD[: HEAD.index("CONFIGS")]
    assert found(rule, start + sets + config + tuner)
    assert not found(rule, start + sets.replace("block_shape = ", "zero_() or ") + config + tuner)


# Keys -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "missing"),
    [('"n"', "leaves out N and STEPS ("), ('"n", "N"', "leaves out STEPS ("), ('"n", "STEPS"', "leaves out N (")],
)
def test_the_constants_that_a_key_leaves_out_are_named(key: str, missing: str) -> None:
    (message,) = messages("TW602", KEYED.format(key=key, mark=""))
    assert missing in message


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("STEPS=count", "STEPS=False"),
        ("STEPS=count", "STEPS=x.dtype == torch.float32"),
        ("STEPS=count", "STEPS=not isinstance(w, torch.Tensor)"),
        ("STEPS=count", "STEPS=size > 512"),
        ("STEPS=count", "STEPS=True if w is not None else False"),
        ("    for _ in tl.static_range(STEPS):\n        value = value + tl.load(x)", "    value += 1 if STEPS else -1"),
        ("    norm[", "    w = torch.ones(size) if count else None\n    norm["),
        ("    norm[", "    w = None\n    if count:\n        w = torch.ones(size)\n    norm["),
        ("norm[(4,)](x, y, w", "norm[(4,)](*more"),
    ],
)
def test_a_constant_that_the_key_determines_is_left_alone(old: str, new: str) -> None:
    text = KEYED.format(key='"N", "STEPS"', mark="").replace(', "STEPS"]', "]")
    assert messages("TW602", text)
    assert not messages("TW602", text.replace(old, new).replace("triton.next_power_of_2(size)", "size"))


FLAGGED = KEYED.format(key='"N"', mark="").replace("for _ in tl.static_range(STEPS)", "if STEPS")


@pytest.mark.parametrize(("passed", "is_found"), [("rows == 1", True), ("steps", False), ("w is None", False)])
def test_a_flag_counts_if_the_file_shows_both_values(passed: str, is_found: bool) -> None:
    """A flag that callers pass on is the same in most programs."""
    text = FLAGGED.replace("STEPS=count", f"STEPS={passed}")
    said = "calls that differ in it run the one of 4 configurations that was timed for the first call; add to key"
    found = messages("TW602", text)
    assert bool(found) == is_found
    assert all("leaves out STEPS (selecting other loops or loads)" in one and said in one for one in found)


@pytest.mark.parametrize(
    ("old", "new"), [("value + tl.load(x)", "value * 2"), ("STEPS", "IS_FP8"), ("STEPS", "Q_DTYPE")]
)
def test_flags_of_arithmetic_and_of_dtypes_are_left_alone(old: str, new: str) -> None:
    text = FLAGGED.replace("STEPS=count", "STEPS=rows == 1")
    assert messages("TW602", text) and not messages("TW602", text.replace(old, new))


@pytest.mark.parametrize("step", ["tl.cdiv(STEPS, BLOCK)", "range(0, STEPS, BLOCK)"])
def test_the_range_of_a_loop_counts_if_its_step_is_tuned(step: str) -> None:
    loop = step if step.startswith("range") else f"range({step})"
    text = KEYED.format(key='"n", "N"', mark="").replace("tl.static_range(STEPS)", loop)
    assert messages("TW602", text)
    assert not messages("TW602", text.replace(", BLOCK)", ", 64)"))


def test_a_bucket_in_the_key_stands_for_what_follows_from_the_length() -> None:
    text = KEYED.format(key='"n", "N"', mark="").replace("STEPS=count", "STEPS=min(size, 64)")
    assert messages("TW602", text.replace("N=triton.next_power_of_2(size)", "N=64"))
    assert not messages("TW602", text)


@pytest.mark.parametrize(
    ("before", "passed", "is_found"),
    [
        ("rows, count = x.shape", "count", True),
        ("size, count = ctx.dims", "count", False),
        ("pass", "block_steps", False),
        ("pass", "steps", False),
        ("pass", "steps // 2", False),
        ("pass", "min(steps, 64)", True),
        ("a, b, c, depth = x.shape", "min(depth, 64)", False),
        ("a, b, c, depth = x.shape", "depth", False),
        ("rows, head_dim = x.shape", "head_dim", False),
    ],
)
def test_a_size_counts_if_the_text_shows_that_it_varies(before: str, passed: str, is_found: bool) -> None:
    text = KEYED.format(key='"n", "N"', mark="").replace("STEPS=count", f"STEPS={passed}")
    text = text.replace("steps=1", "steps, block_steps, ctx").replace("    norm[", f"    {before}\n    norm[")
    assert bool(messages("TW602", text)) == is_found


def test_another_name_of_a_value_in_the_key_is_in_the_key() -> None:
    text = (
        KEYED.format(key='"N"', mark="")
        .replace("triton.next_power_of_2(size)", "rows")
        .replace("    norm[", "    block = size\n    norm[")
        .replace("STEPS=count", "STEPS=min(size, 9)")
    )
    assert messages("TW602", text)
    assert not messages("TW602", text.replace("N=rows", "N=block"))


def test_a_value_that_is_kept_in_an_attribute_is_followed() -> None:
    text = KEYED.format(key='"N"', mark="").replace("STEPS=count", "STEPS=ctx.steps")
    assert not messages("TW602", text)
    kept = "\n\ndef forward(ctx, rows):\n    steps = min(rows, 2)\n    ctx.steps = steps\n"
    assert messages("TW602", text + kept)
    assert not messages("TW602", text + kept.replace("min(rows, 2)", "4"))


def test_a_size_that_the_pruning_reads_counts() -> None:
    text = KEYED.format(key='"n", "N"', mark="").replace("STEPS=count", "STEPS=steps")
    pruned = text.replace("CONFIGS,", 'CONFIGS, prune_configs_by={"early_config_prune": fits},', 1)
    fits = '\n\ndef fits(configs, args, **given):\n    return [each for each in configs if args["STEPS"] < 9]\n'
    assert not messages("TW602", text + fits)
    (message,) = messages("TW602", pruned + fits)
    assert "leaves out STEPS (sizes of tiles or loops)" in message


def test_two_launches_with_different_flags_share_an_entry() -> None:
    text = KEYED.format(key='"N"', mark="").replace("STEPS=count", "STEPS=True")
    assert not messages("TW602", text)
    assert messages("TW602", text + "    norm[(4,)](x, y, w, 4, N=64, HAS_W=w is not None, STEPS=False)\n")
    assert not messages("TW602", text + "    norm[(4,)](x, y, None, 4, N=64, HAS_W=False, STEPS=False)\n")


@pytest.mark.parametrize(("asks", "is_found"), [("w", False), ("N", True)])
def test_a_heuristic_above_the_tuner_follows_from_tensors_but_not_from_constants(asks: str, is_found: bool) -> None:
    above = f'@triton.heuristics({{"STEPS": lambda args: args["{asks}"] is not None}})\n'
    text = above + KEYED.format(key='"n"', mark="").lstrip().replace(", STEPS=count", "").replace(
        "N=triton", "N=64 or triton"
    )
    assert any("STEPS" in message for message in messages("TW602", text)) == is_found


# Offsets ----------------------------------------------------------------------------------------------


def offsets(body: str, parameters: str = "stride, n") -> list[str]:
    lines = "".join(f"    {line}\n" for line in body.splitlines())
    head = f"@triton.jit\ndef kernel(x, y, {parameters}, SIZE: tl.constexpr, BLOCK: tl.constexpr):\n"
    at = "    pid = tl.program_id(0)\n    at = tl.arange(0, BLOCK)\n"
    return messages("TW608", head + at + lines)


@pytest.mark.parametrize(
    ("body", "product"),
    [
        ("tl.store(x + pid * stride + at, 1.0)", "pid * stride"),
        ("x += pid * stride\ntl.store(x + at, 1.0)", "pid * stride"),
        ("row = pid * BLOCK + at\ntl.store(x + row[:, None] * stride + at[None, :], 1.0)", "row[:, None] * stride"),
        ("for row in range(pid, n):\n    tl.store(x + row * stride + at, 1.0)", "row * stride"),
        ("start = pid * n\ntl.store(x + (start + 1) * SIZE + at, 1.0)", "(start + 1) * SIZE"),
        ("row = pid // n\ntl.store(x + row * stride + at, 1.0)", "row * stride"),
        ("p = x + pid * stride\nfor i in range(n):\n    tl.store(p + i + at, 1.0)", "pid * stride"),
    ],
)
def test_a_product_in_32_bits_is_found(body: str, product: str) -> None:
    (message,) = offsets(body)
    assert message.startswith(f"{product}, an offset of x, is computed in 32 bits")


@pytest.mark.parametrize(
    "body",
    [
        "pid = pid.to(tl.int64)\ntl.store(x + pid * stride + at, 1.0)",
        "tl.store(x + tl.cast(pid, tl.int64) * stride + at, 1.0)",
        "tl.store(x + pid * BLOCK + at, 1.0)",
        "tl.store(x + (pid // n) * BLOCK + at, 1.0)",
        "tl.store(x + (pid - pid // n * n) * BLOCK + at, 1.0)",
        "for block in range(pid, n):\n    tl.store(x + block * BLOCK + at, 1.0)",
        "tl.store(x + pid * stride, 1.0)",
        "for i in range(n):\n    tl.store(x + pid * stride + i, 1.0)",
        "row = tl.load(y + pid)\ntl.store(x + row * stride + at, 1.0)",
        "tl.store(x + pid.to(tl.int64) * n + pid * stride + at, 1.0)",
    ],
)
def test_wide_and_small_offsets_are_left_alone(body: str) -> None:
    assert not offsets(body)


def test_a_parameter_annotated_with_64_bits_is_wide() -> None:
    assert not offsets("tl.store(x + pid * stride + at, 1.0)", "stride: tl.int64, n")


# The others -------------------------------------------------------------------------------------------


def test_block_pointers_of_ascends_triton_are_left_alone() -> None:
    kernel = BODY.replace("at = ", "p = tl.make_block_ptr(x, (n,), (1,), (0,), (BLOCK,), (0,))\n    at = ")
    assert messages("TW607", kernel)
    assert not messages("TW607", "import torch_npu\n\n\n" + kernel)


def test_block_pointers_that_a_constant_replaces_by_descriptors_are_left_alone() -> None:
    both = (
        BODY.replace("BLOCK: tl", "TMA: tl.constexpr, BLOCK: tl")
        + "    if not TMA:\n        p = tl.make_block_ptr(x, (n,), (1,), (0,), (BLOCK,), (0,))\n"
    )
    assert messages("TW607", both)
    described = both + "    else:\n        p = tl.make_tensor_descriptor(x, (n,), (1,), (BLOCK,))\n"
    assert not messages("TW607", described)
    assert messages("TW607", described.replace("if not TMA", "if n"))


BOTH = """
def few():
    return [triton.Config({"BLOCK": block}) for block in (32, 64, 128)]


def many():
    return [triton.Config({"BLOCK": block}, num_warps=warps) for block in (32, 64, 128) for warps in (2, 4, 8)]


def either():
    if is_small():
        return few()
    return many()


"""


def test_of_two_lists_the_longer_one_is_counted() -> None:
    run = "\n\ndef run(x, y):\n    scale[(4,)](x, y, x.numel())\n"
    decorated = tuned('either(), key=["n"]') + run
    (message,) = messages("TW610", BOTH + decorated)
    assert message.endswith("each new length times up to 9 configurations again, for up to 1.1 s")
    (message,) = messages("TW610", BOTH + decorated.replace('key=["n"]', 'key=["n"], use_cuda_graph=True'))
    assert message.endswith("each new length times up to 9 configurations again")
    assert not messages("TW610", BOTH.replace("return many()", "return few()") + decorated)


def test_a_benchmark_wants_each_length_tuned() -> None:
    text = tuned('CONFIGS, key=["n"]') + "\n\ndef run(x, y):\n    scale[(4,)](x, y, x.numel())\n"
    assert messages("TW610", text)
    assert not messages("TW610", text + "\n\n@triton.testing.perf_report([])\ndef bench(size):\n    pass\n")


def test_configurations_that_tile_ir_cannot_tell_apart_are_counted() -> None:
    text = 'os.environ.setdefault("ENABLE_TILE", "1")\n\n\n' + tuned('CONFIGS, key=["n"]')
    (message,) = messages("TW603", text)
    assert "Tile IR ignores num_warps of scale" in message
    assert "2 of 4 configurations repeat another" in message
    assert not messages("TW603", tuned('CONFIGS, key=["n"]'))


def test_names_that_the_text_does_not_show_are_left_alone() -> None:
    assert not messages("TW605", tuned("CONFIGS, key=NAMES"))
    assert not messages("TW605", tuned("make_configs(), key=['n']"))


def test_a_kernel_with_keywords_takes_every_field() -> None:
    """As in Triton 1.0."""
    taken = tuned('[triton.Config({"GROUP": 8}), triton.Config({"GROUP": 4})], key=["n"]')
    assert messages("TW605", taken)
    assert not messages("TW605", taken.replace("BLOCK: tl.constexpr", "**meta"))


def test_a_helper_may_get_its_block_size_as_a_constant() -> None:
    helper = "@triton.jit\ndef helper(x, BLOCK):\n    return x + tl.arange(0, BLOCK)\n"
    assert not messages("TW609", helper)
    assert messages("TW609", helper + "\n\nhelper[(1,)](x, 64)\n")


def test_a_launch_is_found_where_other_files_were_read_in_between() -> None:
    """Facts about the last files only are kept: the launches may be kept longer than the kernels."""
    text = (
        f"{HEAD}\n\n@triton.jit\ndef helper(x, BLOCK):\n    return x + tl.arange(0, BLOCK)\n\n\nhelper[(1,)](x, 64)\n"
    )
    (finding,) = found(*named(["TW609"]), text)
    for number in range(4):
        assert not found(*named(["TW604"]), f"{HEAD}\nX = {number}\n")
    assert found(*named(["TW609"]), text) == (finding,)
