"""What the changes of programs recognise in small programs of many styles, and whether they stay equal.

    python bench/program_styles.py [PROGRAM …] [--run] [--record] [--set-aside | --findings-set-aside]

A problem counts as seen if a lossless change has a site at its lines, and one of the problem's patterns is in the
change's name or words. With --run the program is run on this machine as it is, once more nudged, and once with each
change that compiles nothing, on top of those that were equal; so it shows which are mended. Nothing is timed here. The
programs that PROBLEMS.json sets aside are left out, unless --set-aside is given; then they are the only ones.

With --record the program is run once with its operations recorded, and the findings of that run are scored, too. A
problem is found if a finding is at its lines, and one of its patterns is in the finding's words. A finding is false if
it is at no problem's lines, and of another kind if it is at those of a problem that its words do not fit. The programs
of findings_set_aside.txt were not looked at while the rules were built; --findings-set-aside takes only these.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tilewright.program.changes import program_changes
from tilewright.program.changes.base import ProgramChange
from tilewright.program.command import ProgramCommand
from tilewright.program.copies import program_copy
from tilewright.program.findings.base import RunFinding
from tilewright.program.findings.finding import findings_in
from tilewright.program.findings.mending import lines_of_site
from tilewright.program.outputs import compare
from tilewright.program.reading.module import ReadModule
from tilewright.program.reading.reach import reached_modules
from tilewright.program.recorded import recorded_run
from tilewright.program.run import ProgramFailed, ProgramRun, run_program

PROGRAMS = Path(__file__).parent / "programs"
FINDINGS_ASIDE = PROGRAMS / "findings_set_aside.txt"
STEPS = 20
SLOW = ("compiled_model", "compiled_function")
"""Not run: they compile for minutes on a CPU."""


def problems_at(problems: list[Any], change: ProgramChange, module: ReadModule) -> Iterator[str]:
    says = " ".join((change.name, change.about, *change.words))
    for site in change.sites(module):
        lines = lines_of_site(module, site)
        for problem in problems:
            here = any(
                place["file"] == module.path.name and lines & set(range(place["lines"][0], place["lines"][1] + 1))
                for place in problem["places"]
            )
            if here and any(
                re.search(pattern, f"{says} {site.what}", re.IGNORECASE) for pattern in problem["patterns"]
            ):
                yield problem["id"]


def lossless() -> list[ProgramChange]:
    return [each for each in program_changes() if not (each.never or each.asked_only or each.risk == "lossy")]


def seen_in(program: Any) -> tuple[dict[str, set[str]], list[str]]:
    """Change → problems at its sites; and the sites that are at no problem."""
    found: dict[str, set[str]] = {}
    other = []
    for module in reached_modules(folder_of(program) / program["main"]):
        for change in lossless():
            sites = change.sites(module)
            for site in sites:
                other.append(f"{module.path.name}:{site.line} {change.name}: {site.what}")
            if sites:
                found.setdefault(change.name, set()).update(problems_at(program["problems"], change, module))
    return found, other


def observed(command: ProgramCommand, texts: dict[Path, str], *, nudged: bool = False) -> ProgramRun | ProgramFailed:
    with program_copy(command, texts) as copy:
        return run_program(copy, steps=STEPS, seconds=300.0, outputs=True, nudged=nudged)


def equal_changes(program: Any) -> dict[str, str]:
    """Change → what its outputs showed, each on top of those that were equal."""
    said = {}
    with tempfile.TemporaryDirectory() as folder:
        main = Path(shutil.copytree(folder_of(program), Path(folder) / "program")) / program["main"]
        command = ProgramCommand.of(main.name, main.parent)
        before, noise = observed(command, {}), observed(command, {}, nudged=True)
        assert isinstance(before, ProgramRun) and isinstance(noise, ProgramRun), before
        for change in (each for each in lossless() if each.name not in SLOW):
            found = ((each, change.sites(each)) for each in reached_modules(main))
            texts = {each.path: change.rewrite(each, *sites) for each, sites in found if sites}
            if not texts:
                continue
            run = observed(command, texts)
            if isinstance(run, ProgramFailed):
                said[change.name] = f"failed: {run.last_line or run.reason}"
                continue
            compared = compare(before, run, noise)
            said[change.name] = f"{compared.verdict}: {compared.reason}"
            for path, text in texts.items() if compared.right else ():
                path.write_text(text)
    return said


def recorded_findings(program: Any) -> tuple[RunFinding, ...]:
    """What the rules find in one recorded run."""
    with tempfile.TemporaryDirectory() as folder:
        main = Path(shutil.copytree(folder_of(program), Path(folder) / "program")) / program["main"]
        command = ProgramCommand.of(main.name, main.parent)
        with program_copy(command, {}) as copy:
            run = recorded_run(copy, 300.0)
        if isinstance(run, ProgramFailed):
            print(f"    the recorded run failed: {run.reason}")
            return ()
        return findings_in(run)


def scored(program: Any, finding: RunFinding) -> tuple[bool, list[str]]:
    """Whether a finding is at a problem's lines, and the problems that it fits."""
    at = {(Path(line.file).name, line.line) for line in finding.lines}
    here = [
        problem for problem in program["problems"] for place in problem["places"]
        if any(file == place["file"] and place["lines"][0] <= line <= place["lines"][1] for file, line in at)
    ]  # fmt: skip
    says = f"{finding.rule}: {finding.text}; {finding.advice}"
    fit = [each["id"] for each in here if any(re.search(p, says, re.IGNORECASE) for p in each["patterns"])]
    return bool(here), list(dict.fromkeys(fit))


def folder_of(program: Any) -> Path:
    folder: Path = program["folder"]
    return folder / program["program"]


def chosen(given: argparse.Namespace) -> Iterator[Any]:
    """The programs that the arguments choose."""
    aside = {line for line in FINDINGS_ASIDE.read_text().splitlines() if line and not line.startswith("#")}
    folder = PROGRAMS / given.folder
    for listed in json.loads((folder / "PROBLEMS.json").read_text())["programs"]:
        program = {**listed, "folder": folder}
        name = program["program"]
        if program.get("set_aside", False) != given.set_aside or (given.programs and name not in given.programs):
            continue
        if given.findings_set_aside and name not in aside:
            continue
        if given.record and name in aside and not given.findings_set_aside:
            continue
        yield program


def score_record(program: Any, before: set[str]) -> tuple[set[str], int, int]:
    """Prints the findings of a program; returns the problems found, and how many findings are false or of another
    kind."""
    found: set[str] = set()
    false = other = 0
    for each in recorded_findings(program):
        at_problem, fit = scored(program, each)
        found |= set(fit)
        false, other = false + (not at_problem), other + (at_problem and not fit)
        verdict = ", ".join(fit) if fit else "another kind" if at_problem else "FALSE"
        places = " ".join(f"{Path(line.file).name}:{line.line}" for line in each.lines)
        print(f"    found {each.rule} at {places} ({each.share:.1%}): {verdict}")
    left = [each["id"] for each in program["problems"] if each["id"] not in found | before]
    print(
        f"    by findings {len(found)}, with the source {len(found | before)}; not found: {', '.join(left) or 'none'}"
    )
    return found, false, other


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("programs", nargs="*")
    parser.add_argument("--folder", default="styles", help="of bench/programs; later: those of 2026-11-24, set aside")
    parser.add_argument("--run", action="store_true")
    parser.add_argument("--record", action="store_true")
    parser.add_argument("--set-aside", action="store_true")
    parser.add_argument("--findings-set-aside", action="store_true")
    given = parser.parse_args()
    seen = mended = total = recorded = after = false = other = 0
    for program in chosen(given):
        found, sites = seen_in(program)
        said = equal_changes(program) if given.run else {}
        equal = {name for name, verdict in said.items() if verdict.startswith(("equal", "within"))}
        here = {each for problems in found.values() for each in problems}
        done = {each for name, problems in found.items() if name in equal for each in problems}
        seen, mended, total = seen + len(here), mended + len(done), total + len(program["problems"])
        print(f"\n{program['program']}: {len(here)} of {len(program['problems'])} seen")
        for problem in program["problems"]:
            names = [name for name, problems in found.items() if problem["id"] in problems]
            print(f"  {problem['id']} {problem['kind']}: {', '.join(names) or 'not seen'}")
        for line in (*(f"site {each}" for each in sites), *(f"run {name}: {text}" for name, text in said.items())):
            print(f"    {line}")
        if given.record:
            by_run, wrong, strange = score_record(program, here)
            recorded, after = recorded + len(by_run), after + len(by_run | here)
            false, other = false + wrong, other + strange
    if given.record:
        print(f"\nfound by a recorded run {recorded}, with the source {after}; false {false}, of another kind {other}")
    print(f"\nseen {seen} of {total}" + (f"; made with equal outputs {mended}" if given.run else ""))


if __name__ == "__main__":
    main()
