"""What the entries need to know of a kernel's source, and how they rewrite it."""
