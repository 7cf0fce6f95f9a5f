"""Translates Triton's TTIR to Tile IR bytecode.

`generic` makes Triton print a module in MLIR's generic form. `reader` reads the text into the tree of `ttir`.
`translate` generates Tile IR, with one module for each family of operations. Only `writer` uses cuda-tile's bytecode
writer.
"""
