"""The catalogue of changes: words of recommendations, kinds of findings, and what is understood but never done."""

from __future__ import annotations

from pathlib import Path

import pytest

from tilewright.errors import UnknownChoice
from tilewright.program.changes import change_of, changes_for, program_changes
from tilewright.specialists import specialist_of
from tilewright.specialists.changing import kinds_of
from tilewright.specialists.delegation import Delegation
from tilewright.specialists.proposal import NoProposal, ProgramProposal

PHRASES = {
    "Use inference_mode for evaluation": "no_gradients",
    "Use bfloat16 autocast": "bf16_autocast",
    "Use torch.compile": "compiled_model",
    "Hoist the mask out of the loop": "constants_once",
    "Fuse the GELU": "functions_by_hand",
    "Avoid .item() calls in the training loop": "host_synchronisation",
    "Use pinned memory for the data loader": "pinned_copies",
    "Use a fused AdamW": "fused_optimizer",
    "Allow TF32 for float32 matrix products": "float32_matmul_precision",
    "Set cudnn.benchmark": "cudnn_benchmark",
    "Enable FlashAttention for self-attention layers": "scaled_dot_product_attention",
    "Apply memory pooling for attention buffers": "memory_pooling",
    "Consider gradient checkpointing for memory reduction": "gradient_checkpointing",
}


def asked(task: str, file: Path, **more: tuple[str, ...]) -> tuple[ProgramProposal, ...] | NoProposal:
    """What the profiling specialist proposes for a task about a program."""
    delegation = Delegation("profiling", task, "one step", ("latency",), str(file), **more)
    return specialist_of("profiling").propose(delegation)


@pytest.mark.parametrize(("phrase", "name"), PHRASES.items())
def test_recommendations_are_understood(phrase: str, name: str) -> None:
    assert [change.name for change in changes_for(phrase)] == [name]


def test_what_names_no_change_gets_none() -> None:
    assert changes_for("Write a poem about a train") == ()


def test_an_unknown_change_names_the_known_ones() -> None:
    with pytest.raises(UnknownChoice, match="memory_pooling"):
        change_of("memory_poling")


def test_names_and_orders_are_total() -> None:
    names = [change.name for change in program_changes()]
    assert len(set(names)) == len(names)


def test_what_is_never_done_says_why_with_evidence(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("import torch\nfrom torch.utils.checkpoint import checkpoint\n\ncheckpoint(print, 1)\n")
    answer = asked("Apply memory pooling for attention buffers", script)
    assert isinstance(answer, NoProposal)
    assert (answer.why, answer.evidence.split(" ")[0]) == ("mechanism already present", "train.py")
    assert "caching allocator" in answer.reason
    answer = asked("Consider gradient checkpointing for memory reduction", script)
    assert isinstance(answer, NoProposal)
    assert answer.evidence == "train.py:4 calls torch.utils.checkpoint"
    script.write_text("import torch\n")
    answer = asked("Consider gradient checkpointing for memory reduction", script)
    assert isinstance(answer, NoProposal)
    assert answer.why == "inapplicable"
    assert "slower" in answer.reason


def test_a_program_that_cannot_be_read_is_blocked(tmp_path: Path) -> None:
    answer = asked("Apply memory pooling", tmp_path / "none.py")
    assert isinstance(answer, NoProposal)
    assert answer.why == "blocked"


def test_ids_of_findings_name_their_kinds() -> None:
    ids = ("0a1b2c3d-host-sync-gpu0", "0a1b2c3d-hot-kernel-3-gpu1", "no id")
    assert kinds_of(ids) == ("host-sync", "hot-kernel")
