"""The loop of an attack and what repeats it: restarts, searches, suites, worst views."""
