"""The pages about the parts, which docs/conf.py writes: their cards and their pictures."""
