"""Hot kernels and functions of a user's program: found by syntax, made faster, proposed as changes of its files."""
