"""What a cubin says about its kernel, read without a GPU."""
