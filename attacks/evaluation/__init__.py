"""How robust was it: scores, intervals, tests, maps, ablations."""
