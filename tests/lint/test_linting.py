"""Paths in, a report out: selection, comments that take findings back, files that cannot be read, SARIF, inventory."""

from __future__ import annotations

import json
import os
import warnings
from pathlib import Path

import pytest
from tests.lint.rule_examples import EXAMPLES

from tilewright.cli import lint_table
from tilewright.errors import RequestError, UnknownChoice
from tilewright.lint.linting import LintReport, lint_paths, sarif
from tilewright.lint.rules import named
from tilewright.source.source_file import SourceFile

BAD = EXAMPLES["TW401"].bad
"""Two findings in one line."""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "kernels.py"
    path.write_text(BAD)
    return path


def codes(report: LintReport) -> set[str]:
    return {finding.code for finding in report.findings}


def test_folders_stand_for_the_python_files_below_them(tmp_path: Path) -> None:
    (tmp_path / "deep" / "er").mkdir(parents=True)
    (tmp_path / ".venv").mkdir()
    for name in ("a.py", "deep/er/b.py", "deep/c.txt", ".venv/d.py"):
        (tmp_path / name).write_text(BAD)
    report = lint_paths([tmp_path, tmp_path / "a.py"])
    assert [path.name for path in report.files] == ["a.py", "b.py"]
    assert len(report.findings) == 4


@pytest.mark.parametrize("word", ["TW401", "tw401", "not-an-argument", "not_an_argument"])
def test_rules_are_named_by_name_or_code(file: Path, word: str) -> None:
    assert codes(lint_paths([file], select=[word])) == {"TW401"}
    assert "TW401" not in codes(lint_paths([file], ignore=[word]))


def test_an_unknown_rule_names_the_known_ones(file: Path) -> None:
    with pytest.raises(UnknownChoice, match=r"unknown rule 'TW999'; known: cannot_be_read, in_place_search, hints"):
        lint_paths([file], select=["TW999"])


def test_no_such_path(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="no such file or folder"):
        lint_paths([tmp_path / "none.py"])


def test_rules_that_are_off_by_default_can_be_selected(tmp_path: Path) -> None:
    """K6 rule 18 is a matter of style."""
    path = tmp_path / "k.py"
    path.write_text(EXAMPLES["TW311"].bad)
    assert "TW311" not in codes(lint_paths([path]))
    assert codes(lint_paths([path], select=["TW311"])) == {"TW311"}


@pytest.mark.parametrize(
    "content",
    [b"def f(:\n", b"\xff\xfe\x00", b"x = '\x00'\n", b"# coding: none-such\n", b"a" * 10 + b"(" * 300 + b")" * 300],
)
def test_a_file_that_cannot_be_read_is_a_finding(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "broken.py"
    path.write_bytes(content)
    (finding,) = lint_paths([path]).findings
    assert finding.code == "TW001"
    assert finding.level == "error"
    assert finding.message.startswith("cannot be read: ")


@pytest.mark.parametrize("mark", ["\f", "\v", "\x1c", "\u2028"])
def test_a_comment_is_found_below_what_ends_no_line(tmp_path: Path, mark: str) -> None:
    """`str.splitlines` ends a line there, Python does not."""
    old = '    ct.launch(stream, (8,), copy, (x, y if bias else None, "fast"))'
    path = tmp_path / "k.py"
    text = BAD.replace(f"{old}  # ! !", f"{old}  # tilewright: ignore")
    path.write_text(f"# above {mark} below\n{mark if mark == chr(12) else ''}\n{text}", encoding="utf-8")
    report = lint_paths([path], select=["TW401"])
    assert (len(report.findings), report.ignored) == (0, 2)


def test_what_only_has_the_name_of_a_python_file_is_none(tmp_path: Path) -> None:
    (tmp_path / "folder.py").mkdir()
    (tmp_path / "dead.py").symlink_to("nowhere")
    os.mkfifo(tmp_path / "pipe.py")
    (tmp_path / "folder.py" / "k.py").write_text(BAD)
    report = lint_paths([tmp_path])
    assert [path.name for path in report.files] == ["k.py"]
    assert codes(report) == {"TW401"}


@pytest.mark.parametrize("left_out", [None, ".venv", "build"])
def test_a_folder_without_a_python_file_is_a_wrong_request(tmp_path: Path, file: Path, left_out: str | None) -> None:
    """A mistyped path must not pass, though another path has files."""
    folder = tmp_path / "scr"
    (folder / (left_out or "")).mkdir(parents=True)
    (folder / (left_out or "") / ("k.py" if left_out else "k.txt")).write_text(BAD)
    with pytest.raises(RequestError, match="no Python file below .*scr; left out: hidden folders, __pycache__"):
        lint_paths([file, folder])


READS = "import os\nfrom cuda.tile.tune import exhaustive_search\nexhaustive_search([])\nos.environ.get({})\n"


@pytest.mark.parametrize("text", [READS, "x = {}\n"], ids=["rule", "parser"])
def test_a_file_that_is_nested_too_deep_is_a_finding(tmp_path: Path, file: Path, text: str) -> None:
    """The first is valid, and a rule wants its text; the second is too much for Python's own parser."""
    deep = tmp_path / "a_deep.py"
    deep.write_text(text.format(" + ".join(["a"] * 900) if "os" in text else "-" * 20_000 + "1"))
    first, *others = lint_paths([deep, file]).findings
    assert (first.code, first.file) == ("TW001", deep)
    assert first.message == "cannot be read: its expressions are nested too deep to be followed"
    assert {one.code for one in others} == {"TW401"}


def test_warnings_about_the_text_are_for_who_runs_it(tmp_path: Path) -> None:
    path = tmp_path / "k.py"
    path.write_text('x = "\\d" is 3\n')
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not lint_paths([path]).findings


def test_sarif_names_a_file_whose_name_is_no_text(tmp_path: Path) -> None:
    path = tmp_path / os.fsdecode(b"c\xff.py")
    path.write_text("def f(:\n")
    (result,) = sarif(lint_paths([path]), tmp_path, "1.0")["runs"][0]["results"]
    assert result["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] == "c%FF.py"


@pytest.mark.parametrize(
    "comment",
    [
        "# tilewright: ignore",
        "# tilewright: ignore[TW401]",
        "# tilewright: ignore[cache-key, not_an_argument]  # on purpose",
    ],
)
@pytest.mark.parametrize("above", [False, True])
def test_comments_take_findings_back(tmp_path: Path, comment: str, above: bool) -> None:
    old = '    ct.launch(stream, (8,), copy, (x, y if bias else None, "fast"))'
    new = f"    {comment}\n{old}" if above else f"{old}  {comment}"
    assert old in BAD
    path = tmp_path / "k.py"
    path.write_text(BAD.replace(f"{old}  # ! !", new))
    report = lint_paths([path], select=["TW401"])
    assert (len(report.findings), report.ignored) == (0, 2)
    path.write_text(BAD.replace(f"{old}  # ! !", new.replace("ignore", "ignore[TW101]").replace("][", "] [")))
    assert len(lint_paths([path], select=["TW401"]).findings) == 2


def test_sarif_has_what_the_standard_requires(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SARIF 2.1.0: 3.13 (version, runs), 3.14 (tool), 3.19 (name), 3.27 (message), 3.49 (id), 3.30 (region)."""
    inside = tmp_path / "with space.py"
    inside.write_text(BAD)
    (tmp_path / "root").mkdir()
    below = tmp_path / "root" / "k.py"
    below.write_text(EXAMPLES["TW203"].bad)
    report = lint_paths([inside, below])
    log = json.loads(json.dumps(sarif(report, tmp_path / "root", "1.0")))
    assert log["version"] == "2.1.0"
    assert log["$schema"].endswith("sarif-2.1.0.json")
    (run,) = log["runs"]
    driver = run["tool"]["driver"]
    assert driver["name"]
    rules = driver["rules"]
    assert len({rule["id"] for rule in rules}) == len(rules)
    for rule in rules:
        assert rule["help"]["text"]
        assert rule["help"]["markdown"]
        assert rule["shortDescription"]["text"]
        assert rule["defaultConfiguration"]["level"] in {"error", "warning", "note"}
    assert len(run["results"]) == len(report.findings)
    for result, finding in zip(run["results"], report.findings, strict=True):
        assert rules[result["ruleIndex"]]["id"] == result["ruleId"] == finding.code
        assert result["level"] in {"error", "warning", "note"}
        assert result["message"]["text"]
        (location,) = result["locations"]
        place = location["physicalLocation"]
        assert place["region"] == {"startLine": finding.line, "startColumn": finding.column}
        uri = place["artifactLocation"]["uri"]
        if finding.file == below:
            assert uri == "k.py"
            assert place["artifactLocation"]["uriBaseId"] in run["originalUriBaseIds"]
        else:
            assert uri.startswith("file:///")
            assert uri.endswith("with%20space.py")
    assert run["originalUriBaseIds"]["ROOT"]["uri"].endswith("/")


def test_the_inventory_lists_all_kinds(tmp_path: Path) -> None:
    """P-04: kernels, launches, registrations, configuration spaces, searches."""
    path = tmp_path / "op.py"
    path.write_text("""\
from types import SimpleNamespace
import cuda.tile as tile
from cuda.tile import launch as start
from cuda.tile.tune import exhaustive_search as search
from tilegym.backend import register_impl

FIXED = [SimpleNamespace(TILE=64)]

def spaces():
    yield SimpleNamespace(TILE=64)

@tile.kernel(occupancy=2)
def copy(x, y, TILE: tile.Constant[int]):
    tile.store(y, (tile.bid(0),), tile.load(x, (tile.bid(0),), (TILE,)))

plain = tile.kernel(lambda: None)

@register_impl("copy", backend="cutile")
def run(x, y, stream):
    for space in (1, 2):
        search(list(spaces()), stream, lambda c: (8,), copy, lambda c: (x, y, c.TILE))
        search(FIXED, stream, lambda c: (8,), copy, lambda c: (x, y, c.TILE))
    start(stream, (8,), copy, (x, y, 64))
""")
    ((_, items),) = lint_paths([path]).inventories
    assert [(item.what, item.line, item.name, item.function) for item in items] == [
        ("space", 7, "FIXED", ""),
        ("space", 9, "spaces", ""),
        ("kernel", 13, "copy(occupancy=2)", ""),
        ("registration", 19, "copy → run", ""),
        ("search", 21, "copy", "run"),
        ("search", 22, "copy", "run"),
        ("launch", 23, "copy", "run"),
    ]


def test_the_text_shows_reason_and_fix_once(file: Path) -> None:
    (rule,) = named(["TW401"])
    lines = list(lint_table.lines(lint_paths([file], select=["TW401"]), 200))
    assert sum(line.startswith("not_an_argument: ") for line in lines) == 1
    assert sum(rule.fix in line for line in lines) == 1
    assert lines[-1] == "2 errors in 1 file"
    narrow = list(lint_table.lines(lint_paths([file], select=["TW401"]), 60))
    assert all(len(line) <= 60 for line in narrow[narrow.index("") :])
    assert rule.fix in " ".join(line.strip() for line in narrow)


def test_json_carries_everything(file: Path) -> None:
    value = json.loads(json.dumps(lint_table.to_json(lint_paths([file], select=["TW401"]))))
    assert value["counts"] == {"error": 2, "warning": 0, "note": 0}
    assert {"code", "file", "line", "column", "message", "why", "fix", "level"} <= set(value["findings"][0])
    assert any(item["what"] == "launch" for item in value["inventory"][str(file)])


def test_files_without_cutile_are_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "web.py"
    path.write_text(
        "import os\nimport torch\n\ndef load(cache, key):\n    if key not in cache:\n        cache[key] = key.to(1)\n"
        "    return cache[key], torch.cuda.get_device_properties('cuda')\n\nos.environ['DISABLE_AUTOTUNE'] = '1'\n"
    )
    report = lint_paths([path])
    assert not report.findings
    assert not report.inventories


def below(folder: Path, name: str, text: str) -> dict[str, str]:
    """The levels of the findings by code, of one file in a folder."""
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).write_text(text)
    return {finding.code: finding.level for finding in lint_paths([folder]).findings}


def test_a_file_without_the_language_is_not_parsed(tmp_path: Path) -> None:
    """Below a folder. A file that the user names is."""
    assert not below(tmp_path, "web.py", "def f(:\n")
    assert not below(tmp_path, "note.py", "import torch\n# faster than Triton's\ndef f(:\n")
    assert codes(lint_paths([tmp_path / "web.py"])) == {"TW001"}
    assert below(tmp_path, "ops.py", "import cuda.tile\ndef f(:\n") == {"TW001": "error"}


def test_findings_in_tests_are_of_a_lower_level(tmp_path: Path) -> None:
    bad = EXAMPLES["TW207"].bad + EXAMPLES["TW204"].bad
    here = below(tmp_path, "ops.py", bad)
    (tmp_path / "ops.py").unlink()
    there = below(tmp_path, "test_ops.py", bad)
    assert (here["TW207"], here["TW204"]) == ("warning", "error")
    assert (there["TW207"], there["TW204"]) == ("note", "warning")


def test_newer_syntax_is_a_note(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """libcst knows the syntax of later versions of Python than the one that runs."""
    monkeypatch.setattr(SourceFile, "read", lambda path: compile("def f(:", str(path), "exec"))
    path = tmp_path / "new.py"
    path.write_text("type Pair[T] = tuple[T, T]\n")
    (finding,) = lint_paths([path]).findings
    assert finding.level == "note" and "newer than Python" in finding.message


SEARCHED = """
import collections, os, functools
import cuda.tile as ct
import torch
from cuda.tile.tune import exhaustive_search

@ct.kernel
def copy(x, y, TILE: ct.Constant[int]):
    ct.store(y, (ct.bid(0),), ct.load(x, (ct.bid(0),), (TILE,)))

def search(x, y, stream):
    return exhaustive_search([64, 128], stream, lambda t: (8,), copy, lambda t: (x, y, t)).best.config
"""


def test_caches_in_attributes_and_memoised_functions_are_caches(tmp_path: Path) -> None:
    inside = SEARCHED + (
        "\nclass Op:\n    def __init__(self):\n        self.known = {}\n"
        "    def run(self, x, y, stream):\n        key = (x.shape,)\n        if key not in self.known:\n"
        "            self.known[key] = search(x, y, stream)\n"
    )
    assert {"TW201", "TW202"} <= set(below(tmp_path, "ops.py", inside))
    memoised = SEARCHED.replace("def search(", "@functools.lru_cache\ndef search(")
    assert "TW202" in below(tmp_path, "ops.py", memoised)


def test_what_was_reported_wrongly_is_not(tmp_path: Path) -> None:
    """An LRU does not grow without limit; a log level is no switch; a script may ask for the current device."""
    text = SEARCHED + (
        "_cache = collections.OrderedDict()\ndef run(x, y, stream):\n    key = (x.shape, x.dtype, x.device)\n"
        "    if key not in _cache:\n        if os.environ.get('TUNE_LOG_LEVEL'):\n            print(key)\n"
        "        _cache[key] = search(x, y, stream)\n"
        "        if len(_cache) > 9:\n            _cache.popitem(last=False)\n"
        "if __name__ == '__main__':\n    print(torch.cuda.get_device_name())\n"
    )
    found = below(tmp_path, "ops.py", text)
    assert "TW205" not in found and "TW208" not in found
    (bounded,) = (each for each in lint_paths([tmp_path]).findings if each.code == "TW202")
    assert "without limit" not in bounded.message


def test_the_dtype_of_one_array_is_not_that_of_another(tmp_path: Path) -> None:
    text = SEARCHED.split("def search")[0].replace("(x, y, TILE:", "(x, w, y, TILE:").replace(
        "(TILE,)))", "(TILE,)) + ct.load(w, (0,), (TILE,)))"
    ) + (
        "_cache = {}\ndef run(x, w, y, stream):\n    key = (x.shape, x.dtype, x.device)\n    if key not in _cache:\n"
        "        found = exhaustive_search([64, 128], stream, lambda t: (8,), copy, lambda t: (x, w, y, t))\n"
        "        _cache[key] = found.best.config\n"
    )
    below(tmp_path, "ops.py", text)
    (key,) = (each for each in lint_paths([tmp_path]).findings if each.code == "TW201")
    assert key.level == "note" and key.message.endswith("has a dtype, but not that of w")
    below(tmp_path, "ops.py", text.replace("x.dtype", "x.dtype, w.dtype"))
    assert not any("not that of" in each.message for each in lint_paths([tmp_path]).findings)
