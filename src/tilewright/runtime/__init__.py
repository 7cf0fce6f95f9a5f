"""Code that runs in the user's program: tuned kernels, the patch of cuda-tile's search, recorded launches."""
