"""Reads TTIR in MLIR's generic form."""

from __future__ import annotations

import re
from typing import Any

from tilewright.errors import ToolFailed
from tilewright.languages.tileir_from_triton.ttir import (
    Attribute,
    Dense,
    SourcePlace,
    SsaValue,
    TtirBlock,
    TtirOp,
    ValueType,
)

TOKEN = re.compile(
    r"""\s*(?://[^\n]*\n\s*)*(?P<token>
      "(?:[^"\\]|\\.)*" | %[\w$.-]+(?:\#\d+)? | \^\w+ | @"[^"]*" | @[\w$.-]+ | [\#!][A-Za-z_][\w.$]* | -> | ::
    | 0x[0-9A-Fa-f]+ | -?\d+\.\d*(?:[eE][+-]?\d+)? | -?\d+ | [A-Za-z_][\w.$]* | [^\s]
    )""",
    re.VERBOSE,
)
NUMBER = re.compile(r"-?\d|0x")
SIGNED = re.compile(r"[su]i\d+")  # in descriptors
TYPE = re.compile(r"(?:\d+x)*")
OWN = ("/triton/language/", "/triton/experimental/")
"""Parts of the paths of Triton's own files, which are not the user's source."""


class TtirWords:
    """Reads the words and signs of TTIR text one at a time."""

    def __init__(self, text: str) -> None:
        self.text, self.at = text, 0
        self.word, self.start = "", 0
        self.next()

    def next(self) -> str:
        """Returns the current word, and moves to the next one. At the end of the text, the current word is ""."""
        before, match = self.word, TOKEN.match(self.text, self.at)
        self.word, self.start = (match["token"], match.start("token")) if match else ("", len(self.text))
        self.at = match.end() if match else len(self.text)
        return before

    def take(self, word: str) -> bool:
        if self.word != word:
            return False
        self.next()
        return True

    def expect(self, word: str) -> None:
        if not self.take(word):
            line = self.text.count("\n", 0, self.start) + 1
            raise ToolFailed(f"TTIR line {line}: '{word}' expected, not '{self.word}'")

    def balanced(self) -> str:
        """Returns the text from the current opening bracket to its closing bracket, and moves to the next word."""
        start, depth = self.start, 0
        while self.word:
            depth += (self.word in "([{<") - (self.word in ")]}>")
            end = self.at
            self.next()
            if depth == 0:
                return self.text[start:end]
        raise ToolFailed("TTIR ends inside a bracket")


def read_type(text: str) -> ValueType:
    """Reads the text of a type. If this module does not know a type of Triton, the element has the type's name."""
    for prefix, is_descriptor in (("tensor<", False), ("!tt.tensordesc<", True)):
        if text.startswith(prefix):
            inside = text[len(prefix) : -1].removeprefix("tensor<")
            dims = TYPE.match(inside)[0]  # type: ignore[index]
            inner = read_type(inside[len(dims) :].split(",")[0].strip(">") + (">" if "ptr<" in inside else ""))
            shape = tuple(int(size) for size in dims.split("x")[:-1])
            return ValueType(inner.element, shape, inner.pointer, is_descriptor)
    if text.startswith("!tt.ptr<"):
        inner = read_type(text[len("!tt.ptr<") : -1].split(",")[0])
        return ValueType(str(inner), pointer=True) if inner.pointer else ValueType(inner.element, pointer=True)
    return ValueType(text[1:] if SIGNED.fullmatch(text) else text)


class Reader(TtirWords):
    """Reads a module into `TtirOp`s."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.values: dict[str, SsaValue] = {}
        self.places: dict[str, str] = dict(re.findall(r"^(#loc\d*) = loc\((.*)\)$", text, re.MULTILINE))
        self.known: dict[str, SourcePlace | None] = {}

    def module(self) -> TtirOp:
        """Reads the whole text."""
        while self.word.startswith("#loc"):
            self.next()
            self.expect("=")
            self.next()
            self.balanced()
        return self.op()

    def op(self) -> TtirOp:
        """Reads one operation. Its regions are read before its results get names, because regions cannot use them."""
        names = []
        while self.word.startswith("%"):
            name = self.next()
            names += [f"{name}#{k}" for k in range(int(self.next()))] if self.take(":") else [name]
            self.take(",")
        if names:
            self.expect("=")
        op, operands = self.next().strip('"'), self.listed("(", ")")
        successors = self.listed("[", "]") if self.word == "[" else []
        attributes: dict[str, Attribute] = {}
        if self.word == "<":
            self.next()
            attributes = self.dictionary()
            self.expect(">")
        used = tuple(self.value(name) for name in operands)
        regions = []
        if self.take("("):
            while self.word == "{":
                regions.append(self.region())
                self.take(",")
            self.expect(")")
        if self.word == "{":
            attributes |= self.dictionary()
        self.expect(":")
        self.types()
        self.expect("->")
        results = tuple(SsaValue(*pair) for pair in zip(names, self.types(), strict=True))
        self.values.update({value.name: value for value in results})
        return TtirOp(op, used, results, attributes, tuple(regions), tuple(successors), self.place())

    def value(self, name: str) -> SsaValue:
        if name not in self.values:
            raise ToolFailed(f"TTIR uses {name}, which it does not define before")
        return self.values[name]

    def region(self) -> tuple[TtirBlock, ...]:
        """Reads a region. A region without operations has no block."""
        self.expect("{")
        blocks = [] if self.word.startswith("^") else [TtirBlock("^bb0", ())]
        while not self.take("}"):
            if self.word.startswith("^"):
                blocks.append(self.block())
            else:
                blocks[-1].ops.append(self.op())
        return tuple(block for block in blocks if block.ops)

    def block(self) -> TtirBlock:
        """Reads the label of a block and its arguments."""
        label, arguments = self.next(), []
        if self.take("("):
            while not self.take(")"):
                name = self.next()
                self.expect(":")
                arguments.append(SsaValue(name, self.type()))
                self.place()
                self.take(",")
        self.expect(":")
        self.values.update({value.name: value for value in arguments})
        return TtirBlock(label, tuple(arguments))

    def listed(self, start: str, end: str) -> list[str]:
        """Reads words in brackets, separated by commas."""
        self.expect(start)
        found = []
        while not self.take(end):
            found.append(self.next())
            self.take(",")
        return found

    def types(self) -> list[ValueType]:
        """Reads a type, or a list of types in brackets."""
        if not self.take("("):
            return [self.type()]
        found = []
        while not self.take(")"):
            found.append(self.type())
            self.take(",")
        return found

    def type(self) -> ValueType:
        return read_type(self.type_text())

    def type_text(self) -> str:
        if self.word == "(":  # the type of a function
            text = self.balanced()
            self.expect("->")
            return f"{text} -> {self.balanced() if self.word == '(' else self.type_text()}"
        text = self.next()
        return text + self.balanced() if self.word == "<" else text

    def dictionary(self) -> dict[str, Attribute]:
        self.expect("{")
        found: dict[str, Attribute] = {}
        while not self.take("}"):
            name = self.next().strip('"')
            found[name] = self.attribute() if self.take("=") else True
            self.take(",")
        return found

    def attribute(self) -> Attribute:
        """Reads an attribute. The type of an integer is dropped."""
        word = self.word
        if word == "{":
            return self.dictionary()
        if word == "[":
            return self.sequence()
        if word == "dense":
            self.next()
            self.expect("<")
            values = [] if self.word == ">" else self.literal()
            self.expect(">")
            self.expect(":")
            return Dense(values, self.type())
        if word == "array":
            return [int(x) if NUMBER.match(x) else x == "true" for x in _items(self.next() and self.balanced())]
        if word == "loc":
            return self.place()
        if word[0] in "#!@" or word == "(" or not (NUMBER.match(word) or word[0] == '"' or word in BOOLEANS):
            return self.type_text()
        value = self.literal()
        if self.take(":"):
            kind = self.type()
            return Dense(value, kind) if kind.is_float else value
        return value

    def sequence(self) -> list[Attribute]:
        self.expect("[")
        found = []
        while not self.take("]"):
            found.append(self.attribute())
            self.take(",")
        return found

    def literal(self) -> Any:
        """Reads a number, a string, true, false, or a nested list of these. A hexadecimal number stays a string."""
        if self.word == "[":
            self.next()
            found = []
            while not self.take("]"):
                found.append(self.literal())
                self.take(",")
            return found
        word = self.next()
        if word in BOOLEANS:
            return BOOLEANS[word]
        if word.startswith(("0x", '"')):
            return word.strip('"')
        return float(word) if "." in word or "e" in word else int(word)

    def place(self) -> SourcePlace | None:
        """Reads ``loc(…)`` if it is the next word. Returns the place in the user's source, or None if it is unknown."""
        if self.word != "loc":
            return None
        self.next()
        return self._resolved(self.balanced()[1:-1])

    def _resolved(self, text: str) -> SourcePlace | None:
        if text not in self.known:
            self.known[text] = None
            self.known[text] = self._found(text)
        return self.known[text]

    def _found(self, text: str) -> SourcePlace | None:
        """Returns the innermost place that is not in Triton's own library, else the outermost place."""
        if text in self.places:
            return self._resolved(self.places[text])
        if file := re.match(r'"((?:[^"\\]|\\.)*)":(\d+):(\d+)', text):
            return SourcePlace(file[1], int(file[2]), int(file[3]))
        if named := re.fullmatch(r'"(?:[^"\\]|\\.)*"\((.*)\)', text, re.DOTALL):
            return self._resolved(named[1])
        if text.startswith("callsite("):
            callee, caller = _call(text[len("callsite(") : -1])
            inner, outer = self._resolved(callee), self._resolved(caller)
            return outer if inner is None or (outer and any(part in inner.file for part in OWN)) else inner
        if text.startswith("fused"):
            inside = re.findall(r"#loc\d*", text)
            return next(filter(None, map(self._resolved, inside)), None)
        return None


BOOLEANS = {"true": True, "false": False}


def _items(text: str) -> list[str]:
    """Returns the items of a string such as ``<i32: 1, 0, 0>``."""
    return [item for item in re.split(r"[,\s]+", text.strip("<>").partition(":")[2]) if item]


def _call(text: str) -> tuple[str, str]:
    """Splits ``A at B`` at the first `` at `` outside of brackets. Without one, returns ``unknown`` as B."""
    depth = 0
    for at, letter in enumerate(text):
        depth += (letter in "([") - (letter in ")]")
        if depth == 0 and text.startswith(" at ", at):
            return text[:at], text[at + 4 :]
    return text, "unknown"


def read_ttir(generic: str) -> TtirOp:
    """Reads a module in generic form. Raises ToolFailed if the text is not in generic form."""
    return Reader(generic).module()
