"""Hot kernels and functions of a user's program: finds them by syntax, makes them faster, and proposes changed
files."""
