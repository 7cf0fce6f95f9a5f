"""The documents hold: code blocks run, commands parse, files exist, links lead somewhere.

A Python block is executed; one marked ``python task`` is written to a file, loaded and compiled. One that names a file
(``python ptx_language.py``) is part of a plug-in, which test_plugging_in.py builds.
"""

from __future__ import annotations

import re
import shlex
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import typer

from tilewright.cli import main as cli
from tilewright.compile.compile import Unit, compile_all
from tilewright.hardware import architectures as hardware
from tilewright.records import MachineCode
from tilewright.task.loading import load_task

ROOT = Path(__file__).parent.parent
DOCUMENTS = (
    *(ROOT / f"{name}.md" for name in ("README", "CONTRIBUTING", "CHANGELOG")),
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "plugins").rglob("*.md")),
)

MADE_LATER = {
    ".tilewright/", "ledger.db", "results.db", "results.db.imported",
    "escalation.md", "perf_results.md", "perf_predicted.md", "runs/", "jobs/", "attention_task.py",
    "attention_triton.py", "doubled_task.py", "add_softmax.py", "add_softmax_kernel.py",
    "silu.py", "my_kernel.py", "refs/tilewright/", "train.py", "analysis.txt",
}  # fmt: skip
"""Paths that a command makes, or that stand for a file of the reader's."""

BLOCK = re.compile(r"^```(?P<info>[^\n]*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^\]]+\]\((?P<target>[^)\s]+)\)")
SPAN = re.compile(r"`(?P<text>[^`\n]+)`")
PATH = re.compile(r"[\w.\-]+(/[\w.\-]+)*(\.(py|md|toml|db)|/)")


@dataclass(frozen=True)
class Block:
    """A fenced block of a document."""

    document: Path
    line: int
    language: str
    word: str
    text: str

    def __str__(self) -> str:
        return f"{self.document.name}:{self.line}"


def blocks(*languages: str) -> list[Block]:
    found = []
    for document in DOCUMENTS:
        text = document.read_text()
        for match in BLOCK.finditer(text):
            language, _, word = match["info"].partition(" ")
            if language in languages:
                line = text[: match.start()].count("\n") + 1
                found.append(Block(document, line, language, word, match["text"]))
    return found


def prose(document: Path) -> str:
    return BLOCK.sub("", document.read_text())


# Python -----------------------------------------------------------------------------------------------


def executed(block: Block, file: Path) -> None:
    exec(compile(block.text, str(block), "exec"), {"__name__": "document"})


def loaded_and_compiled(block: Block, file: Path) -> None:
    """On a machine without a GPU: the task loads and its shipped configuration gives a cubin."""
    file.write_text(block.text)
    task = load_task(str(file))
    board = hardware.default_board("sm_90")
    units = [Unit(workload, task.space.shipped, board) for workload in task.selected(None)]
    for compiled in compile_all(task, units, seconds=60):
        assert isinstance(compiled.code, MachineCode), compiled.code


HOW: dict[str, Callable[[Block, Path], None]] = {"": executed, "task": loaded_and_compiled}


@pytest.mark.parametrize("block", [one for one in blocks("python") if not one.word.endswith(".py")], ids=str)
def test_python_blocks_hold(block: Block, tmp_path: Path) -> None:
    HOW[block.word](block, tmp_path / "shown.py")


def test_every_block_says_its_language() -> None:
    for document in DOCUMENTS:
        assert {match["info"].split(" ")[0] for match in BLOCK.finditer(document.read_text())} <= {
            "python", "console", "text",
        }, document  # fmt: skip


# Commands ---------------------------------------------------------------------------------------------


def commands() -> Iterator[tuple[str, str]]:
    """Each shown command line, with its place."""
    for block in blocks("console"):
        for line in block.text.splitlines():
            if line.startswith("$ "):
                yield str(block), line.removeprefix("$ ")
    for document in DOCUMENTS:
        for match in SPAN.finditer(prose(document)):
            if match["text"].startswith(("tilewright ", "make ")):
                yield document.name, match["text"]


@pytest.mark.long
def test_what_triton_users_are_shown_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every command of the page, in order. What is shown without a time or a version is printed so."""
    pytest.importorskip("triton")
    page = ROOT / "docs" / "triton.md"
    shutil.copytree(ROOT / "examples" / "triton", tmp_path / "examples" / "triton")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TILEWRIGHT_HOME", raising=False)
    run = [command for place, command in commands() if place.startswith(f"{page.name}:")]
    for command in run:
        assert cli.main([*shlex.split(command)[1:], *(["--arch", "sm_90"] if "examples" in command else [])]) == 0
    printed = capsys.readouterr().out
    assert len(run) >= 5 and Path("my_kernel.py").is_file()
    shown = [line for block in blocks("text") if block.document == page for line in block.text.splitlines()]
    rows = [line.removesuffix("|") for line in shown if line.startswith("|") and not re.search(r"\d\.\d|\d{4}", line)]
    assert len(rows) >= 11 and not [row for row in rows if row not in printed]
    assert not [line for line in shown if line.startswith("## ") and line not in printed]


def test_commands_parse() -> None:
    group = typer.main.get_command(cli.app())
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    seen = set()
    for place, command in commands():
        program, *words = shlex.split(command, comments=True)
        if program == "make":
            assert set(words) <= set(targets), (place, command)
            continue
        assert program == "tilewright", (place, command)
        verb, *arguments = words
        if verb.startswith("--"):
            assert verb in {option for parameter in group.params for option in parameter.opts}, (place, command)
            continue
        assert verb in group.commands, (place, command)  # type: ignore[attr-defined]
        if arguments:  # a bare verb in a sentence names the command
            group.commands[verb].make_context(verb, list(arguments))  # type: ignore[attr-defined]
        seen.add(verb)
    assert seen == set(group.commands), "the README shows every command"  # type: ignore[attr-defined]


@pytest.mark.parametrize("verb", sorted(typer.main.get_command(cli.app()).commands))  # type: ignore[attr-defined]
def test_every_command_explains_itself(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([verb, "--help"]) == 0
    assert "--json" in capsys.readouterr().out


def test_the_options_that_are_named_exist(capsys: pytest.CaptureFixture[str]) -> None:
    group = typer.main.get_command(cli.app())
    verbs = list(group.commands.values())  # type: ignore[attr-defined]
    verbs += [one for verb in verbs for one in getattr(verb, "commands", {}).values()]
    known = {option for verb in verbs for p in verb.params for option in p.opts}
    for document in DOCUMENTS:
        for match in SPAN.finditer(prose(document)):
            if match["text"].startswith("--"):
                assert match["text"].split()[0] in known | {"--help", "--install-completion"}, (
                    document.name,
                    match["text"],
                )


# Files and links --------------------------------------------------------------------------------------


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_files_that_are_named_exist(document: Path) -> None:
    roots = (ROOT, ROOT / "src" / "tilewright", document.parent)
    named = [match["text"] for match in SPAN.finditer(prose(document)) if PATH.fullmatch(match["text"])]
    shown = [
        word
        for block in blocks("console")
        if block.document == document
        for word in block.text.split()
        if PATH.fullmatch(word)
    ]
    for name in {*named, *shown} - MADE_LATER:
        assert any((root / name).exists() for root in roots), name


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_somewhere(document: Path) -> None:
    for match in LINK.finditer(prose(document)):
        target, _, anchor = match["target"].partition("#")
        if target.startswith("https://"):
            continue
        file = (document.parent / target).resolve() if target else document
        assert file.exists(), match["target"]
        assert ROOT in file.parents, match["target"]
        if anchor:
            assert anchor in headings(file), match["target"]


def headings(document: Path) -> set[str]:
    """Anchors as GitHub makes them."""
    titles = re.findall(r"^#+ (.*)$", prose(document), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def test_the_readme_of_a_wheel_links_to_no_file_beside_it() -> None:
    """The build puts the place in the installed package where the README links to a file."""
    settings = re.search(r"pattern = '(.+)', replacement = '(.+)' ", (ROOT / "pyproject.toml").read_text())
    assert settings
    shown = re.sub(settings[1], settings[2], (ROOT / "README.md").read_text())
    assert all(match["target"].startswith(("https://", "#")) for match in LINK.finditer(shown))
    assert "Installing (`tilewright/docs/install.md`)" in shown or "installing (`tilewright/docs/install.md`)" in shown


def test_the_readme_is_short() -> None:
    readme = (ROOT / "README.md").read_text()
    assert len(readme.splitlines()) <= 150
    assert "make demo" in readme
    assert "make test" in readme
