"""The playbook's entries of a run are those for the language of the task's kernel."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.playbook.triton_tasks import MATMUL

from tilewright.errors import RequestError
from tilewright.hardware.gpu import detect
from tilewright.hardware.machine import target_of
from tilewright.optimize.loop import optimize
from tilewright.optimize.options import OptimizeRequest, Options
from tilewright.playbook import catalogue
from tilewright.playbook.base import ANY_LANGUAGE
from tilewright.progress import silent
from tilewright.race.rules import Policy
from tilewright.task.loading import load_task

EXAMPLES = Path(__file__).parents[2] / "examples"


def offered(example: str, *only: str) -> set[str]:
    task = load_task(str(EXAMPLES / example))
    request = OptimizeRequest(
        task, target_of("sm_90", detect()), tuple(task.selected(None)), Options(only=only), Policy(), None, None, silent
    )
    return {entry.about.id for entry in request.entries}


def named(*languages: str) -> set[str]:
    return {entry.about.id for entry in catalogue() if entry.about.language in languages}


def test_a_cutile_task_is_offered_cutile_entries() -> None:
    assert offered("naive/softmax.py") == named("cutile", ANY_LANGUAGE)


def test_a_triton_task_is_offered_triton_entries() -> None:
    pytest.importorskip("triton")
    assert offered("triton/softmax.py") == named("triton", ANY_LANGUAGE)
    assert "tune_space" in offered("triton/softmax.py") and "tile_load" not in offered("triton/softmax.py")


def test_an_entry_of_another_language_is_refused_by_name() -> None:
    pytest.importorskip("triton")
    with pytest.raises(RequestError, match="entry 'exp2' changes cutile kernels, and task 'triton_softmax' launches a"):
        offered("triton/softmax.py", "tune_space", "exp2")


@pytest.mark.long
def test_a_triton_task_is_taken_to_descriptors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a GPU: changed, compiled, verified on the interpreter, and then predicted."""
    pytest.importorskip("triton")
    monkeypatch.setenv("TILEWRIGHT_HOME", str(tmp_path / "home"))
    (tmp_path / "matmul.py").write_text(MATMUL)
    found = optimize(str(tmp_path / "matmul.py"), arch="sm_90", seed=1, only=("descriptors",), iterations=1)
    [_, iteration] = found.iterations
    assert iteration.entry == "descriptors" and iteration.correctness.startswith(("PASS", "correct"))
    assert "tl.make_tensor_descriptor(" in (iteration.diff or "")
