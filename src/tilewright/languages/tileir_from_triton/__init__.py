"""Triton's TTIR to Tile IR bytecode.

`generic` has Triton print a module in MLIR's generic form, `reader` reads it into the tree of `ttir`, and `translate`
writes Tile IR, with one module for each family of operations. Only `writer` touches cuda-tile's bytecode writer.
"""
