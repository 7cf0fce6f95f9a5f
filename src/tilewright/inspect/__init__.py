"""Facts about a kernel that need no GPU: registers and spills, work and bytes, differences between two versions."""
