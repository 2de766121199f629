"""Measure real encoders: `python scripts/leaderboard.py --help`, docs/leaderboard.md."""

from boards.leaderboard import main

if __name__ == "__main__":
    main()
