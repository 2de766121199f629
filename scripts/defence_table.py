"""Measure defences: `python scripts/defence_table.py --help`, docs/defence_table.md."""

from boards.defences import main

if __name__ == "__main__":
    main()
