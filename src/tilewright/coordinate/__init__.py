"""The coordinator: routes a performance question to specialists, plans the work and validates it. It edits no files."""
