"""Reads the container of a cubin, a 64-bit little-endian ELF file: sections, kernel symbol and ``nv.info`` attributes.

NVIDIA does not document the numbers of attributes and flags. The numbers here were read from the output of ``nvdisasm``
and ``readelf -SW`` for cubins of tileiras 13.4 and ptxas 13.4 (ABI version 8).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

MACHINE_CUDA = 190
SECTION_NO_BITS = 8
SECTION_RELOCATIONS = (4, 9)
"""The ELF types of sections with relocations: RELA and REL."""
FLAG_EXECUTABLE = 0x4
SYMBOL_FUNCTION = 2
PARAMETER = 0x17
"""EIATTR_KPARAM_INFO: the ``nv.info`` attribute that describes one parameter."""
OTHER_ENTRY = 0x10
"""STO_CUDA_ENTRY: the flag in a symbol's ``st_other`` that marks a kernel."""


class MachineCodeError(ValueError):
    """A cubin cannot be read. The message is one line."""


@dataclass(frozen=True)
class Section:
    name: str
    kind: int
    flags: int
    info: int
    """For a relocation section, the index of the section that it changes."""
    size: int
    """Bytes in memory. A section such as ``.nv.shared.*`` takes no bytes in the file."""
    data: bytes

    @property
    def executable(self) -> bool:
        return self.kind != SECTION_NO_BITS and bool(self.flags & FLAG_EXECUTABLE)


@dataclass(frozen=True)
class KernelSymbol:
    name: str
    index: int
    """Position in the symbol table."""
    section: int
    """Index of the section with the kernel's code."""


@dataclass(frozen=True)
class Cubin:
    """A cubin with exactly one kernel."""

    sm: int
    """Compute capability as one number: 80, 90, 100, 120 …"""
    sections: tuple[Section, ...]
    kernel: KernelSymbol
    attributes: Mapping[int, bytes]
    """The payloads of the kernel's ``nv.info`` attributes, by the number of the attribute."""
    parameters: tuple[int, ...]
    """The sizes of the kernel's parameters in bytes, in order."""

    def section(self, name: str) -> Section | None:
        return next((section for section in self.sections if section.name == name), None)

    def code(self) -> bytes:
        """Returns the instructions of the kernel, then the instructions of the functions that the kernel calls."""
        own = self.sections[self.kernel.section]
        others = [s.data for s in self.sections if s.executable and s is not own]
        return own.data + b"".join(sorted(others))

    def host_code(self) -> tuple[bytes, ...]:
        """Returns the CPU code that tileiras packs beside the kernel; empty for cubins of ptxas.

        Its function ``__CUDA_TILEIR_FUNC_ON_ARGUMENTS_CHANGE_0`` depends on tile and cluster, and seems to fill in the
        TMA descriptors. So this code affects the kernel's behaviour. The code does not contain the kernel's name.
        """
        packed = self.section(".nv.host")
        if packed is None:
            return ()
        try:
            return tuple(section.data for section in _sections(packed.data) if section.executable)
        except (*_DAMAGE, MachineCodeError):
            return (packed.data,)


_DAMAGE = (struct.error, IndexError, OverflowError, UnicodeDecodeError)
"""The exceptions that reading a damaged file raises."""


def parse(image: bytes) -> Cubin:
    """Reads a cubin. Raises `MachineCodeError` unless it is complete and has exactly one kernel."""
    if image[:4] != b"\x7fELF":
        raise MachineCodeError(f"not a cubin: {len(image)} bytes that do not begin with the ELF mark")
    try:
        return _parse(image)
    except _DAMAGE as error:
        raise MachineCodeError(f"the cubin is truncated or damaged ({error})") from error


def _parse(image: bytes) -> Cubin:
    wide, order = image[4], image[5]
    machine, flags = struct.unpack_from("<H", image, 18)[0], struct.unpack_from("<I", image, 48)[0]
    if (wide, order, machine) != (2, 1, MACHINE_CUDA):
        raise MachineCodeError(f"not a cubin: an ELF file for machine {machine}, not CUDA ({MACHINE_CUDA})")
    # The program headers are the end of the file, so a truncated cubin lacks some program headers.
    start, (size, count) = struct.unpack_from("<Q", image, 32)[0], struct.unpack_from("<HH", image, 54)
    if start + size * count > len(image):
        raise MachineCodeError(f"the cubin is truncated: {len(image)} bytes, at least {start + size * count} expected")
    sections = _sections(image)
    sm = flags >> 8 & 0xFF if image[8] >= 8 else flags & 0xFF  # the layout changed with ABI version 8
    kernels = list(_kernels(sections))
    if not kernels:
        raise MachineCodeError("the cubin has no kernel")
    if len(kernels) > 1:
        names = ", ".join(sorted(kernel.name for kernel in kernels))
        raise MachineCodeError(f"the cubin has {len(kernels)} kernels, one is expected: {names}")
    return Cubin(sm, sections, kernels[0], _kernel_attributes(sections, kernels[0]), _parameters(sections, kernels[0]))


def _sections(image: bytes) -> tuple[Section, ...]:
    start = struct.unpack_from("<Q", image, 40)[0]
    count, names_index = struct.unpack_from("<HH", image, 60)
    headers = [struct.unpack_from("<IIQQQQIIQQ", image, start + 64 * i) for i in range(count)]
    names = _bytes_of(image, headers[names_index])
    return tuple(
        Section(_string(names, header[0]), header[1], header[2], header[7], header[5], _bytes_of(image, header))
        for header in headers
    )


def _bytes_of(image: bytes, header: tuple[int, ...]) -> bytes:
    kind, offset, size = header[1], header[4], header[5]
    if kind == SECTION_NO_BITS:
        return b""
    if offset + size > len(image):
        raise MachineCodeError(f"the cubin is truncated: {len(image)} bytes, at least {offset + size} expected")
    return image[offset : offset + size]


def _kernels(sections: tuple[Section, ...]) -> Iterator[KernelSymbol]:
    by_name = {section.name: section.data for section in sections}
    symbols, names = by_name.get(".symtab", b""), by_name.get(".strtab", b"")
    for index, entry in enumerate(struct.iter_unpack("<IBBHQQ", symbols)):
        name, info, other, section = entry[:4]
        if info & 0xF == SYMBOL_FUNCTION and other & OTHER_ENTRY and sections[section].executable:
            yield KernelSymbol(_string(names, name), index, section)


def _kernel_attributes(sections: tuple[Section, ...], kernel: KernelSymbol) -> dict[int, bytes]:
    """Returns the attributes of the kernel, from its own section and from the section that all functions share."""
    by_name = {section.name: section.data for section in sections}
    attributes: dict[int, bytes] = {}
    for number, payload in _attributes(by_name.get(".nv.info", b"")):
        # An entry (registers, stack) names its function by the symbol's index; the high byte has flags.
        if len(payload) == 8 and struct.unpack_from("<I", payload)[0] & 0xFFFFFF == kernel.index:
            attributes[number] = payload[4:]
    attributes.update(_attributes(by_name.get(".nv.info." + kernel.name, b"")))
    return attributes


def _parameters(sections: tuple[Section, ...], kernel: KernelSymbol) -> tuple[int, ...]:
    """Returns the size of each parameter in bytes, in order.

    A parameter's entry consists of index, ordinal, offset, and a word that has the size from bit 18 on.
    """
    data = next((section.data for section in sections if section.name == ".nv.info." + kernel.name), b"")
    entries = (struct.unpack_from("<IHHI", payload) for number, payload in _attributes(data) if number == PARAMETER)
    return tuple(word >> 18 for _, ordinal, _, word in sorted(entries, key=lambda entry: entry[1]))


def _attributes(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yields the number and payload of each attribute. Format 4 states its size; other formats have two bytes."""
    position = 0
    while position < len(data):
        form, number, value = struct.unpack_from("<BBH", data, position)
        size = value if form == 4 else 0
        payload = data[position + 4 : position + 4 + size] if form == 4 else data[position + 2 : position + 4]
        yield number, payload
        position += 4 + size


def _string(table: bytes, start: int) -> str:
    end = table.find(b"\0", start)
    if end < 0:
        raise IndexError("a name is cut off")
    return table[start:end].decode()
