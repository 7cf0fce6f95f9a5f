"""From Tile IR bytecode to a typed tree: disassembler, scanner, types, operations, regions."""
