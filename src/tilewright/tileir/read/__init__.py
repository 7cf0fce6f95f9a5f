"""Reads Tile IR bytecode into a typed tree: disassembler, scanner, types, operations, regions."""
