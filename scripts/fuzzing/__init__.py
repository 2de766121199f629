"""What `scripts/fuzz.py` and the tests share: cases as plain data, and the laws that each must obey."""
