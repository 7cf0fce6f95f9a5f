"""What kinds of instructions machine code consists of, by class of opcode.

Static counts, as in `machine_code`. Uniform instructions (``UIADD3``, ``UMOV``: one for the whole warp) are a class of
their own. An opcode that no class names counts as ``other``.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable

CLASSES: tuple[tuple[str, str], ...] = (
    ("tensor", r"[HIDQO]MMA|[HQI]GMMA|UTC\w*MMA"),
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
"""Class → its opcodes, without their modifiers. The first that matches."""

_PATTERNS = tuple((name, re.compile(pattern)) for name, pattern in CLASSES)


def instruction_mix(opcodes: Iterable[str]) -> dict[str, int]:
    """Instructions by class, in the order of `CLASSES`, ``other`` last; classes without any are left out."""
    bases = (opcode.partition(".")[0] for opcode in opcodes)
    counts = Counter(next((name for name, pattern in _PATTERNS if pattern.fullmatch(base)), "other") for base in bases)
    names = [*(name for name, _ in CLASSES), "other"]
    return {name: counts[name] for name in names if counts[name]}
