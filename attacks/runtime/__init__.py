"""Files, processes, signals, checkpoints: nothing of attacks or encoders."""
