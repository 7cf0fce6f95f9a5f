"""A hot kernel of a program: captured without a GPU, made into a task, and its changes put into the user's file."""

from __future__ import annotations

import difflib
from dataclasses import replace
from pathlib import Path

import pytest
from tests.made_runs import MACHINE, times
from tests.specialists.hot.programs import KERNELS, program

from tilewright.program.command import ProgramCommand
from tilewright.records import Bound, Candidate, TuningResult, WorkloadResult
from tilewright.runtime.capture.record import Recorded
from tilewright.specialists import specialist_of
from tilewright.specialists.delegation import Delegation
from tilewright.specialists.hot import kernel as hot
from tilewright.specialists.hot.kernel import HotKernel, changed_text, kernels_of, proposed_kernels
from tilewright.specialists.hot.launches import launches_of
from tilewright.specialists.proposal import LATE, NoProposal, ProgramProposal
from tilewright.task.loading import load_task

pytest.importorskip("torch")
pytest.importorskip("triton")


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TILEWRIGHT_HOME", str(tmp_path / "home"))
    return program(tmp_path / "p", KERNELS)


def test_kernels_are_found_by_language(file: Path) -> None:
    assert [(each.name, each.line) for each in kernels_of([file], "cutile")] == [("doubled", 12)]
    assert [each.name for each in kernels_of([file], "triton")] == ["grown"]
    assert kernels_of([file], "triton")[0].named_in("`grown` is hot") and not HotKernel(file, "row", 1).named_in(
        "grown"
    )


@pytest.fixture(scope="module")
def captured(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, tuple[Recorded, ...]]:
    """One run of the program."""
    file = program(tmp_path_factory.mktemp("captured"), KERNELS)
    launches, end = launches_of(ProgramCommand.of([str(file)]), describe=True)
    assert end.code == 0
    return file, launches


def test_launches_are_described_without_a_gpu(captured: tuple[Path, tuple[Recorded, ...]]) -> None:
    """The program goes on after launches that are not made, so that all of its kernels are recorded."""
    file, launches = captured
    assert {each.launch.qualname: each.count for each in launches} == {"doubled": 3, "grown": 3}
    assert {each.launch.file for each in launches} == {str(file)}, "the user's file, not that of the copy"
    assert all(each.failed == 0 for each in launches)


def task_of(captured: tuple[Path, tuple[Recorded, ...]], file: Path) -> Path:
    """The task of the captured cuTile kernel, as if ``file`` had launched it."""
    launch = next(each for each in captured[1] if each.launch.qualname == "doubled")
    return hot._task_file(replace(launch, launch=replace(launch.launch, file=str(file))))


@pytest.mark.long
def test_what_is_only_predicted_is_blocked(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hot, "ITERATIONS", 0)
    answer = specialist_of("triton").propose(
        Delegation("triton", "grown takes 80 % of the step", "a run", ("latency in µs",), file=str(file))
    )
    assert isinstance(answer, NoProposal) and answer.why == "blocked"
    assert answer.reason.startswith("grown: ") and "to be confirmed on a GPU: tilewright optimize " in answer.reason
    assert file.read_text() == KERNELS and Path(answer.evidence).exists()


def test_nothing_is_begun_when_the_time_is_over(file: Path) -> None:
    answer = specialist_of("triton").propose(
        Delegation("triton", "make it faster", "a run", ("latency in µs",), file=str(file), seconds=-1.0)
    )
    assert answer == LATE


def test_a_program_that_needs_cuda_is_blocked_with_that_need(file: Path) -> None:
    file.write_text(KERNELS.replace("x = torch.randn(4096, device=DEVICE)", 'x = torch.randn(4096, device="cuda")'))
    kernels = kernels_of([file], "triton")
    (result,) = proposed_kernels(kernels, ProgramCommand.of([str(file)]), measured=False)
    assert isinstance(result, NoProposal) and result.why == "blocked"
    assert "no launch of grown was captured: the program ended with exit code 1" in result.reason
    assert "needs a GPU" in result.reason and result.evidence == f"{file}:{kernels[0].line}"


def patch_of(path: Path, before: str, after: str) -> str:
    text = path.read_text()
    assert before in text
    lines = (text.splitlines(True), text.replace(before, after).splitlines(True))
    return "".join(difflib.unified_diff(*lines, f"a/{path.name}", f"b/{path.name}"))


@pytest.mark.long
def test_changes_of_a_copied_kernel_are_put_into_the_users_file(
    file: Path, captured: tuple[Path, tuple[Recorded, ...]]
) -> None:
    """The program's file would run the program, so its task has a copy of the kernel."""
    kernel = kernels_of([file], "cutile")[0]
    task = task_of(captured, file)
    text = changed_text(kernel, task, patch_of(task, "(TILE,)) * 2.0", "(TILE,), latency=4) * 2.0"))
    assert text == KERNELS.replace("(TILE,)) * 2.0", "(TILE,), latency=4) * 2.0")
    wider = changed_text(kernel, task, patch_of(task, "import cuda.tile as ct", "import math\nimport cuda.tile as ct"))
    assert isinstance(wider, NoProposal) and "apply them by hand" in wider.reason
    file.write_text(KERNELS.replace("* 2.0", "* 3.0"))
    stale = changed_text(kernel, task, patch_of(task, "(TILE,)) * 2.0", "(TILE,), latency=4) * 2.0"))
    assert isinstance(stale, NoProposal), "the user changed the kernel meanwhile"


def test_changes_of_a_kernel_in_a_quiet_file_are_its_own_text(
    file: Path, captured: tuple[Path, tuple[Recorded, ...]]
) -> None:
    quiet = KERNELS.replace("\nmain()\n", '\nif __name__ == "__main__":\n    main()\n')
    file.write_text(quiet)
    task = task_of(captured, file)
    kernel = kernels_of([file], "cutile")[0]
    text = changed_text(kernel, task, patch_of(file, "* 2.0", "* 2.0 + 0.0"))
    assert text == quiet.replace("* 2.0", "* 2.0 + 0.0")
    launch = changed_text(
        kernel, task, patch_of(task, "    return tw.Launch(module.", "    # changed\n    return tw.Launch(module.")
    )
    assert isinstance(launch, NoProposal) and "are not all in its file; apply them by hand" in launch.reason


@pytest.mark.parametrize(
    ("us", "name", "said"),
    [(5.0, "tuned doubled", "raced faster than"), (20.0, "", "its configuration is the best of run r")],
)
def test_a_configuration_that_raced_faster_is_written_at_the_launch(
    us: float, name: str, said: str, file: Path, captured: tuple[Path, tuple[Recorded, ...]]
) -> None:  # fmt: skip
    """A race needs a GPU: its record is made up here, and what follows from it is real."""
    file.write_text(KERNELS.replace("(x, y, 256)", "(x, y, TILE)").replace("\nDEVICE =", "\nTILE = 256\nDEVICE ="))
    task, kernel = task_of(captured, file), kernels_of([file], "cutile")[0]
    loaded = load_task(str(task))
    shipped, faster = loaded.space.shipped, loaded.space.shipped.replace(TILE=512, occupancy=4)
    candidates = tuple(
        Candidate(each, "raced", "", measured=times(time)) for each, time in ((shipped, 10.0), (faster, us))
    )
    best = min(candidates, key=lambda each: each.measured.us if each.measured else 0.0)
    found = WorkloadResult(
        loaded.selected(None)[0], Bound("memory", "made", 1.0, 2.0, 3.0), best, (), candidates, shipped, "made"
    )
    run = TuningResult("doubled", MACHINE, True, (found,), "r", {})
    result = hot.configured(kernel, "cutile", task, run, "nothing was faster")
    if not name:
        assert isinstance(result, NoProposal) and said in result.reason
        return
    assert isinstance(result, ProgramProposal) and result.name == name and said in result.rationale
    text = result.texts[file]
    assert "TILE = 512\n" in text and "@ct.kernel(occupancy=4)\ndef doubled" in text
