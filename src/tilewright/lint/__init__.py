"""Finding what goes wrong with cuTile code, in its text alone: nothing is imported and nothing runs.

linting.lint_paths     paths → what was found, and what the files hold
reading                a file's text and its syntax tree
file.SourceFile          one parsed file: imports, scopes, where a value comes from
rules/                 one rule a file; `rules.RULES` is the registry
inventory              kernels, launches, registrations, spaces and searches of a file (P-04)
sarif, tables          the same for a code review and for a terminal
"""
