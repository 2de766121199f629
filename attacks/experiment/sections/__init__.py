"""The optional parts of an evaluation, computed from the saved files: each is a section of the report."""
