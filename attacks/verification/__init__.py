"""Check a finished run: its files against one another, its figures against its rows, its pictures judged again."""
