"""Routes a performance question to specialists by rules, words and facts. No model is asked.

    question → parts → names, languages of kernels in the file, architecture → the first rule that applies

`RULES` and `CATEGORIES` are data: `tilewright specialists` prints them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TypeAlias

from tilewright.coordinate import vocabulary as say
from tilewright.coordinate.question import QuestionPart, parts_of
from tilewright.coordinate.terms import Words, has, places, words_of
from tilewright.hardware.architectures import ARCHITECTURES, BOARDS, architecture
from tilewright.specialists import specialists
from tilewright.specialists.base import Specialist
from tilewright.specialists.compiled_for import COMPILED_FOR, compiles

CATEGORIES: Mapping[str, tuple[str, ...]] = MappingProxyType({
    "cuda_graph": ("cuda-graph",),
    "kernel": ("profiling",),
    "cutile": ("cutile",),
    "triton": ("triton",),
    "tileir": ("triton", "tileir"),
    "cute_dsl": ("cute-dsl",),
    "distributed": ("distributed",),
    "parallelism": ("distributed",),
})  # fmt: skip
"""Category of a recommendation → its specialists, in the order of their work."""

BLACKWELL = 100
"""The first architecture on which a new kernel is also compiled through Tile IR, if the question names no language."""
FAMILIES = MappingProxyType({"ampere": "sm_80", "ada": "sm_89", "hopper": "sm_90", "blackwell": "sm_100"})
Named: TypeAlias = tuple[str, ...]


@dataclass(frozen=True)
class FileKernels:
    """The kernels in a file, from its syntax tree. ``languages``: language → names of the kernels."""

    file: str
    languages: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    is_program: bool = False
    lines: Mapping[str, int] = field(default_factory=dict, compare=False)
    """Name of a function → the line of its definition."""

    def __str__(self) -> str:
        each = [f"{', '.join(names)} in {language}" for language, names in self.languages.items()]
        return f"{self.file} has {'; '.join(each) or 'no kernel in a known language'}"


@dataclass(frozen=True)
class Route:
    """The specialists for a question, in the order of their work. Empty if the question is not about performance."""

    specialists: Named
    why: str
    alternatives: Named = ()
    arch: str | None = None
    """The architecture that the route assumes; None if it does not matter."""
    vague: bool = False
    """Whether the question asks for speed but names no means. Autopilot then looks for changes."""


@dataclass(frozen=True)
class Asked:
    """One part of a question, with facts that its words do not contain: the kernels of the file, and the
    architecture."""

    part: QuestionPart
    whole: QuestionPart
    kernels: FileKernels | None
    arch: Callable[[], str]

    @property
    def named(self) -> Named:
        return tuple(specialist.name for specialist in self.part.named)

    @property
    def languages(self) -> Named:
        written = {each.name for each in self.part.known if each.writes_kernels}
        return tuple(name for name in self.named if name in written)

    @property
    def topics(self) -> Named:
        return tuple(name for name in self.named if name not in self.languages)

    def has_kernel_in(self, language: str) -> bool:
        """Returns whether a kernel exists in a language, by the file's syntax tree. If there is no file, the words of
        the question decide.
        """
        if self.kernels is not None:
            return language in self.kernels.languages
        from_it = {one.specialist.name for one in self.part.converted}
        if self.part.converted:
            return language in from_it
        words = self.whole.words
        if has(words, say.NOTHING_YET):
            return False
        if has(words, say.EXISTS):
            return True
        return not self.whole.says(say.WRITING) and (_names_a_file(words) or _owns_a_kernel(words))


def _names_a_file(words: Words) -> bool:
    return any(word.text == "py" for word in words[1:])


def _owns_a_kernel(words: Words) -> bool:
    """Returns whether a kernel is named at most three words after a word such as "my", "the" or "existing"."""
    ends = [end for _, end in places(say.OWNING, words)]
    return any(has(words[end : end + 4], (*say.KERNEL, *say.OPERATION)) for end in ends) or any(
        word.text == "triton" and has(words[at + 1 : at + 4], say.KERNEL) and not has(words[:at], say.ACTING)
        for at, word in enumerate(words)
    )


# The rules ------------------------------------------------------------------------------------------


def _foreign(asked: Asked) -> Route | None:
    whole = asked.whole
    explicit = whole.says(say.SPEED) and (asked.topics or (asked.languages and whole.says(say.KERNEL)))
    if whole.says(say.FOREIGN) and not explicit:
        return Route((), "it is about something else")
    if whole.says(say.PAPERWORK) and not (whole.says(say.SPEED, say.MEASURING) and asked.named):
        return Route((), "it asks for documentation, a test or a package")
    if whole.says(say.ASKING) and not (whole.says(say.SPEED, say.MEASURING, say.AMOUNT) and whole.says(say.WHOSE)):
        return Route((), "it asks for an explanation, not for speed")
    return None


def _tile_ir(asked: Asked) -> Route | None:
    if "tileir" not in asked.languages:
        return None
    own = asked.kernels is not None and set(asked.kernels.languages) == {"cutile"}
    if "cutile" in asked.languages or (own and not asked.part.converted):
        return Route(("cutile",), "cuTile kernels are compiled to Tile IR: their specialist reads it")
    if asked.has_kernel_in("triton"):
        return Route(("tileir",), "Tile IR is named, and a Triton kernel exists")
    why = "Tile IR is named, and no Triton kernel exists: tileir never writes one, so triton does first"
    return Route(("triton", "tileir"), why)


def _topic(asked: Asked) -> Route | None:
    writes = asked.languages and asked.part.says(say.WRITING, say.CONVERTING)
    of_kernel = asked.languages and asked.part.says(say.KERNEL) and "cuda-graph" not in asked.topics
    if not asked.topics or writes or of_kernel:
        return None
    topics = asked.topics
    if "cuda-graph" in topics and not asked.part.joins(topics):  # "capture the DDP step in a CUDA graph"
        topics = ("cuda-graph",)
    return Route(topics, f"{' and '.join(topics)} {_are(topics)} named")


def _language(asked: Asked) -> Route | None:
    whole = asked.whole
    in_context = whole.says(say.SPEED, say.MEASURING, say.TECHNIQUE, say.GPU, say.KERNEL, say.OPERATION, say.WRITING,
                            say.CONVERTING, say.USING) or asked.kernels or _arch_in(whole.words)  # fmt: skip
    if not asked.languages or (asked.languages == ("triton",) and not in_context):  # Triton is also the name of a moon
        return None
    return Route(asked.languages, f"{' and '.join(asked.languages)} {_are(asked.languages)} named")


def _are(names: Named) -> str:
    return "is" if len(names) == 1 else "are"


def _existing_kernel(asked: Asked) -> Route | None:
    kernels = asked.kernels
    if (
        kernels is None
        or not kernels.languages
        or not asked.part.says(say.SPEED, say.KERNEL, say.ACTING, say.WRITING, say.TECHNIQUE)
    ):
        return None
    if kernels.is_program and (asked.part.says(say.MEASURING) or not asked.part.says(say.KERNEL)):
        return None
    languages = tuple(kernels.languages)
    if languages != ("triton",):
        return Route(languages, f"no language is named, and {kernels}")
    arch = asked.arch()
    newer = architecture(arch).number >= BLACKWELL
    return Route(("tileir" if newer else "triton",), f"no language is named, {kernels}, and the hardware is {arch}",
                 ("triton",) if newer else ("tileir",), arch)  # fmt: skip


def _new_kernel(asked: Asked) -> Route | None:
    part = asked.part
    if not part.says(say.WRITING) or not part.says(say.KERNEL, say.OPERATION):
        return None
    if part.says(say.MEASURING) and not part.says(say.KERNEL):
        return None
    barred = {one.specialist.name for one in part.excluded}
    arch = asked.arch()
    first = [name for name in ("triton", "cutile") if compiles(name, arch) and name not in barred]
    route: Named = tuple(first[:1]) or ("cute-dsl",)
    newer = architecture(arch).number >= BLACKWELL and "tileir" not in barred
    if route == ("triton",) and newer:
        route = ("triton", "tileir")
    others = tuple(name for name in ("cute-dsl", "cutile", "triton") if name not in route and name not in barred)
    why = f"a new kernel, no language is named, and the hardware is {arch}"
    return Route(route, why, others, arch)


def _measure(asked: Asked) -> Route | None:
    part = asked.part
    about = part.says(say.GPU, say.OPERATION) or _arch_in(part.words) is not None
    vague = part.says(say.SPEED, say.MEASURING) or (about and part.says(say.AMOUNT))
    if part.says(say.QUALITY) and not part.says(say.MEASURING):
        return None
    subject = about or _names_a_file(part.words) or asked.kernels is not None or part.says(say.PROGRAM)
    subject = subject or (len(asked.whole.words) <= say.SHORT + 1 and part.says(say.PRONOUN))  # + 1 for the full stop
    if part.says(say.TECHNIQUE) and (about or part.says(say.ACTING, say.KERNEL, say.SPEED)):
        return Route(("profiling",), "a technique that names no kernel language: measure first")
    is_step = part is not asked.whole and part.says(say.MEASURING)  # "profile first, then …"
    if vague and (subject or is_step or _needs_no_subject(part.words)):
        return Route(("profiling",), "a question about speed that names no means: measure first", vague=True)
    return None


def _needs_no_subject(words: Words) -> bool:
    """Returns whether a question is clear without a subject, such as "measure performance before and after"."""
    return has(words, ("before and after", "where does the time go", "where the time goes", "make it faster"))


@dataclass(frozen=True)
class RoutingRule:
    """One rule. The first rule that applies to a part decides the route."""

    text: str
    applies: Callable[[Asked], Route | None]


RULES = (
    RoutingRule("No specialist gets a question about another subject (web, databases, other languages, daily life) or "
                "about accuracy, a request for documentation, tests or packages, or a request for an explanation "
                "without a word about speed.", _foreign),
    RoutingRule("The question names TileIR, nvtriton or ENABLE_TILE: tileir if a Triton kernel exists; otherwise "
                "triton, then tileir. For a cuTile kernel: cutile.", _tile_ir),
    RoutingRule("The question names CUDA graphs or launch overhead: cuda-graph, even if the captured program is "
                "distributed. It names several GPUs, communication or parallelism: distributed. The rule does not "
                "apply if a kernel in a named language must be written, or if such a kernel communicates.", _topic),
    RoutingRule("The question names a kernel language (cuTile, Triton, CuTe DSL): the specialist of the language, who "
                "also measures, tunes and repairs its kernels. For a conversion: the specialist of the new language. "
                "For a comparison of two languages: both, in the order of the question.", _language),
    RoutingRule("The file has kernels, and the question names no language: the specialist of their language, or tileir "
                "for Triton kernels on sm_100 and newer. If the file also trains or runs something, profiling comes "
                "first, unless the question means a kernel.", _existing_kernel),
    RoutingRule("A new kernel, and the question names no language: triton; on sm_100 and newer triton, then tileir.",
                _new_kernel),
    RoutingRule("Any other question about speed, memory or efficiency of a GPU program, model or kernel, or about a "
                "technique without a language (FlashAttention, fusion, checkpointing, precision): profiling, which "
                "measures first.", _measure),
)  # fmt: skip
"""The rules, in the order in which they are tried."""

PARTS = (
    "Steps joined by \"then\", \"and\" or a full stop are routed one by one, in the order of the question. Every "
    "specialist measures before and after a change. So profiling is a step of its own only if it comes first (\"first "
    "profile train.py, then …\"), or if the question names nothing else. Some names do not count: excluded ones (\"do "
    "not use Triton\"), the old language of a conversion (\"rewrite my CuTe kernel in Triton\"), and names that are "
    "only compared with."
)  # fmt: skip


DOING = (say.WRITING, say.CONVERTING, say.ACTING, say.MEASURING, say.SPEED, say.TECHNIQUE)
"""A part is a step only if it has one of these words. "My Triton kernel exists already, move it to TileIR" has one
step."""

# The main path --------------------------------------------------------------------------------------


def route(
    question: str,
    kernels: FileKernels | None = None,
    arch: Callable[[], str] | str | None = None,
    known: Sequence[Specialist] | None = None,
) -> Route:
    """Returns the route of a question.

    kernels: the kernels of the file in the question; None if there is no file.
    arch: the architecture, or a function that returns it. The function is called only if the architecture matters and
        the question does not name it.
    known: the specialists; by default all that are installed.
    """
    known = tuple(known or specialists())
    words = words_of(question)
    whole, said = QuestionPart(words, known, words), _arch_in(words)

    def hardware() -> str:
        if isinstance(arch, str):
            return arch
        return said or (arch() if arch else "sm_90")

    steps = [_routed(Asked(part, whole, kernels, hardware)) for part in _separate(parts_of(question, known), kernels)]
    found = [step for step in steps if step.specialists] or [_routed(Asked(whole, whole, kernels, hardware))]
    names = tuple(dict.fromkeys(name for step in found for name in step.specialists))
    first = found[0]
    why = "; then ".join(dict.fromkeys(step.why for step in found))
    joined = replace(first, specialists=names, why=why, vague=all(step.vague for step in found))
    return _with_hardware(joined, arch if isinstance(arch, str) else said)


def _separate(parts: Sequence[QuestionPart], kernels: FileKernels | None) -> Sequence[QuestionPart]:
    """Returns the parts that are separate steps. Returns none if the question has one step."""
    steps = [part for part in parts if part.named and part.says(*DOING)]
    asks = [part for part in parts[:1] if part.says(say.MEASURING) and len(part.words) > 1 and not part.named]
    later = [part for part in steps if part not in asks]
    if asks and later and not parts[0].says(("before and after",)):
        return [*asks, *later]
    return steps if len(steps) > 1 else ()


def _routed(asked: Asked) -> Route:
    for rule in RULES:
        if (found := rule.applies(asked)) is not None:
            return found
    return Route(
        (), "no performance question: nothing in it names a specialist's domain, or the speed of a GPU program"
    )


def _with_hardware(route: Route, arch: str | None) -> Route:
    """If a specialist's language does not compile for the architecture, adds the reason and the alternatives to the
    route."""
    refused = [name for name in route.specialists if arch and compiles(name, arch) is False]
    if not refused:
        return route
    able = tuple(name for name in COMPILED_FOR if arch and compiles(name, arch))
    why = f"{route.why}; but {' and '.join(refused)} does not compile for {arch}: take {' or '.join(able)}"
    return replace(route, why=why, alternatives=able, arch=arch)


def _arch_in(words: Words) -> str | None:
    """Returns the architecture that a question names: ``sm_90``, ``H100``, ``Hopper``."""
    texts = [word.text for word in words]
    for at, text in enumerate(texts):
        number = texts[at + 1] if text == "sm" and at + 1 < len(texts) else text.removeprefix("sm")
        if text.startswith("sm") and f"sm_{number}" in ARCHITECTURES:
            return f"sm_{number}"
        if text in FAMILIES:
            return FAMILIES[text]
        for board in BOARDS.values():
            if text in board.name.lower().replace("-", " ").split() and any(char.isdigit() for char in text):
                return board.arch
    return None
