"""`tilewright specialists`: lists the specialists, their questions and their requirements."""

from __future__ import annotations

from tilewright.cli.shared import AsJson, print_json


def specialists(as_json: AsJson = False) -> None:
    """Lists the specialists with their domains, words, results and requirements, and shows which of them work here.

    Then prints the rules by which `tilewright route` chooses a specialist.

    Example: `tilewright specialists`
    """
    from tilewright import specialists as room
    from tilewright.cli import specialists_table, terminal

    listed = room.specialists()
    if as_json:
        print_json(specialists_table.to_json(listed))
        return
    console = terminal.stdout()
    for line in specialists_table.lines(listed, console.width):
        print(line)
