"""Reads the facts about a kernel from its cubin.

Registers, stack, threads, cluster and shared memory come from the container (`elf.py`). The instructions come from
``nvdisasm``. Each start of nvdisasm takes 0.25 to 0.35 s (13.5.37, a machine with 2 cores, 2026-11-21). So `read_all`
starts nvdisasm once for all kernels of an architecture: sixteen sm_90 kernels take 0.54 s.

Counts are static: an instruction in a loop counts once.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import itertools
import json
import math
import os
import re
import shutil
import struct
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypedDict, cast

from tilewright.errors import CompilerMissing, ToolFailed
from tilewright.machine_code import chains, elf
from tilewright.machine_code.elf import Cubin
from tilewright.machine_code.elf import MachineCodeError as MachineCodeError
from tilewright.machine_code.loops import INSTRUCTION_BYTES, Instruction, loops
from tilewright.records import CodeLoop, MachineCode, Remark, TensorPath
from tilewright.tools import child

REQUIRED_THREADS, MAX_THREADS = 0x10, 0x05
FRAME_SIZE, MIN_STACK_SIZE = 0x11, 0x12
REGISTERS, CLUSTER = 0x2F, 0x3D
"""Numbers of two ``nv.info`` attributes. nvdisasm prints the attributes' names."""
RESERVED_SHARED_BYTES = 1024
"""Bytes that the driver reserves in each CTA's shared memory. From sm_90 on, the ELF section includes these bytes. For
example, ``.nv.shared.k`` has 5120 bytes when ``ptxas -v`` prints 4096 (sm_90, 100, 120; equal on sm_80)."""
DISASSEMBLY_SECONDS = 15.0
"""Limit of processor time for one run of nvdisasm."""
FIX = "pip install --force-reinstall nvidia-cuda-nvdisasm"
HEADERS_ONLY = "only the headers of the cubin were read"


def headers(cubins: Iterable[bytes]) -> tuple[MachineCode | MachineCodeError, ...]:
    """Returns the facts in the headers of cubins, without the instructions, or the error for a broken cubin.

    Takes 1 ms per cubin and starts no process.
    """
    parsed = map(_parsed, cubins)
    return tuple(each if isinstance(each, MachineCodeError) else _header(each, HEADERS_ONLY) for each in parsed)


def read(cubin: bytes) -> MachineCode:
    """Returns the facts about the kernel in a cubin. Raises `MachineCodeError` for a broken cubin."""
    if isinstance(outcome := read_all([cubin])[0], MachineCodeError):
        raise outcome
    return outcome


def read_all(cubins: Iterable[bytes]) -> tuple[MachineCode | MachineCodeError, ...]:
    """Returns the facts about the kernel in each cubin, or the error for a broken cubin.

    Starts nvdisasm once per architecture. Without a working nvdisasm the instructions are missing, and
    `MachineCode.unread` has the reason. ``threads`` is 0 if the code does not fix the number of threads.
    """
    outcomes: list[Cubin | MachineCode | MachineCodeError] = [_parsed(cubin) for cubin in cubins]
    for sm in sorted({each.sm for each in outcomes if isinstance(each, Cubin)}):
        group = {i: each for i, each in enumerate(outcomes) if isinstance(each, Cubin) and each.sm == sm}
        listings = _disassembled(sm, [each.code() for each in group.values()])
        for (i, each), listing in zip(group.items(), listings, strict=True):
            outcomes[i] = _header(each, str(listing)) if isinstance(listing, Exception) else _described(each, listing)
    return tuple(outcome for outcome in outcomes if not isinstance(outcome, Cubin))


def _header(cubin: Cubin, unread: str) -> MachineCode:
    """Returns the facts that the headers state.

    The number of instructions follows from the size of the code, so it includes the padding at the end.
    """
    return MachineCode(
        symbol=cubin.kernel.name, sm=cubin.sm, **_launch(cubin), code_hash=_hash(cubin), local_loads=0, local_stores=0,
        instructions=len(cubin.code()) // INSTRUCTION_BYTES, tensor_path="unknown", tensor_instructions=0, copies={},
        unread=unread,
    )  # fmt: skip


def _parsed(cubin: bytes) -> Cubin | MachineCodeError:
    try:
        parsed = elf.parse(cubin)
        _launch(parsed)
    except MachineCodeError as error:
        return error
    return parsed


def _described(cubin: Cubin, listing: Sequence[Instruction]) -> MachineCode:
    counts = Counter(each.opcode for each in listing if each.opcode != "NOP")  # NOP pads the end
    path, products = _tensor_path(counts)
    whole, spans = _region(counts, None), loops(listing)
    return MachineCode(
        symbol=cubin.kernel.name, sm=cubin.sm, **_launch(cubin), code_hash=_hash(cubin),
        local_loads=whole.mix.get("local load", 0), local_stores=whole.mix.get("local store", 0),
        instructions=counts.total(), tensor_path=path, tensor_instructions=products, copies=whole.copies,
        mix=whole.mix, tensor_flops=whole.tensor_flops,
        loops=tuple(_loop([listing[at] for at in span.own], span.inside) for span in spans),
        load_chain=chains.longest(listing),
    )  # fmt: skip


def _loop(own: Sequence[Instruction], inside: int | None) -> CodeLoop:
    region = _region(Counter(each.opcode for each in own), inside)
    return replace(region, load_chain=chains.growth(own))


def _region(counts: Counter[str], inside: int | None) -> CodeLoop:
    """Returns the facts about a part of the code.

    counts: the number of instructions by opcode. inside: the index of the loop around this part, None if there is none.
    """
    copies: Counter[str] = Counter()
    for opcode, count in counts.items():
        if kind := _copy_kind(opcode):
            copies[kind] += count
    flops = sum(count * _tensor_flops(opcode) for opcode, count in counts.items())
    return CodeLoop(inside, instruction_mix(counts), dict(sorted(copies.items())), flops)


@functools.cache
def _tensor_flops(opcode: str) -> float:
    """Returns the FLOP of one tensor instruction per warp, from the shape in the opcode.

    Returns 0 for other opcodes, and for opcodes without a shape.
    """
    base, _, modifiers = opcode.partition(".")
    if not _TENSOR.fullmatch(base):
        return 0.0
    if shape := re.search(r"(\d+)x(\d+)x(\d+)", modifiers):  # a warpgroup's instruction: divide by four warps
        return 2 * math.prod(map(int, shape.groups())) / 4
    if shape := re.search(r"(?:^|\.)(8|16)(8)(4|8|16|32|64|128)(?:\.|$)", modifiers):
        return 2.0 * math.prod(map(int, shape.groups()))
    return 0.0


class _Launch(TypedDict):
    """The launch properties, named as in `MachineCode`."""

    registers: int
    stack_bytes: int
    shared_bytes: int
    threads: int
    cluster: int


def _launch(cubin: Cubin) -> _Launch:
    attributes = cubin.attributes
    if REGISTERS not in attributes:
        raise MachineCodeError(f"the cubin does not say how many registers '{cubin.kernel.name}' needs")
    section = cubin.section(".nv.shared." + cubin.kernel.name)
    includes_reserved = any(other.name.startswith(".nv.shared.reserved.") for other in cubin.sections)
    shared = max(0, section.size - (RESERVED_SHARED_BYTES if includes_reserved else 0)) if section else 0
    return {
        "registers": _number(attributes[REGISTERS]),
        "stack_bytes": max(_number(attributes.get(kind, b"")) for kind in (FRAME_SIZE, MIN_STACK_SIZE)),
        "shared_bytes": shared,
        "threads": _volume(attributes.get(REQUIRED_THREADS) or attributes.get(MAX_THREADS), 0),
        "cluster": _volume(attributes.get(CLUSTER), 1),
    }


def _number(payload: bytes) -> int:
    return int.from_bytes(payload[:4], "little")


def _volume(payload: bytes | None, otherwise: int) -> int:
    """Returns the product of three 32-bit words, or ``otherwise`` if ``payload`` is not three words."""
    return math.prod(struct.unpack("<III", payload)) if payload is not None and len(payload) == 12 else otherwise


def _hash(cubin: Cubin) -> str:
    """Returns the SHA-256 of the instructions and launch properties. Cubins with the same hash behave alike.

    The symbol's name, relocated addresses and debug text (with source lines and hints) are left out. The CPU code that
    tileiras packs beside the kernel is included. So compare only cubins that were made for the same kind of host.
    """
    digest = hashlib.sha256(repr((cubin.sm, sorted(_launch(cubin).items()))).encode())
    for data in (cubin.code(), *_literals(cubin), *cubin.host_code()):
        digest.update(struct.pack("<Q", len(data)))
        digest.update(data)
    return digest.hexdigest()


def _literals(cubin: Cubin) -> Iterator[bytes]:
    """Yields the constants that the code reads: constant banks except bank 0 (parameters), and initialised globals.

    Banks with relocations are left out, because they hold addresses, which depend on the symbols.
    """
    relocated = {each.info for each in cubin.sections if each.kind in elf.SECTION_RELOCATIONS and each.size}
    for index, section in enumerate(cubin.sections):
        bank = re.match(r"\.nv\.(constant[1-9]\d*|global\.init)", section.name)
        if bank and index not in relocated:
            yield bank.group().encode() + section.data


def _tensor_path(counts: Mapping[str, int]) -> tuple[TensorPath, int]:
    """Returns the tensor instruction with the highest count, and this count. HFMA2.MMA is a plain FMA, not a tensor
    instruction."""
    families: Counter[str] = Counter()
    for opcode, count in counts.items():
        base = opcode.partition(".")[0]
        if _TENSOR.fullmatch(base):
            families["UTCMMA" if base.startswith("UTC") else base] += count
    if not families:
        return "none", 0
    family, count = families.most_common(1)[0]
    return cast(TensorPath, family), count


_BY_WIDTH = {"LDG", "STG", "LD", "ST", "LDS", "STS", "LDGSTS", "STAS"}
_BY_MATRICES = {"LDSM", "STSM"}
_KEPT = dict.fromkeys(("UTMALDG", "UTMASTG", "UTMAREDG"), r"\dD|MULTICAST") | dict.fromkeys(("LDTM", "STTM"), r"x\d+")
"""Maps an opcode to the pattern of the modifiers that `_copy_kind` keeps."""
_PLAIN = {"RED": "RED", "REDG": "RED", "ATOM": "ATOM", "ATOMG": "ATOM", "ATOMS": "ATOMS"}
_PLAIN |= {name: name for name in ("UBLKCP", "UBLKRED", "UTCCP")}


@functools.cache
def _copy_kind(opcode: str) -> str | None:
    """Returns the kind of copy with its width in bits per thread (32 if the opcode has none); None for other opcodes.

    For example, returns ``LDG.128`` for ``LDG.E.128``, ``LDSM.128`` for ``LDSM.16.M88.4``, ``UTMALDG.2D.MULTICAST`` for
    ``UTMALDG.2D.MULTICAST.2CTA``, and ``LDTM.x32`` for ``LDTM.16dp32bit_t0_t15.x32``.
    """
    base, *modifiers = opcode.split(".")
    if base in _BY_WIDTH:
        # A width is ``64`` or ``U8``, but not ``LTC128B``.
        widths = [m.lstrip("US") for m in modifiers if re.fullmatch(r"[US]?(8|16|32|64|128|256)", m)]
        return f"{base}.{widths[-1] if widths else 32}"
    if base in _BY_MATRICES:
        # An 8×8 matrix of 16-bit elements fills one register, 16×16 bytes fill two.
        count = int(modifiers[-1]) if modifiers and modifiers[-1] in ("2", "4") else 1
        return f"{base}.{32 * count * (2 if any('1616' in m for m in modifiers) else 1)}"
    if base in _KEPT:
        return ".".join([base, *(m for m in modifiers if re.fullmatch(_KEPT[base], m))])
    return _PLAIN.get(base)


@functools.cache
def find_nvdisasm() -> Path:
    """Finds nvdisasm in the pip packages, on PATH, or in CUDA_HOME. Raises `CompilerMissing`."""
    there = [candidate for candidate in _places() if candidate.is_file()]
    for candidate in there:
        if os.access(candidate, os.X_OK):
            return candidate
    if there:
        raise CompilerMissing(child.not_started(str(there[0])))
    raise CompilerMissing("nvdisasm is not installed; fix: pip install nvidia-cuda-nvdisasm")


def _places() -> Iterator[Path]:
    package = importlib.util.find_spec("nvidia")
    for folder in (package.submodule_search_locations or ()) if package else ():
        yield from sorted(Path(folder).glob("cu[0-9]*/bin/nvdisasm*"), reverse=True)
        yield from Path(folder).glob("cuda_nvdisasm/bin/nvdisasm*")
    if on_path := shutil.which("nvdisasm"):
        yield Path(on_path)
    if os.environ.get("CUDA_HOME"):
        yield from Path(os.environ["CUDA_HOME"], "bin").glob("nvdisasm*")


def _disassembled(sm: int, codes: Sequence[bytes]) -> list[Sequence[Instruction] | Exception]:
    """Returns the instructions of each code, with the padding at the end, or an error if the code cannot be read."""
    try:
        found = _instructions(sm, b"".join(codes))
    except (ToolFailed, OSError) as error:
        if len(codes) == 1:
            return [error]
        return [outcome for code in codes for outcome in _disassembled(sm, [code])]
    ends = [*itertools.accumulate(len(code) // INSTRUCTION_BYTES for code in codes)]
    pieces = [(start, found[start:end]) for start, end in zip([0, *ends], ends, strict=False)]
    return [[each if each.target is None else each.moved(start) for each in piece] for start, piece in pieces]


def _instructions(sm: int, code: bytes) -> list[Instruction]:
    with child.workplace() as folder:
        file = folder / "code.bin"
        file.write_bytes(code)
        ran = _nvdisasm(["-json"], sm, file)
        found = None
        try:
            if ran.returncode == 0:  # the schema is ``[header, [{"sass-instructions": [{"opcode": …}, …]}, …]]``
                functions = json.loads(ran.stdout)[1]
                found = [Instruction.of(each) for function in functions for each in function["sass-instructions"]]
        except (ValueError, KeyError, IndexError, TypeError) as error:
            raise ToolFailed(f"nvdisasm wrote JSON of an unknown shape ({error!r}); fix: {FIX}") from error
        if found is None and "json" in ran.stderr:  # older versions have no -json
            ran = _nvdisasm(["-ndf"], sm, file)
            found = [Instruction(name) for name in _TEXT_LINE.findall(ran.stdout)] if ran.returncode == 0 else None
    if found is None:
        raise ToolFailed(f"on sm_{sm} code {ran.complaint('nvdisasm')}; fix: {FIX}")
    if len(found) * INSTRUCTION_BYTES != len(code):
        raise ToolFailed(f"nvdisasm found {len(found)} instructions in {len(code)} bytes of sm_{sm} code; fix: {FIX}")
    return found


def _nvdisasm(options: Sequence[str], sm: int, file: Path) -> child.Finished:
    architecture = f"SM{sm}a" if sm >= 90 else f"SM{sm}"  # the set with ``a`` has wgmma and tcgen05
    command = [str(find_nvdisasm()), *options, "-b", architecture, str(file)]
    return child.run(command, DISASSEMBLY_SECONDS, file.parent, fix=FIX, once=True)


_TEXT_LINE = re.compile(r"^\s*/\*[0-9a-f]{4,}\*/\s+(?:@!?\w+\s+)?([A-Z][\w.]*)", re.MULTILINE)
_TENSOR = re.compile(r"[HIDQO]MMA|[HQI]GMMA|UTC\w*MMA")
_PLACE = re.compile(r"File: '?(.*?)'?, Line: (\d+)")
_FIELD = re.compile(r"\s*(?:- )?(\w+):\s*(.*)")


def remarks(yaml_text: str) -> tuple[Remark, ...]:
    """Returns the remarks of ``tileiras --remarks=all --remark-format=yaml``, sorted by line, without repetitions.

    The text is not read as YAML, because tileiras does not escape quotes. Repetitions are frequent: tileiras writes a
    remark up to three times, and the reason of a failure up to a thousand times.
    """
    documents = re.split(r"^--- !", yaml_text, flags=re.MULTILINE)[1:]
    unique = dict.fromkeys(_remark(document) for document in documents)
    return tuple(sorted(unique, key=lambda remark: (remark.file, remark.line, remark.text)))


def _remark(document: str) -> Remark:
    tag, *lines = document.splitlines()
    fields: dict[str, list[str]] = {}
    for line in lines:
        field = _FIELD.match(line)
        if field:
            fields.setdefault(field.group(1), []).append(field.group(2).strip().strip("'"))
    category = fields.get("Pass", [""])[0].lower().replace("-", "")
    place = _PLACE.search(fields.get("DebugLoc", [""])[0])
    file, number = (place.group(1), int(place.group(2))) if place else ("", 0)
    return Remark(file, number, category, _remark_text(tag.strip(), fields))


def _remark_text(tag: str, fields: Mapping[str, Sequence[str]]) -> str:
    """Returns a remark as text: ``MMA Tensor-core SM90 [64, 128, 16]`` or ``failure: Failed to select TMA load …``."""
    sentence = fields.get("Remark", [""])[0]
    if tag != "Passed":
        reasons = dict.fromkeys(re.sub(r"^loc\(.*\): ", "", reason) for reason in fields.get("Reason", []))
        return ": ".join([tag.lower(), sentence, *reasons])
    instruction, shape = fields.get("Instruction", [sentence])[0], fields.get("Shape", [""])[0]
    product = "MMA" if sentence.startswith("MMA ") else ""
    ctas = fields.get("NumCTAs", ["1"])[0]
    together = f"by {ctas} CTAs" if ctas != "1" else ""
    return " ".join(part for part in (product, instruction, shape, together) if part)


CLASSES: tuple[tuple[str, str], ...] = (
    ("tensor", _TENSOR.pattern),
    ("tensor memory", r"LDTM|STTM|UTCCP|UTCBAR|UTCATOMSWS|UTCSHIFT|LDT|STT"),
    ("asynchronous copy", r"LDGSTS|UTMA(LDG|STG|REDG|PF)|UBLKCP|UBLKRED|UBLKPF|STAS|REDAS"),
    ("global load", r"LDG|LD"),
    ("global store", r"STG|ST"),
    ("shared load", r"LDS|LDSM"),
    ("shared store", r"STS|STSM"),
    ("local load", r"LDL"),
    ("local store", r"STL"),
    ("constant load", r"U?LDC|LDCU"),
    ("atomic", r"ATOM[GS]?|RED[GS]?|UREDGR"),
    (
        "synchronisation",
        r"BAR|DEPBAR|LDGDEPBAR|MEMBAR|FENCE|SYNCS|ARRIVES|WARPSYNC|WARPGROUP\w*|UTMACMDFLUSH|UTMACCTL|CCTLL?"
        r"|(CGA)?ERRBAR|UCGABAR\w*|ACQBULK|ACQSHMINIT|USETMAXREG|NANOSLEEP|UVIRTCOUNT|ENDCOLLECTIVE|PREEXIT",
    ),
    ("control", r"BRA|BRX|BRXU|BSSY|BSYNC|BREAK|CALL|RET|EXIT|JMP|JMX|WARPSYNC|YIELD|BPT|KILL|BMOV|RPCMOV|LEPC"),
    ("special function", r"MUFU"),
    ("conversion", r"[FI]2[FI]P?|FRND|F2FP|I2FP|F2IP|I2IP"),
    ("float64", r"D(ADD|MUL|FMA|SETP|MNMX)"),
    ("float16", r"H(ADD|MUL|FMA|MNMX|SET|SETP)2?"),
    ("float32", r"F(ADD|MUL|FMA)(2|32I)?|FMNMX3?|FSEL|FSETP?|FCHK|FSWZADD"),
    ("shuffle and vote", r"SHFL|VOTE|VOTEU|MATCH|REDUX|CREDUX|ELECT"),
    (
        "integer",
        r"IMAD|IADD3?|V?IADDMNMX|VIADD|IMUL|IABS|V?IMNMX3?|ISETP|ISET|LEA|LOP3?|SHF|SHL|SHR|IDP4?A?|POPC|FLO"
        r"|BREV|BMSK|SGXT|ISCADD|XMAD|PLOP3",
    ),
    ("move and select", r"MOV|MOVM|SEL|PRMT|CS2R|S2R|P2R|R2P|B2R|R2B|S2UR"),
    ("uniform", r"U\w+|R2UR"),
)
"""(Class of instructions, pattern of its opcodes without modifiers). The first match counts."""
_PATTERNS = tuple((name, re.compile(pattern)) for name, pattern in CLASSES)


def instruction_mix(counts: Mapping[str, int]) -> dict[str, int]:
    """Counts the instructions of each class, in the order of `CLASSES`, then ``other``. Empty classes are omitted.

    counts: the number of instructions by opcode.
    """
    found: Counter[str] = Counter()
    for opcode, count in counts.items():
        found[_class_of(opcode.partition(".")[0])] += count
    names = [*(name for name, _ in CLASSES), "other"]
    return {name: found[name] for name in names if found[name]}


@functools.cache
def _class_of(base: str) -> str:
    return next((name for name, pattern in _PATTERNS if pattern.fullmatch(base)), "other")
