"""How the pocket encoder is made and judged; the command is scripts/train_pocket.py."""
