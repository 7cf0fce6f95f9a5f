"""Python source read without running it: kernels, launches, configurations and where values come from."""
