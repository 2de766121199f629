"""What the attacker minimises."""
