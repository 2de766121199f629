"""Tables of runs that are published in the docs."""
