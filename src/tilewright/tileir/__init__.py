"""Tile IR on a CPU: read it, run it, watch its memory, count its work, compare two versions.

`reader` turns the disassembler's text into the tree of `tree`; `interpreter` runs a grid of blocks;
`memory` is what the kernel's pointers point into, and what watches every access.
"""
