"""What is asked in a run: its parts and settings, made once from a configuration."""
