"""The gate of proposals: each hostile kind in view with its reason, and what a kernel's author may change."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.optimize.proposing.patches import CENTRED, HOSTILE, LAUNCH, USEFUL, answers, diff, edited

from tilewright.optimize.proposed import RefusedProposal
from tilewright.optimize.proposing.gate import texts_of
from tilewright.optimize.proposing.protocol import MOST_BYTES, ProposerAnswer, names_of, read_answer
from tilewright.optimize.proposing.regions import regions_of

FILE = Path("/somewhere/centred.py")

REASONS = {
    "the reference returns what the kernel computes": "changes centred, which reference= of the task uses",
    "the inputs are constants": "changes tensors= of the task",
    "the workload is smaller": "changes workloads= of the task",
    "the patch changes a test beside the kernel": "changes tests/test_centred.py, which may not be edited",
    "the patch changes the ledger, by its absolute path": "names the path /root/ledger.db",
    "the patch puts a link in place of the kernel": "makes a file a symbolic link",
    "a function of cuda.tile is replaced": "replaces an attribute (ct.sum)",
    "a timer is replaced": "imports time, which no kernel needs; replaces an attribute (time.perf_counter)",
    "the launch writes a file": "opens a file (open)",
    "Tilewright's own modules are imported": "imports Tilewright's own tilewright.verify",
    "another library's kernel is launched": "imports vendor.kernels, which no kernel needs",
}
"""The kinds that the gate refuses. Of the others one is no patch, and one shows only when it runs."""


def passed(answer: str, text: str = CENTRED, **others: str) -> dict[Path, str]:
    texts = {FILE: text, **{FILE.with_name(f"{name}.py"): other for name, other in others.items()}}
    return dict(texts_of(read_answer(answer), texts, regions_of(texts, FILE, ["centre"])))


def refused(answer: str, text: str = CENTRED, **others: str) -> RefusedProposal:
    with pytest.raises(RefusedProposal) as error:
        passed(answer, text, **others)
    assert "\n" not in str(error.value)
    return error.value


def changed(*edits: tuple[str, str]) -> str:
    return json.dumps({"title": "t", "patch": diff(CENTRED, edited(edits))})


@pytest.mark.parametrize("kind", REASONS)
def test_what_reaches_for_more_than_the_kernel_is_refused_as_tampering(kind: str) -> None:
    error = refused(answers(HOSTILE)[kind])
    assert error.tampering and str(error).startswith(REASONS[kind]) and error.patch


@pytest.mark.parametrize("kind", USEFUL)
def test_what_is_useful_passes_unchanged(kind: str) -> None:
    assert passed(answers(USEFUL)[kind]) == {FILE: edited(USEFUL[kind])}


@pytest.mark.parametrize(
    ("edit", "said"),
    [
        ((LAUNCH, "seen = {}\n\n\n" + LAUNCH + "    seen.setdefault(M, x)\n"), "keeps results between calls (seen)"),
        ((LAUNCH, "import functools\n\n\n@functools.cache\n" + LAUNCH), "keeps results between calls (@functools."),
        ((LAUNCH, "def launch(x, y, M, N, config, seen={}):\n"), "keeps results between calls (default {})"),
        ((LAUNCH, LAUNCH + "    launch.last = y\n"), "replaces an attribute (launch.last)"),
        ((LAUNCH, LAUNCH + "    centre.__code__\n"), "reaches for the private __code__"),
        ((LAUNCH, LAUNCH + "    getattr(ct, '_' + 'x')\n"), "reaches for an attribute by a computed or private name"),
        ((LAUNCH, LAUNCH + "    ct.launch(0, (M,), centre, (x, y))\n"), "launches a kernel itself (ct.launch)"),
        ((LAUNCH, LAUNCH + "    np.save('y', np.zeros(3))\n"), "reads or writes files (np.save)"),
        ((LAUNCH, LAUNCH + "    task.reference\n"), "uses task, which is protected"),
        (("\n\ntask = tw.Task(", "\n\ndef centred(x):\n    return x\n\n\ntask = tw.Task("), "changes centred, which"),
        (("import numpy as np\n", "from math import tau as np\n"), "changes np, which reference= of the task uses"),
        ((LAUNCH, "seen = [[]]\n\n\n" + LAUNCH + "    seen[0].append(x)\n"), "keeps results between calls (seen)"),
        ((LAUNCH, "for i in range(3):\n    print(i)\n\n\n" + LAUNCH), "changes `for i in range(3): print(i)`, which"),
        ((LAUNCH, LAUNCH + "    np.f2py.os.system('true')\n"), "reaches for another module (np.f2py)"),
        ((LAUNCH, LAUNCH + "    get = getattr\n"), "reaches for attributes by name (getattr)"),
        ((LAUNCH, LAUNCH + "    '{0.__globals__}'.format(launch)\n"), "names a private attribute in a text (__glo"),
        ((LAUNCH, LAUNCH + "    match launch:\n        case object(__globals__=g):\n            g\n"), "reaches for p"),
        (("import numpy as np\n", "import numpy as np\nfrom math import *\n"), "imports all names of math"),
        (("import numpy as np\n", "import numpy as np\nfrom math import tau as tw\n"), "replaces the imported tw"),
        ((LAUNCH, "at = iter([1, 2])\n\n\n" + LAUNCH + "    next(at)\n"), "keeps results between calls (at)"),
        (('"""y = x', '# coding: utf-7\n"""y = x'), "declares the encoding utf-7; the text has to be UTF-8"),
        ((LAUNCH, LAUNCH + "    # \u202e\n"), "has U+202E, which changes the order in which text is shown"),
        (("\n\ntask = tw.Task(", "\n\nprint(launch)\n\ntask = tw.Task("), "changes `print(launch)`, which is no part"),
    ],
)  # fmt: skip
def test_other_signs_are_refused_in_one_line(edit: tuple[str, str], said: str) -> None:
    assert said in str(refused(changed(edit)))


def test_modules_of_the_kernel_language_may_be_imported() -> None:
    """Also on the side of Triton; private ones may not."""
    for line, allowed in (
        ("import math", True), ("from triton.language.extra import libdevice", True), ("import cuda.tile as t", True),
        ("from cuda.tile._ir import ops", False), ("import torch", False), ("from tilewright import ledger", False),
    ):  # fmt: skip
        answer = changed(("import numpy as np\n", f"import numpy as np\n{line}\n"))
        assert len(passed(answer)) == 1 if allowed else refused(answer).tampering, line


def test_what_the_incumbent_does_already_is_no_sign() -> None:
    """A launch that keeps a table may be changed elsewhere."""
    before = edited([(LAUNCH, "seen = {}\n\n\n" + LAUNCH + "    seen[M] = N\n")])  # type: ignore[arg-type]
    after = before.replace("(M,), (x", "(M * 1,), (x")
    assert passed(json.dumps({"files": {"centred.py": after}}), before) == {FILE: after}


def test_a_comment_or_a_docstring_may_change_anywhere() -> None:
    after = CENTRED.replace("def centred(x):\n", "def centred(x):  # the mean\n").replace('"""y = x', '"""So: y = x')
    assert passed(json.dumps({"files": {"centred.py": after}})) == {FILE: after}


def test_an_unrelated_function_is_no_part_of_the_kernel_and_no_tampering() -> None:
    text = CENTRED + "\n\ndef unrelated():\n    return 1\n"
    error = refused(json.dumps({"files": {"centred.py": text.replace("return 1", "return 2")}}), text)
    assert not error.tampering
    assert str(error) == (
        "changes unrelated, which is no part of the kernel or its launch; open: ZERO, centre, launch"
    )  # fmt: skip


def test_a_reference_in_another_editable_file_is_protected() -> None:
    text = CENTRED.replace("def centred(x):\n    return x - np.mean(x, axis=1, keepdims=True)\n", "")
    text = text.replace("import tilewright as tw\n", "import tilewright as tw\nfrom ref import centred\n")
    ref = "def centred(x):\n    return x - mean(x)\n\n\ndef mean(x):\n    return x.mean(1, keepdims=True)\n"
    error = refused(json.dumps({"files": {"ref.py": ref.replace("x.mean(1", "0 * x.mean(1")}}), text, ref=ref)
    assert error.tampering and str(error) == "changes mean, which reference= of the task uses"


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ("", "the answer is empty"),
        ("Here is the patch:\n```diff\n- a\n+ b\n```", "the answer is no JSON object but the text 'Here is the patch:"),
        ("[1]", "the answer is no JSON object but [1]"),
        ("{}", "the answer has neither a patch nor files"),
        (json.dumps({"patch": "x", "files": {"centred.py": "y"}}), "the answer has both a patch and files"),
        (json.dumps({"patch": 3}), "the answer's patch is no text"),
        (json.dumps({"speed": "2x", "patch": "x"}), "the answer has the unknown field 'speed'"),
        (json.dumps({"patch": "\0"}), "the answer is binary"),
        (json.dumps({"files": {"centred.py": "\ud800"}}), "the answer is binary"),
        (json.dumps({"patch": "x" * MOST_BYTES}), "the answer is longer than 1024 KiB"),
        (json.dumps({"patch": "I would use shared memory."}), "that is not a patch that git understands"),
        (json.dumps({"patch": "GIT binary patch\nliteral 3\nKc$~B\n"}), "the patch is binary"),
        (json.dumps({"patch": diff("before\n", "after\n")}), "the patch does not fit the files"),
        (json.dumps({"files": {"centred.py": "def (:\n"}}), "the changed centred.py is not Python, line 1"),
        (json.dumps({"patch": diff(CENTRED, "").replace("b/centred.py", "/dev/null")}), "the patch removes centred.py"),
    ],
    ids=lambda value: value[:24],
)
def test_what_is_no_change_is_one_line_and_no_tampering(answer: str, said: str) -> None:
    error = refused(answer)
    assert said in str(error) and not error.tampering and len(str(error)) < 500


@pytest.mark.parametrize(
    "name", ["../centred.py", "/etc/centred.py", "sub/../centred.py", ".git/config", "other.py", "sub/centred.py"]
)
def test_only_the_names_of_the_request_may_be_given(name: str) -> None:
    for answer in (json.dumps({"files": {name: CENTRED}}), json.dumps({"patch": diff(CENTRED, CENTRED + "#\n", name)})):
        assert refused(answer).tampering


def test_names_have_folders_only_where_two_files_share_a_name() -> None:
    assert list(names_of([Path("/a/ops.py"), Path("/a/more.py")])) == ["ops.py", "more.py"]
    assert list(names_of([Path("/a/b/ops.py"), Path("/a/c/ops.py")])) == ["b/ops.py", "c/ops.py"]


def test_a_title_is_one_printable_line() -> None:
    answer = read_answer(json.dumps({"title": "fast\n 1  keep\x1b[2K" + "!" * 99, "patch": "x"}))
    assert answer.title.startswith("fast 1 keep [2K!") and len(answer.title) == 80
    assert read_answer('{"done": "nothing\\nleft"}') == ProposerAnswer(done="nothing left")
