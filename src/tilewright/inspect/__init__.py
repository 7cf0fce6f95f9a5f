"""What code says without being timed: counted work, machine code, and the differences of two versions."""
