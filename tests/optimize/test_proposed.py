"""Changes from outside the playbook: patches and whole files, through the same gate (P-14, P-25)."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from tests.optimize.kit import LIMITS, SCALE, Told, git, repository, staged

from tilewright.errors import RequestError
from tilewright.ledger.records import Iteration
from tilewright.optimize.loop import optimize
from tilewright.optimize.options import Options
from tilewright.optimize.proposed import FromFiles, check_changes

DOUBLED = "ct.load(x, (i,), (TILE,)) * 2"
FASTER = SCALE.replace(DOUBLED, "2 * ct.load(x, (i,), (TILE,))")
WRONG = SCALE.replace(DOUBLED, f"{DOUBLED} + 1")


def patch(old: str, new: str, name: str = "ops.py", prefixes: Sequence[str] = ("a/", "b/")) -> str:
    lines = difflib.unified_diff(
        old.splitlines(keepends=True), new.splitlines(keepends=True), *(f"{one}{name}" for one in prefixes)
    )
    return "".join(lines)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return repository(tmp_path / "user")


@pytest.fixture
def written(tmp_path: Path) -> Callable[..., Path]:
    def write(text: str, name: str = "faster.patch") -> Path:
        path = tmp_path / name
        path.write_bytes(text.encode())
        return path

    return write


Written = Callable[..., Path]


def tried(file: Path, changes: Sequence[Path], script: Sequence[Told] = (0.9, 0.9)) -> tuple[Iteration, ...]:
    """The rows of a run that tries these changes alone."""
    check_changes(changes, [file])
    with staged(file, file.parents[1] / "home", script, proposers=[FromFiles(changes)]) as stage:
        stage.run()
        return stage.rows[1:]


# What can be proposed --------------------------------------------------------------------------------


@pytest.mark.parametrize("prefixes", [("a/", "b/"), ("", ""), ("/home/someone/kernels/",) * 2], ids=str)
def test_a_patch_may_name_the_file_in_any_folder(file: Path, written: Written, prefixes: Sequence[str]) -> None:
    (one,) = tried(file, [written(patch(SCALE, FASTER, prefixes=prefixes))])
    assert (one.entry, one.status, one.optimization) == ("proposed", "keep", "proposed: faster.patch")
    assert "2 * ct.load" in one.diff


def test_what_git_prints_is_a_patch(file: Path, written: Written) -> None:
    file.write_text(FASTER)
    change = written(git(file.parent, "diff"))
    git(file.parent, "checkout", "--quiet", "ops.py")
    assert tried(file, [change])[0].status == "keep"


def test_a_whole_file_replaces_the_only_editable_one_whatever_its_name(file: Path, written: Written) -> None:
    (one,) = tried(file, [written(FASTER, "rewritten.py")])
    assert (one.status, one.site) == ("keep", "rewritten.py") and "2 * ct.load" in one.diff


def test_the_reason_is_in_the_commit_and_the_ledger(file: Path, written: Written) -> None:
    """P-25."""
    (one,) = tried(file, [written(FASTER, "rewritten.py")])
    assert one.why_chosen == "proposed in rewritten.py"
    message = git(file.parent, "log", "-1", "--format=%B", str(one.commit))
    assert message.startswith("proposed: rewritten.py\n") and "proposed in rewritten.py" in message


def test_line_ends_are_kept(tmp_path: Path, written: Written) -> None:
    text, faster = SCALE.replace("\n", "\r\n"), FASTER.replace("\n", "\r\n")
    file = repository(tmp_path / "crlf", text)
    change = written(patch(text, faster))
    with staged(file, tmp_path / "home", [0.9], proposers=[FromFiles([change])]) as stage:
        stage.run()
        assert (stage.workspace.folder / "ops.py").read_bytes() == faster.encode()


def test_changes_are_tried_one_after_the_other_on_what_was_kept(file: Path, written: Written) -> None:
    more = FASTER + "# more\n"
    changes = [written(patch(SCALE, FASTER)), written(patch(FASTER, more), "more.patch")]
    first, second = tried(file, changes)
    assert (first.status, second.status) == ("keep", "keep")
    assert "+# more" in second.diff and "ct.load" not in second.diff.split("@@")[0]


# What cannot, and is a row all the same -----------------------------------------------------------------


def test_a_patch_that_does_not_fit_any_more_is_a_row_and_the_next_is_tried(file: Path, written: Written) -> None:
    """The first patch was kept and changed the line that the second expects."""
    changes = [
        written(patch(SCALE, FASTER)), written(patch(SCALE, WRONG), "late.patch"), written(FASTER + "#\n", "c.py")
    ]  # fmt: skip
    first, late, third = tried(file, changes)
    assert (first.status, late.status, third.status) == ("keep", "crash", "keep")
    assert "the patch does not fit the files: git apply: error: patch failed: ops.py" in late.reason
    assert late.reason.endswith("; fix: make the patch anew from the files as they are, e.g. with git diff")


def test_a_patch_with_other_line_ends_says_so(file: Path, written: Written) -> None:
    (one,) = tried(file, [written(patch(SCALE, FASTER).replace("\n", "\r\n"))])
    assert one.status == "crash" and one.reason.endswith("; the patch has other line ends than the file")


def test_what_changes_nothing_is_reverted_with_the_reason(file: Path, written: Written) -> None:
    (one,) = tried(file, [written(SCALE, "same.py")])
    assert (one.status, one.reason) == ("revert", "leaves the source as it is")


@pytest.mark.parametrize(
    ("text", "said"),
    [("def (", "does not import: SyntaxError"), (SCALE.replace("task = tw", "no = str(1) or tw"), "does not load")],
)
def test_what_does_not_load_is_a_crash_with_the_reason(file: Path, written: Written, text: str, said: str) -> None:
    (one,) = tried(file, [written(text, "broken.py")])
    assert one.status == "crash" and said in one.reason and one.diff


def test_a_file_that_is_not_utf_8_is_one_clear_line(file: Path, tmp_path: Path) -> None:
    change = tmp_path / "latin.py"
    change.write_bytes(b"# caf\xe9\n")
    with pytest.raises(RequestError, match="not UTF-8"):
        check_changes([change], [file])


def test_after_an_interruption_only_the_rest_is_tried(file: Path, written: Written) -> None:
    """Also where the first had nothing to judge, and two files have one name."""
    changes = [written("def (", "a.py"), written(FASTER, "b.py"), written(WRONG, "c.py")]
    home = file.parents[1] / "home"
    with staged(file, home, [0.9], proposers=[FromFiles(changes)], limits=replace(LIMITS, iterations=2)) as before:
        before.run()
        run = before.loop.setup.run.run
    rest = FromFiles(changes, before.loop.iterations)
    with staged(file, home, ["wrong"], proposers=[rest], run=run) as after:
        after.run()
        assert [(one.site, one.status) for one in after.rows[1:]] == [
            ("a.py", "crash"), ("b.py", "keep"), ("c.py", "revert"),
        ]  # fmt: skip


# What is refused before anything runs -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "name", "said"),
    [
        (patch("a\n", "b\n", "tests/test_ops.py"), "x.patch", "changes tests/test_ops.py, which is not editable"),
        (patch(SCALE, FASTER) + patch("a\n", "b\n", "other.py"), "x.patch", "changes other.py, which is not"),
        ("--- a/ops.py\nnonsense\n", "x.patch", "is not a patch that git understands"),
        ("", "x.patch", "is empty; give what `git diff` prints, or a rewritten file named *.py"),
        ("nonsense\n", "x.patch", "is not a patch; give what `git diff` prints"),
    ],
    ids=["another file", "the file and another", "nonsense", "empty", "no patch"],
)
def test_a_patch_of_other_files_is_one_clear_line(
    file: Path, written: Written, text: str, name: str, said: str
) -> None:
    """P-14: and the line says what may be changed."""
    change = written(text, name)
    with pytest.raises(RequestError) as error:
        optimize(str(file), options=Options(changes=(change,)))
    line = str(error.value)
    assert line.startswith(f"--change {change}") and said in line and "\n" not in line
    assert any(fix in line for fix in (str(file), "understands", "give what"))
    assert git(file.parent, "branch", "--list").split() == ["*", "main"], "nothing was begun"


def test_a_patch_that_deletes_the_file_is_a_row(file: Path, written: Written) -> None:
    deleted = patch(SCALE, "", prefixes=("a/", "b/")).replace("+++ b/ops.py", "+++ /dev/null")
    (one,) = tried(file, [written(deleted)])
    assert one.status == "crash" and "the patch removes ops.py" in one.reason


def test_a_file_that_is_missing_is_one_clear_line(file: Path, tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=r"--change .*nowhere\.patch: no such file"):
        optimize(str(file), options=Options(changes=(tmp_path / "nowhere.patch",)))
    with pytest.raises(RequestError, match=r"is a folder; name a patch or a rewritten file in it"):
        optimize(str(file), options=Options(changes=(tmp_path,)))


def test_a_whole_file_of_no_editable_name_is_refused_where_several_are_editable(file: Path, written: Written) -> None:
    with pytest.raises(RequestError, match=r"no editable file has that name; editable: .*ops\.py, .*more\.py"):
        check_changes([written(FASTER, "new.py")], [file, file.with_name("more.py")])
    check_changes([written(FASTER, "more.py")], [file, file.with_name("more.py")])


# The real gate ------------------------------------------------------------------------------------------


def test_a_wrong_result_is_reverted_with_its_reason(file: Path, written: Written) -> None:
    """By the interpreter, although the version's own reference agrees with it."""
    change = written(WRONG.replace("reference=lambda x: 2 * x", "reference=lambda x: 2 * x + 1"), "wrong.py")
    found = optimize(str(file), arch="sm_90", seed=1, options=Options(iterations=1, changes=(change,), seconds=60))
    (one,) = found.iterations[1:]
    assert (one.status, one.correctness) == ("revert", "FAIL") and not found.kept
    assert "incorrect" in one.reason and "+ 1" in one.diff
    assert found.patch == "" and file.read_text() == SCALE
