"""Reading traces: every event at its place, in any form that torch writes, and one line for what is no trace."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.profile.made_traces import MadeTrace, data_parallel, eager_training, graph_replay

from tilewright.errors import RequestError
from tilewright.profile import json_stream
from tilewright.profile.json_stream import JsonStream, nanoseconds
from tilewright.profile.profile import profile
from tilewright.profile.trace import read

TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=12)
EVENTS = st.lists(st.dictionaries(TEXTS, st.integers() | TEXTS | st.lists(TEXTS, max_size=2), max_size=4), max_size=6)


@settings(max_examples=80, deadline=None)
@given(
    events=EVENTS, chunk=st.integers(1, 40), indent=st.sampled_from([None, 2]), bare=st.booleans(), raw=st.booleans()
)
def test_events_and_places_for_every_size_of_chunk(
    tmp_path_factory: pytest.TempPathFactory, events: list[dict[str, object]], chunk: int, indent: int | None,
    bare: bool, raw: bool,
) -> None:  # fmt: skip
    path = tmp_path_factory.mktemp("made") / "trace.json"
    whole = events if bare else {"schemaVersion": 1, "traceEvents": events, "traceName": "a"}
    path.write_text(json.dumps(whole, indent=indent, ensure_ascii=raw), encoding="utf-8")
    data, lines = path.read_bytes(), path.read_bytes().split(b"\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_stream, "CHUNK", chunk)
        stream = JsonStream(path)
        places = [place for place, _ in stream]
    assert [json.loads(data[place.offset : place.offset + place.length]) for place in places] == events
    for place in places:
        line, rest = lines[place.line - 1], data[place.offset : place.offset + place.length].split(b"\n")[0]
        assert line[place.column - 1 :].startswith(rest)
    assert bare or stream.head == {"schemaVersion": 1, "traceName": "a"}


@pytest.mark.parametrize("made", [eager_training(), graph_replay(), data_parallel()])
def test_the_form_of_the_file_changes_nothing(tmp_path: Path, made: MadeTrace) -> None:
    found = []
    for name, indent in (("a.json", 2), ("b.json", None), ("c.json.gz", 2)):
        (gpu,) = profile(made.write(tmp_path / name, indent)).gpus
        found.append({name: figure.value for name, figure in gpu.figures.items()})
    assert found[0] == found[1] == found[2]


def test_times_since_1970_keep_their_nanoseconds(tmp_path: Path) -> None:
    made = MadeTrace(base=1_700_000_000_123_456)
    made.kernel("a", 0.001, 0.001)
    made.kernel("b", 0.003, 0.001)
    (gpu,) = profile(made.write(tmp_path / "t.json")).gpus
    assert (gpu.value("time"), gpu.value("idle")) == (3e-6, pytest.approx(1 / 3))


@pytest.mark.parametrize(
    ("value", "ns"),
    [
        (5, 5000), ("5.25", 5250), ("-0.5", -500), ("1700000000123456.789", 1700000000123456789), ("1e3", 1_000_000),
        ("1e308", None), ("1e400", None), (10**30, None), (f"{'9' * 5000}.5", None),
        (True, None), ("soon", None), (None, None), ([1], None),
    ],
)  # fmt: skip
def test_nanoseconds(value: object, ns: int | None) -> None:
    assert nanoseconds(value) == ns


def test_numbers_that_json_does_not_know_are_not_measured(tmp_path: Path) -> None:
    """Kineto prints counters and occupancies through fmt, which writes nan and inf."""
    made = MadeTrace()
    made.launched("a", 5, 2, 1)
    counters = {"smsp__sass_thread_inst_executed.sum": 12, "sm__throughput": "@", "dram__bytes": "#"}
    made.add("cuda_profiler_range", "__run_kernel", 0, 1, 1, 1, **counters)
    text = made.text().replace('"@"', "nan").replace('"#"', "-inf")
    (path := tmp_path / "t.json").write_text(text)
    (facts,) = (found := profile(path)).traces
    assert found.rung.name == "CUPTI counters"
    values = {figure.name.split(": ")[1]: figure.value for figure in facts.counters}
    assert values == {"smsp__sass_thread_inst_executed.sum": 12.0, "sm__throughput": None, "dram__bytes": None}
    assert all("not measured" in figure.how for figure in facts.counters if figure.value is None)


def test_every_number_cites_lines_that_are_there(tmp_path: Path) -> None:
    path = eager_training().write(tmp_path / "trace.json")
    found, lines = profile(path), path.read_text().splitlines()
    quoted = {raw.source: raw.text for raw in found.raw}
    for source, text in quoted.items():
        _, line, column = source.split(":")
        assert lines[int(line) - 1][int(column) - 1] == "{"
        assert json.loads(text)["ph"] == "X"
    (gpu,) = found.gpus
    rows = [*gpu.kernels, *found.traces[0].calls, *gpu.gaps, *gpu.figures.values()]
    assert {line for row in rows for line in row.lines} <= set(quoted)
    assert all(figure.lines for figure in gpu.figures.values() if figure.value and figure.name != "host late of idle")
    for row in gpu.kernels:
        (line,) = row.lines
        assert json.loads(quoted[line])["dur"] == pytest.approx(row.max_us)


@pytest.mark.parametrize("cut", [0.3, 0.999])
@pytest.mark.parametrize("name", ["t.json", "t.json.gz"])
def test_a_truncated_trace(tmp_path: Path, cut: float, name: str) -> None:
    path = eager_training().write(tmp_path / name)
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * cut)])
    with pytest.raises(RequestError, match="ends in the middle of the trace .*record fewer steps") as error:
        profile(path)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "is empty"),
        (b"  \n", "is empty"),
        (b"hello", "is no JSON object, not a trace of torch.profiler"),
        (b"SQLite format 3\0....", "is a database of Nsight Systems"),
        (b"NVR\0....", "is a report of Nsight Compute"),
        (b'{"a": 1, "b": [2]}', r"is JSON but no trace: it has no list traceEvents \(fields: a, b\)"),
        (b'{"traceEvents": {"a": 1}}', "its traceEvents is no list"),
        (b'{"traceEvents": []}', r"has no activity of a GPU \(0 events; categories: none\)"),
        (b'[{"cat": "cpu_op", "ph": "X"}, 3]', r"has no activity of a GPU \(2 events; categories: cpu_op\)"),
        (b'{"traceEvents": [{"cat": "kernel", "ts": "soon"}]}', "none of its 1 GPU events has a time"),
        (b'{"traceEvents": [{"cat": "kernel" "ts": 3}, ' + b" " * 99 + b"]}", "line 1: Expecting ',' delimiter"),
        (b'{"traceEvents": [{"cat": "kernel", "ts": 3, "dur": 0}]}', "took any time"),
        (gzip.compress(b"{}", mtime=0)[:-9] + b"damaged..", "is a damaged gzip file|ends in the middle"),
        (b"\x1f\x8b\x08junkjunkjunkjunk", "is a damaged gzip file|ends in the middle"),
    ],
)
def test_what_is_no_trace_is_one_line(tmp_path: Path, content: bytes, why: str) -> None:
    (path := tmp_path / "t.json").write_bytes(content)
    with pytest.raises(RequestError, match=why) as error:
        profile(path)
    assert "\n" not in str(error.value)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    for path, why in ((tmp_path / "gone.json", "No such file"), (tmp_path, "Is a directory")):
        with pytest.raises(RequestError, match=why):
            read(path)


@pytest.mark.long
def test_a_large_trace_needs_little_memory(tmp_path: Path) -> None:
    """The events of this trace take some 400 MB as objects; reading must not keep them."""
    path, made = tmp_path / "large.json", MadeTrace()
    made.launched("a", 5, 2, 1)
    filler = [
        {"ph": "X", "cat": "cpu_op", "name": "aten::add", "ts": n, "dur": 1, "args": {"x": n}} for n in range(2000)
    ]
    body = ",".join(json.dumps(event) for event in filler)
    with path.open("w") as file:
        file.write(made.text()[:-1].replace('"traceEvents": [', f'"traceEvents": [{body},', 1).rsplit("]", 1)[0])
        for _ in range(300):
            file.write(f",{body}")
        file.write("]}")
    code = (
        "import resource, sys; from tilewright.profile.profile import profile;"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss; found = profile(sys.argv[1]);"
        "print(found.traces[0].events, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True)
    events, mebibytes = map(int, done.stdout.split())
    assert events == 602_002 and path.stat().st_size > 45e6
    assert mebibytes < 60
