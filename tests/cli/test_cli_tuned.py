"""`tilewright tuned …` as a person and a script use it: each command, its JSON, and every mistake one can make."""

from __future__ import annotations

import inspect
import json
import math
import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.runtime.made_winners import winner
from tests.runtime.store.test_config_file import parts, stored

from tilewright.cli import main as cli
from tilewright.cli import tuned as cli_tuned
from tilewright.race.stats import Interval
from tilewright.runtime.key import digest
from tilewright.runtime.store import config_file
from tilewright.runtime.store import verifying as tuned_verify
from tilewright.runtime.store.exporting import as_json, config_file_of
from tilewright.runtime.store.verifying import Against, Here
from tilewright.runtime.store.winners import Winner, Winners


class Ran:
    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def error(self) -> str:
        """The only ``error:`` line; a traceback fails the test."""
        assert "Traceback" not in self.err and self.out == ""
        (line,) = [line for line in self.err.splitlines() if line.startswith("error: ")]
        return line


Run = Callable[..., Ran]
OF_MATMUL = parts(kernel="matmul", toolkit="cuda-tile 1.6.0")
MATMUL = digest(OF_MATMUL)


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Run:
    monkeypatch.setenv("TILEWRIGHT_TUNED", str(tmp_path / "tuned"))
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> Ran:
        code = cli.main(("tuned", *arguments))
        out, err = capsys.readouterr()
        return Ran(code, out, err)

    return run


@pytest.fixture
def three(run: Run) -> list[Winner]:
    made = [
        stored(parts(), 1, created="2026-01-02T00:00:00+00:00"),
        stored(parts(8192), 2, created="2026-03-04T00:00:00+00:00"),
        winner(MATMUL, kernel="matmul", parts=OF_MATMUL),
    ]
    for one in made:
        Winners(strict=True).put(one)
    return made


@pytest.fixture
def filled(run: Run, three: list[Winner]) -> Run:
    """`run` on a store with two winners of softmax and one of matmul."""
    return run


def test_each_command_has_an_example_and_json(run: Run) -> None:
    for command in ("list", "show", "export", "import", "verify", "prune"):
        ran = run(command, "--help")
        assert ran.code == 0 and f"Example: tilewright tuned {command}" in ran.out and "--json" in ran.out
    helped = run()
    assert helped.code == 0 and all(text in helped.out for text in ("list", "verify", "prune", "--json"))
    defaults = inspect.signature(cli_tuned.verify).parameters
    assert defaults["seconds"].default == tuned_verify.SECONDS


# list, show


def test_list(filled: Run) -> None:
    ran = filled("list")
    assert ran.code == 0
    arrays = "bfloat16 4096×1024, 4096×1024"
    for text in ("softmax", "matmul", arrays, "NVIDIA H200 sm_90", "1.250", "2026-01-02", "wrapper"):
        assert text in ran.out
    [row] = filled("list", "matmul", "--json").json
    assert row["key"] == MATMUL and row["speedup"] == 1.25 and row["toolkit"] == "cuda-tile 1.6.0"


def test_list_and_show_fit_a_terminal_of_80_columns(filled: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    listed, shown = filled("list"), filled("show", MATMUL[:4])
    assert max(map(len, (listed.out + shown.out).splitlines())) <= 80
    for text in ("softmax", "matmul", "4096×1024", "NVIDIA H200 sm_90", "1.250", "2026-01-02", "wrapper"):
        assert text in listed.out
    for text in ("TILE=64", "12.50", "launch_mode", "cuda-tile 1.6.0"):
        assert text in shown.out


def test_ten_are_listed_and_the_others_counted(run: Run) -> None:
    for number in range(13):
        Winners().put(winner(f"{number:x}" * 64, kernel="matmul", parts=parts(kernel="matmul")))
    few = run("list")
    assert "3 more tuned calls; --all shows them" in few.out and "3 matmul" in few.out
    assert "more tuned calls" not in run("list", "--all").out and len(run("list", "--json").json) == 13


def test_list_of_nothing(run: Run) -> None:
    ran = run("list")
    assert ran.code == 0 and "nothing is stored in " in ran.out
    assert run("list", "--json").json == []
    assert not Path("tuned").exists()


def test_show_has_every_outcome_and_every_part(filled: Run) -> None:
    ran = filled("show", MATMUL[:4].upper())
    assert ran.code == 0
    for text in (MATMUL, "TILE=64", "12.50", "1.250× shipped", "launch_mode", "cuda-tile 1.6.0"):
        assert text in ran.out
    shown = filled("show", MATMUL[:4], "--json").json
    assert [one["label"] for one in shown["outcomes"]] == ["TILE=64", "TILE=128"]
    assert shown["parts"]["arrays"]["x"]["shape"] == [4096, 1024]


def test_a_key_that_is_not_there_names_the_nearest(filled: Run, three: list[Winner]) -> None:
    key = three[0].key
    mistyped = key[:5] + ("0" if key[5] != "0" else "1") + key[6:10]
    error = filled("show", mistyped).error
    assert f"unknown key '{mistyped}'; known: {key[:12]} (softmax)" in error
    assert "known: none" in filled("show", "x").error or "(matmul)" in filled("show", "x").error


def test_a_beginning_of_several_keys_lists_them(run: Run) -> None:
    for key in ("abc1", "abc2"):
        Winners().put(winner(key))
    assert "is the beginning of 2 keys; give more characters: abc1, abc2" in run("show", "ab").error


@pytest.mark.parametrize("command", ["list", "export", "verify"])
def test_a_kernel_that_is_not_there_names_the_kernels(filled: Run, command: str) -> None:
    ran = filled(command, "soft")
    assert ran.code == 2 and "unknown kernel 'soft'; did you mean 'softmax'? known: matmul, softmax" in ran.error


# export, import


def test_export_and_import_on_another_machine(filled: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    ran = filled("export", "--into", "tables")
    assert ran.code == 0 and "tables/softmax.json: 2 rows of softmax" in ran.out
    monkeypatch.setenv("TILEWRIGHT_TUNED", str(tmp_path / "elsewhere"))
    done = filled("import", "tables/softmax.json", "tables/matmul.json", "--json")
    assert [one["outcome"] for one in done.json] == ["added"] * 3
    assert filled("import", "tables/softmax.json").out.count("same: softmax") == 2
    assert {one["origin"] for one in filled("list", "--json").json} == {"import"}


def test_export_to_stdout_is_the_table(filled: Run) -> None:
    table = filled("export", "softmax").json
    assert table["kernel"] == "softmax" and len(table["rows"]) == 2
    assert filled("export", "softmax", "--python").out.startswith('"""Tuned configurations of softmax')
    assert "name one kernel, or a folder with --into; known: matmul, softmax" in filled("export").error


B200 = "NVIDIA B200 sm_100"


def test_export_into_a_folder_keeps_the_rows_of_other_gpus(
    filled: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    filled("export", "softmax", "--into", "t")
    first = json.loads(Path("t/softmax.json").read_text())
    monkeypatch.setenv("TILEWRIGHT_TUNED", str(tmp_path / "second machine"))
    Winners(strict=True).put(stored(parts(board=B200), 7))
    ran = filled("export", "--into", "t")
    both = json.loads(Path("t/softmax.json").read_text())
    assert both["rows"][:2] == first["rows"] and "; only in the file, and kept: 2 of NVIDIA H200 sm_90" in ran.out
    assert [row["parts"]["board"] for row in both["rows"]] == ["NVIDIA H200 sm_90"] * 2 + [B200]
    assert config_file.load(Path("t/softmax.json")).find(parts(board=B200)).config == {"TILE": 7}  # type: ignore[union-attr]
    assert filled("export", "--into", "t", "--json").json[0]["kept"] == {"NVIDIA H200 sm_90": 2}
    assert json.loads(Path("t/softmax.json").read_text()) == both
    assert ": 1 rows of softmax\n" in filled("export", "--into", "t", "--replace").out
    assert [row["config"] for row in json.loads(Path("t/softmax.json").read_text())["rows"]] == [{"TILE": 7}]


def test_export_leaves_out_what_somebody_changed(filled: Run) -> None:
    """Parts that are not those of the key, such as another source; and a time that is none."""
    Winners().put(replace(stored(parts(64), 7), key="5" * 64))
    Winners().put(stored(parts(32), 8, index=None, outcomes=(), machine={"us": math.inf, "shipped_us": math.nan}))
    ran = filled("export", "softmax")
    assert ran.code == 0 and "555555555555 of softmax is left out: its key is not the digest of its parts" in ran.err
    rows = json.loads(ran.out)["rows"]
    assert {row["config"]["TILE"]: row["us"] for row in rows} == {1: 10.0, 2: 10.0, 8: None}


def test_export_replaces_older_rows_of_the_same_call_and_keeps_the_rule(run: Run) -> None:
    Winners().put(stored(parts(), 1, created="2026-01-01"))
    run("export", "--into", "t")
    table = json.loads(Path("t/softmax.json").read_text())
    table["rule"]["factor"] = 4.0
    Path("t/softmax.json").write_text(json.dumps(table))
    Winners().put(stored(parts(toolkit="cuda-tile 9"), 2, created="2026-02-02"))
    run("export", "--into", "t")
    table = json.loads(Path("t/softmax.json").read_text())
    assert [row["config"] for row in table["rows"]] == [{"TILE": 2}] and table["rule"]["factor"] == 4.0
    table["rows"][0] |= {"config": {"TILE": 3}, "created": "2026-03-03"}
    Path("t/softmax.json").write_text(json.dumps(table))
    run("export", "--into", "t")
    assert json.loads(Path("t/softmax.json").read_text())["rows"][0]["config"] == {"TILE": 3}


@pytest.mark.parametrize("content", ["{}", "[", '{"format": "tilewright tuned kernel", "version": 1, "rows": 3}'])
def test_export_does_not_overwrite_what_it_cannot_read(filled: Run, content: str) -> None:
    Path("softmax.json").write_text(content)
    assert "--replace writes a new file" in filled("export", "softmax", "--into", ".").error
    assert Path("softmax.json").read_text() == content
    assert filled("export", "softmax", "--into", ".", "--replace").code == 0


def test_export_does_not_merge_two_kernels_of_one_name(run: Run, tmp_path: Path) -> None:
    Winners().put(stored(parts(), 1, machine={"module": "attention"}))
    run("export", "--into", "t")
    run("prune", "--all")
    Winners().put(stored(parts(), 2, machine={"module": "loss"}))
    assert "t/softmax.json has the configurations of attention.softmax, not of loss.softmax; fix: another folder" in (
        run("export", "--into", "t").error
    )
    assert "name the folder with --into" in run("export", "--replace").error


def test_export_leaves_out_what_has_no_named_fields(run: Run) -> None:
    Winners().put(stored(parts(), 1, config=None))
    ran = run("export", "--into", "tables", "--json")
    assert ran.json == [] and "no named fields" in ran.err
    assert "no named fields" in run("export").error


def test_export_keeps_the_latest_of_a_call(run: Run) -> None:
    for day, source in ((1, "old"), (2, "new")):
        Winners().put(stored(parts(source=source), day, created=f"2026-01-0{day}"))
    table = run("export").json
    assert [row["config"] for row in table["rows"]] == [{"TILE": 2}] and table["common"]["source"] == "new"


def test_import_shows_conflicts_and_keeps_what_stands(filled: Run) -> None:
    filled("export", "softmax", "--into", ".")
    text = Path("softmax.json").read_text().replace('"TILE": 1}', '"TILE": 9}')
    Path("softmax.json").write_text(text)
    ran = filled("import", "softmax.json", "--replace")
    assert ran.code == 0 and "kept: softmax" in ran.out and "TILE=9; TILE=1 stays" in ran.out
    assert "what was measured on this machine was kept" in ran.err and "tilewright tuned prune --key" in ran.err
    filled("prune", "--kernel", "softmax")
    filled("import", "softmax.json")
    Path("softmax.json").write_text(text.replace('"TILE": 9}', '"TILE": 8}'))
    assert "--replace takes those of a config file" in filled("import", "softmax.json").err
    assert "replaced: softmax" in filled("import", "softmax.json", "--replace").out
    assert {"TILE": 8} in [one["config"] for one in filled("list", "--json").json]


def test_a_store_of_another_machine_is_imported(filled: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TILEWRIGHT_TUNED", str(tmp_path / "elsewhere"))
    Winners(strict=True).put(stored(parts(), 5, machine={"host": "here"}))
    ran = filled("import", str(tmp_path / "tuned"), "--json")
    assert ran.code == 0 and sorted(one["outcome"] for one in ran.json) == ["added", "added", "kept"]
    assert [one["kernel"] for one in filled("list", "--json").json] == ["matmul", "softmax", "softmax"]
    key = digest(parts())
    assert "not launched: TILE=128" in filled("show", key).out
    shown = filled("show", key, "--json").json
    assert shown["config"] == {"TILE": 5} and [one["config"] for one in shown["others"]] == [{"TILE": 1}]
    assert "cannot read" in filled("import", str(tmp_path / "nothing.db")).error


def test_import_of_what_is_no_table_stores_nothing(filled: Run) -> None:
    filled("export", "softmax", "--into", "t")
    filled("prune", "--all")
    Path("bad.json").write_text("{}")
    assert "bad.json is no file of tuned configurations" in filled("import", "t/softmax.json", "bad.json").error
    assert filled("list", "--json").json == []


def test_a_folder_that_cannot_be_written(filled: Run) -> None:
    Path("file").write_text("")
    ran = filled("export", "--into", "file/tables")
    assert ran.code == 2 and "cannot write file/tables" in ran.error


# prune


@pytest.mark.parametrize(
    ("arguments", "left"),
    [
        (["--kernel", "softmax"], ["matmul"]),
        (["--key", "6c1f"], ["softmax", "softmax"]),
        (["--older-than", "0"], []),
        (["--older-than", "100000"], ["matmul", "softmax", "softmax"]),
        (["--older-than", "0", "--kernel", "matmul"], ["softmax", "softmax"]),
        (["--missing-source"], ["matmul", "softmax", "softmax"]),
        (["--all"], []),
    ],
    ids=" ".join,
)
def test_prune(filled: Run, arguments: list[str], left: list[str]) -> None:
    dry = filled("prune", *arguments, "--dry-run")
    assert dry.code == 0 and f"would remove {3 - len(left)} of 3" in dry.out
    assert len(filled("list", "--json").json) == 3
    assert f"removed {3 - len(left)} of 3" in filled("prune", *arguments).out
    assert [one["kernel"] for one in filled("list", "--json").json] == left


def test_prune_what_another_toolkit_tuned(filled: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tilewright.runtime.key.toolkit", lambda: parts()["toolkit"])
    gone = filled("prune", "--toolkit-not-current", "--json").json
    assert [one["kernel"] for one in gone] == ["matmul"]


def test_prune_demands_a_criterion(filled: Run) -> None:
    ran = filled("prune")
    assert ran.code == 2 and "--missing-source or --all" in ran.error


# verify


def test_verify_without_a_gpu_says_what_can_be_said(filled: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuned_verify, "this_machine", lambda: (Here(None, "cuda-tile 1.7.0"), None))
    ran = filled("verify")
    assert ran.code == 3 and "3 cannot" in ran.out and "no launch was stored" in ran.out
    assert [one["tuned_with"] for one in filled("verify", "matmul", "--json").json] == ["cuda-tile 1.6.0"]


@pytest.mark.parametrize(
    ("verdicts", "code"),
    [
        (("holds", "holds", "holds"), 0),
        (("holds", "cannot", "cannot"), 0),
        (("holds", "drifted", "holds"), 1),
        (("cannot", "cannot", "wrong"), 1),
        (("cannot", "cannot", "cannot"), 3),
    ],
)
def test_the_exit_code_of_verify(
    filled: Run, monkeypatch: pytest.MonkeyPatch, verdicts: tuple[Any, ...], code: int
) -> None:
    against = (Against("shipped", "TILE=32", Interval(1.1, 1.2, 1.3, 0.99, 100)),)

    def verify(winners: Any, *_: Any, **__: Any) -> Any:
        every = zip(winners, verdicts, strict=True)
        return [replace(one, verdict=verdict, against=against, us=9.0) for one, verdict in every]

    monkeypatch.setattr(tuned_verify, "verify", verify)
    monkeypatch.setattr(tuned_verify, "this_machine", lambda: (Here("here", "now"), object()))
    ran = filled("verify", "--json")
    assert ran.code == code and [one["verdict"] for one in ran.json] == list(verdicts)
    assert ran.json[0]["against"][0]["ratio"]["low"] == 1.1 and ran.json[0]["us_when_tuned"] == 10.0


def test_verify_of_nothing_is_no_success(run: Run) -> None:
    """A check in CI that looked at an empty store must not be green."""
    ran = run("verify")
    assert ran.code == 2 and "run the program first" in ran.error


# Kernels of one name


@pytest.fixture
def two_of_a_name(run: Run) -> Run:
    for tile, module in ((1, "lib_a"), (2, "lib_b")):
        launch = {"module": module, "qualname": "scale", "file": f"/{module}.py"}
        made = parts(kernel="scale", source=str(tile))
        Winners(strict=True).put(stored(made, tile, kernel="scale", launches={"winner": launch}))
    return run


def test_kernels_of_one_name_are_told_apart(two_of_a_name: Run) -> None:
    listed = two_of_a_name("list")
    assert "lib_a.scale" in listed.out and "lib_b.scale" in listed.out
    [row] = two_of_a_name("list", "lib_b.scale", "--json").json
    assert row["module"] == "lib_b" and row["config"] == {"TILE": 2}
    assert f"lib_b.scale  {row['key']}" in two_of_a_name("show", row["key"]).out
    table = two_of_a_name("export", "lib_b.scale").json
    assert table["module"] == "lib_b" and [one["config"] for one in table["rows"]] == [{"TILE": 2}]
    forgotten = two_of_a_name("prune", "--kernel", "lib_b.scale")
    assert "lib_b.scale" in forgotten.out and "removed 1 of 2" in forgotten.out
    assert two_of_a_name("list", "scale", "--json").json[0]["module"] == "lib_a"


def test_both_of_one_name_are_exported_and_imported_apart(
    two_of_a_name: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    two_of_a_name("export", "--into", "t")
    assert sorted(path.name for path in Path("t").iterdir()) == ["lib_a.scale.json", "lib_b.scale.json"]
    monkeypatch.setenv("TILEWRIGHT_TUNED", str(tmp_path / "elsewhere"))
    two_of_a_name("import", "t/lib_a.scale.json", "t/lib_b.scale.json")
    assert [one["config"] for one in two_of_a_name("list", "lib_b.scale", "--json").json] == [{"TILE": 2}]


@pytest.mark.parametrize("command", [("list",), ("export",), ("verify",), ("prune", "--kernel")])
def test_a_name_of_two_kernels_is_one_line(two_of_a_name: Run, command: tuple[str, ...]) -> None:
    ran = two_of_a_name(*command, "scale")
    assert ran.code == 2
    assert ran.error.endswith("'scale' is the name of 2 kernels; give one of: lib_a.scale, lib_b.scale")


def test_verify_names_the_module(two_of_a_name: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuned_verify, "this_machine", lambda: (Here(None, "cuda-tile 1.7.0"), None))
    assert "lib_a.scale" in two_of_a_name("verify").out
    assert [one["module"] for one in two_of_a_name("verify", "--json").json] == ["lib_a", "lib_b"]


def test_export_says_where_rows_are_of_several_sources(run: Run) -> None:
    for rows, source in ((4096, "old"), (8192, "new")):
        Winners().put(stored(parts(rows, source=source), 1))
    ran = run("export")
    assert len(ran.json["rows"]) == 2 and "note: softmax: rows of 2 versions of its source" in ran.err


# What is wrong with the store


@pytest.fixture
def with_unreadable(filled: Run, three: list[Winner]) -> Run:
    """The entry of matmul is of another Tilewright."""
    with closing(sqlite3.connect(Winners().path)) as connection, connection:
        connection.execute("UPDATE winners SET config = '{\"TILE\": [1]}' WHERE kernel = 'matmul'")
    return filled


@pytest.mark.parametrize("command", [("list",), ("export", "--into", "t"), ("verify",), ("prune", "--older-than", "0")])
def test_an_entry_that_cannot_be_read_is_named_and_the_others_are_there(
    with_unreadable: Run, command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tuned_verify, "this_machine", lambda: (Here(None, "cuda-tile 1.7.0"), None))
    ran = with_unreadable(*command)
    assert "Traceback" not in ran.err and "softmax" in ran.out
    [note] = [line for line in ran.err.splitlines() if line.startswith("note: ")]
    assert "an entry of matmul that this Tilewright cannot read, 6c1faf1526d0 (" in note
    assert "fix: `tilewright tuned prune --key 6c1faf1526d0`" in note


def test_an_entry_that_cannot_be_read_is_forgotten_by_its_key(with_unreadable: Run, three: list[Winner]) -> None:
    assert with_unreadable("show", three[0].key).code == 0
    ran = with_unreadable("show", MATMUL[:4])
    assert ran.code == 3 and "prune --key 6c1faf1526d0" in ran.error
    assert "removed 0 of 3" in with_unreadable("prune", "--older-than", "100000").out
    assert "would remove 1 of 3" in with_unreadable("prune", "--key", MATMUL[:4], "--dry-run").out
    assert [one["key"] for one in with_unreadable("prune", "--key", MATMUL[:4], "--json").json] == [MATMUL]
    ran = with_unreadable("list")
    assert "note" not in ran.err and "softmax" in ran.out


def test_all_forgets_what_cannot_be_read_too(with_unreadable: Run) -> None:
    assert "removed 3 of 3" in with_unreadable("prune", "--all").out
    assert with_unreadable("list").out.startswith("nothing is stored")


def test_a_table_with_one_wrong_row_stores_nothing(filled: Run) -> None:
    filled("export", "softmax", "--into", "t")
    filled("prune", "--all")
    table = json.loads(Path("t/softmax.json").read_text())
    table["rows"][1]["us"] = "x"
    Path("bad.json").write_text(json.dumps(table))
    ran = filled("import", "bad.json")
    assert ran.code == 2 and "bad.json: us of row 1 is not a time" in ran.error
    assert filled("list", "--json").json == []


def test_rows_are_imported_all_or_none(with_unreadable: Run) -> None:
    """The second table meets an entry that cannot be read: nothing of the first is stored either."""
    with_unreadable("prune", "--kernel", "softmax")
    first, second = stored(parts(), 1), winner(MATMUL, kernel="matmul", parts=parts(kernel="matmul"))
    for name, one in (("first.json", first), ("second.json", second)):
        Path(name).write_text(as_json(config_file_of([one])))
    with closing(sqlite3.connect(Winners().path)) as connection, connection:
        connection.execute("UPDATE winners SET key = ?", (digest(second.parts),))
    ran = with_unreadable("import", "first.json", "second.json")
    assert ran.code == 3 and "cannot read" in ran.error
    assert with_unreadable("list", "--json").json == []


@pytest.mark.parametrize(
    ("variable", "said"),
    [
        ("~nobody-of-that-name/x", "error: cannot tell which folder TILEWRIGHT_TUNED=~nobody-of-that-name/x is; fix: "),
        ("tuned/tuned.db", "fix: set TILEWRIGHT_TUNED to a folder; that is a file"),
    ],
)
def test_a_variable_that_names_no_folder(
    filled: Run, monkeypatch: pytest.MonkeyPatch, variable: str, said: str
) -> None:
    monkeypatch.setenv("TILEWRIGHT_TUNED", variable)
    for command in (("list",), ("prune", "--all")):
        ran = filled(*command)
        assert ran.code == 3 and said in ran.error


@pytest.mark.parametrize("command", [("list",), ("show", "a"), ("export",), ("verify",), ("prune", "--all")])
def test_a_store_that_cannot_be_used_is_one_line_and_exit_code_3(filled: Run, command: tuple[str, ...]) -> None:
    path = Winners().path
    path.write_bytes(b"no database" * 500)
    ran = filled(*command)
    assert ran.code == 3 and "move that file away, or set TILEWRIGHT_TUNED" in ran.error
    path.unlink()
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("CREATE TABLE tilewright_tuned_schema (version INTEGER)")
        connection.execute("INSERT INTO tilewright_tuned_schema VALUES (99)")
    ran = filled(*command)
    assert ran.code == 3 and "another version of Tilewright (schema 99" in ran.error
