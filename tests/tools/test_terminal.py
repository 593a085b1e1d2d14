"""What commands show is text: nothing in it is obeyed, by a terminal or as markup."""

from rich.console import Console

from tools.terminal import make_table, say

ODD = "a[/b][red]\x1b[2J\u202e\udc80\\"


def test_lines_and_titles_columns_and_cells_of_a_table_are_text(capsys):
    say(ODD)
    table = make_table(ODD, [ODD])
    table.add_row(ODD)
    Console(width=200).print(table)
    assert capsys.readouterr().out.count(r"a[/b][red]\x1b[2J\u202e\udc80" + "\\") == 4
