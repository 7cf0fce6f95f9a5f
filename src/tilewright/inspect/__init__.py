"""Static views of a kernel without a GPU: registers and spills, work and bytes, differences of two versions."""
