"""One run: its arms, its batches, its files."""
