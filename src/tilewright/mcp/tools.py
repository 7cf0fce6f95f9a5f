"""The tools: their arguments and descriptions, as agents read them.

`check`, `tune`, `optimize` and `profile` start a job and return at once. `inspect` and `doctor` wait for theirs, and
end it if the call is cancelled. The others are functions of `answers`; they run in a thread.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, cast

import anyio
from anyio import to_thread
from mcp.server import MCPServer
from mcp.server.mcpserver import Context
from mcp.types import ToolAnnotations
from pydantic import Field

from tilewright.errors import RequestError, ToolFailed
from tilewright.mcp import answers, mailbox
from tilewright.mcp.jobs import LATEST, LOOK_SECONDS, Jobs
from tilewright.mcp.replies import (
    CasebookReply,
    DoctorReply,
    Job,
    JobStatus,
    PlanReply,
    ProposeReply,
    ReportReply,
    RouteReply,
    Verb,
    picked,
)
from tilewright.task.loading import file_named

WAIT_SECONDS = 45
"""The longest wait of a call. Some clients end a call after 60 s."""

Ctx = Context[Any, Any]

TaskFile = Annotated[str, Field(description="The task file, as FILE.py or FILE.py:TASK.")]
Arch = Annotated[str | None, Field(description="Architecture, such as sm_90. Default: this machine's GPU, else sm_90.")]
Workloads = Annotated[Sequence[str], Field(description="Names of workloads. Default: all of the task.")]
Config = Annotated[
    Sequence[str], Field(description="Only these configurations, as KNOB=VALUE,KNOB=VALUE; other knobs as shipped.")
]
Seed = Annotated[int | None, Field(ge=0, description="Seed of the inputs. Default: drawn.")]
L2 = Annotated[Literal["cold", "warm"], Field(description="The L2 cache before each timed launch.")]
Launch = Annotated[Literal["graph", "eager"], Field(description="How production launches the kernel.")]
Fresh = Annotated[bool, Field(description="Start over, and do not resume an interrupted run.")]
JobName = Annotated[str, Field(description="Name of the job.")]


def add_tools(server: MCPServer[Any]) -> None:
    """Adds all tools to a server."""
    looks = ToolAnnotations(read_only_hint=True, open_world_hint=False)
    works = ToolAnnotations(read_only_hint=False, destructive_hint=False, open_world_hint=False)
    looking: tuple[Callable[..., Any], ...] = (doctor, route, plan, report, casebook, inspect, job_wait)
    working: tuple[Callable[..., Any], ...] = (check, tune, optimize, profile, propose, job_start, job_cancel)
    for tool in (*looking, *working):
        text = " ".join((tool.__doc__ or "").split())
        server.add_tool(tool, description=text, annotations=looks if tool in looking else works)


# Tools that answer at once ------------------------------------------------------------------------


def route(
    question: Annotated[str, Field(description="What you want, in English.")],
    file: Annotated[str | None, Field(description="The file that the question is about. Read, never run.")] = None,
    arch: Arch = None,
) -> RouteReply:
    """Names the specialists for a GPU performance question, in the order of their work, with the reasons. Decides by
    rules, without a model. Use it first if you do not know which tool or which kernel language helps."""
    return answers.route(question, file, arch)


def plan(
    question: Annotated[str, Field(description='What you want, such as "speed up train.py".')],
    command: Annotated[str | None, Field(description="The program's command line, if the question lacks it.")] = None,
    analysis: Annotated[str | None, Field(description="A file with an analysis to work through.")] = None,
    allow_lossy: Annotated[bool, Field(description="Also plan changes that round differently.")] = False,
) -> PlanReply:
    """Plans how to make a whole program faster: ranked changes with their specialists. Reads the program, runs and
    changes nothing. The reply has the command that runs the plan."""
    return answers.plan(question, command, analysis, allow_lossy)


def report(run: Annotated[str, Field(description="Name of a run, its beginning, or latest.")] = LATEST) -> ReportReply:
    """Returns the stored evidence of a finished run of tune, optimize or the agent: what was tried, the outcome, and
    why."""
    return answers.report(run)


def casebook(
    question: Annotated[str, Field(description="What is slow, in your own words.")],
    top: Annotated[int, Field(ge=1, le=20, description="How many cases, at most.")] = 3,
) -> CasebookReply:
    """Finds documented optimisations for a performance problem: when they apply, how to apply and verify them, and
    their measured effect. Ask it before you choose a change."""
    return answers.casebook(question, top)


# Tools that wait for their job --------------------------------------------------------------------


async def doctor(context: Ctx) -> DoctorReply:
    """Shows what works on this machine (compiler, GPU, driver, tools), and how to fix what does not."""
    with tempfile.TemporaryDirectory(prefix="tilewright-") as folder:  # works if the ledger's folder is not writable
        job = await _attached(Jobs(Path(folder) / "jobs"), "doctor", {}, context)
    if job.state != "done":
        raise ToolFailed(job.error or f"the examination of this machine is {job.state}")
    return cast(DoctorReply, job.result)


async def inspect(
    context: Ctx, task: TaskFile,
    arch: Annotated[Sequence[str], Field(description="Architectures. Default: this machine's GPU, else sm_90.")] = (),
    config: Config = (),
    workload: Annotated[str | None, Field(description="Name of a workload. Default: the first.")] = None,
) -> Job:  # fmt: skip
    """Compiles configurations of a kernel and reads their machine code: registers, spills, shared memory, tensor path,
    predicted time against the speed of light. Needs no GPU. Waits up to 45 s; then the job goes on."""
    return await _attached(Jobs(), "inspect", _given(locals()), context)


# Tools that start a job ---------------------------------------------------------------------------


def check(
    task: TaskFile, workloads: Workloads = (), config: Config = (), arch: Arch = None,
    engine: Annotated[Literal["interpreter", "gpu"] | None, Field(description="Default: the GPU if any.")] = None,
    seed: Seed = None,
    case: Annotated[str | None, Field(description="Only this case, as a failing check prints it.")] = None,
    quick: Annotated[bool, Field(description="Only reduced workloads with small integers.")] = False,
    seconds: Annotated[float | None, Field(gt=0, description="After it, no further case starts. Default: 120.")] = None,
) -> JobStatus:  # fmt: skip
    """Starts a check whether a kernel is correct, against a float64 reference, on hostile shapes, data and memory. On a
    GPU, or on an interpreter without one. Verdicts: correct, correct on reduced shapes, unverified, incorrect."""
    return _started("check", _given(locals()))


def tune(
    task: TaskFile, workloads: Workloads = (), arch: Arch = None,
    top: Annotated[int, Field(ge=1, description="How many configurations, best predicted first, are raced.")] = 10,
    strategy: Annotated[str | None, Field(description="exhaustive, halving, local or bayesian.")] = None,
    seconds: Annotated[float | None, Field(gt=0, description="Time limit of the run. Default: none.")] = None,
    candidates: Annotated[int | None, Field(ge=1, description="The most configurations to compile.")] = None,
    into: Annotated[
        str | None, Field(description="Folder for the config file of the task, which tilewright.Dispatcher reads.")
    ] = None,
    l2: L2 = "cold", launch: Launch = "graph", seed: Seed = None, fresh: Fresh = False,
) -> JobStatus:  # fmt: skip
    """Starts a search for the best configuration of a kernel for each workload. With a GPU the candidates are verified
    and raced; without one times are predicted. An interrupted run resumes if the same tool is called again."""
    return _started("tune", _given(locals()))


def optimize(
    task: TaskFile, workloads: Workloads = (), arch: Arch = None,
    iterations: Annotated[int, Field(ge=0, description="The most changes that are tried.")] = 25,
    stop_after: Annotated[float | None, Field(ge=0, description="Begin no change after this many minutes.")] = None,
    patience: Annotated[int, Field(ge=1, description="Stop after this many changes in a row without a gain.")] = 10,
    lossy: Annotated[bool, Field(description="Also try changes that round differently.")] = False,
    changes: Annotated[Sequence[str], Field(description="Your own patches or rewritten files, tried first.")] = (),
    only: Annotated[Sequence[str], Field(description="Only these entries of the playbook.")] = (),
    propose: Annotated[
        str | None,
        Field(description="agent: you propose changes with the tool propose; or a command, or model:PROVIDER:NAME."),
    ] = None,
    propose_only: Annotated[bool, Field(description="Leave the playbook out. Otherwise it goes first.")] = False,
    propose_seconds: Annotated[float, Field(gt=0, description="Time limit of one proposal.")] = 300.0,
    propose_attempts: Annotated[int, Field(ge=1, description="The most proposals.")] = 10,
    l2: L2 = "cold", launch: Launch = "graph", seed: Seed = None, fresh: Fresh = False,
) -> JobStatus:  # fmt: skip
    """Starts the optimisation of a kernel's source: one change at a time, verified, measured, kept or reverted. Works
    on a branch of its own; the user's files do not change. The result is a patch. `changes` takes your own."""
    return _started("optimize", _given(locals()))


def profile(
    traces: Annotated[Sequence[str], Field(description="Traces of torch.profiler, as files.")] = (),
    command: Annotated[Sequence[str], Field(description="Or the program to run and trace, as words.")] = (),
    steps: Annotated[Sequence[int], Field(max_length=2, description="Only the steps [first, end).")] = (),
    seconds: Annotated[float, Field(ge=0, description="Seconds to trace at most; 0: no limit.")] = 60.0,
    counters: Annotated[bool, Field(description="Then run it again under Nsight Compute.")] = False,
) -> JobStatus:
    """Starts a profile of a whole program: compute, exposed communication and copies, idle time and its cause, hot
    kernels, and advice. Reads traces without a GPU, or runs a program on one."""
    if bool(traces) == bool(command):
        raise RequestError("give traces, or a command to run, but not both")
    if steps and not (len(steps) == 2 and 0 <= steps[0] < steps[1]):
        raise RequestError(f"steps {steps} is not [first, end] with 0 <= first < end")
    return _started("profile", _given(locals()))


async def propose(
    context: Ctx, job: Annotated[str, Field(description="A job of optimize. Default: the newest job.")] = LATEST,
    title: Annotated[str, Field(description="The change in a few words.")] = "",
    expected: Annotated[str, Field(description="The expected effect, and why.")] = "",
    patch: Annotated[str, Field(description="A unified diff of the files in the request. None: wait.")] = "",
    done: Annotated[str, Field(description="In place of a patch: why you have nothing left to propose.")] = "",
) -> ProposeReply:  # fmt: skip
    """Proposes a change to a job of optimize that was started with propose=agent. Without a patch it waits, at most
    45 s, until the job asks, and returns the request: the incumbent's files, what limits the kernel, the history with
    the reason of each failure, what may be edited. With a patch it answers, and waits for the next request, which has
    the verdict. Change no file while the job runs: only the patch counts."""
    jobs = Jobs()
    state = jobs.job(job)
    folder = Path(state.log).parent
    if patch or done:
        mailbox.answer(folder, {"title": title, "expected": expected, "patch": patch, "done": done})
    elif state.arguments.get("propose") != mailbox.AGENT:
        raise RequestError(f"{state.job} asks no agent; start optimize with propose={mailbox.AGENT}")
    began = time.monotonic()
    while (state := jobs.job(state.job)).state == "running" and time.monotonic() < began + WAIT_SECONDS:
        if mailbox.asked(folder):
            break
        await context.report_progress(time.monotonic() - began, None, state.progress)
        await anyio.sleep(LOOK_SECONDS)
    request = mailbox.asked(folder) if state.state == "running" else None
    following = "propose with a patch, or with done" if request else "propose again; the job works"
    return ProposeReply(
        job=state.job, state=state.state, progress=state.progress, request=request,
        next=following if state.state == "running" else "job_wait has the result",
    )  # fmt: skip


# Jobs ---------------------------------------------------------------------------------------------


def job_start(job: JobName) -> JobStatus:
    """Starts an ended job again with the same arguments, for example after it was cancelled or its machine restarted.
    What its run in the ledger has finished is not repeated."""
    jobs = Jobs()
    return _status(jobs.job(jobs.again(job)))


async def job_wait(
    context: Ctx, job: Annotated[str, Field(description="Name of the job. Default: the newest.")] = LATEST,
    seconds: Annotated[float, Field(ge=0, le=WAIT_SECONDS, description="How long to wait.")] = WAIT_SECONDS,
) -> Job:  # fmt: skip
    """Waits until a job ends, at most 45 s, and returns its state, progress and result. Call it again while the state
    is running. A cancelled call does not end the job."""
    return await _waited(Jobs(), job, seconds, context)


def job_cancel(job: JobName) -> JobStatus:
    """Ends a job and all its child processes. What its run in the ledger has finished is kept."""
    return _status(Jobs().cancel(job))


def _given(arguments: dict[str, Any]) -> dict[str, Any]:
    """Returns the arguments of a tool without its context."""
    return {name: value for name, value in arguments.items() if name != "context"}


def _started(verb: Verb, arguments: dict[str, Any]) -> JobStatus:
    _refuse_missing(arguments)
    jobs = Jobs()
    return _status(jobs.job(jobs.start(verb, arguments)))


def _status(job: Job) -> JobStatus:
    return picked(JobStatus, vars(job))


def _refuse_missing(arguments: dict[str, Any]) -> None:
    """Raises RequestError at once, not in the job, if a file does not exist."""
    files = [file_named(arguments["task"])[0]] if "task" in arguments else []
    for file in (*files, *arguments.get("traces", ()), *arguments.get("changes", ())):
        if not os.path.isfile(file):
            raise RequestError(f"no such file: {file} (in the server's folder {os.getcwd()})")


async def _attached(jobs: Jobs, verb: Verb, arguments: dict[str, Any], context: Ctx) -> Job:
    """Starts a job and waits for it, at most `WAIT_SECONDS`. If the call is cancelled, ends the job."""
    _refuse_missing(arguments)
    name = jobs.start(verb, arguments)
    try:
        return await _waited(jobs, name, WAIT_SECONDS, context)
    except BaseException:
        with anyio.CancelScope(shield=True):
            await to_thread.run_sync(jobs.cancel, name)
        raise


async def _waited(jobs: Jobs, name: str, seconds: float, context: Ctx) -> Job:
    """Waits for the end of a job, at most ``seconds``, and reports its progress. The number reported is the time."""
    began, shown = time.monotonic(), ""
    while (job := jobs.job(name)).state == "running" and time.monotonic() < began + seconds:
        if (text := "; best so far: ".join(filter(None, (job.progress, job.best)))) != shown:
            await context.report_progress(time.monotonic() - began, None, text)
            shown = text
        name = job.job
        await anyio.sleep(LOOK_SECONDS)
    return job
