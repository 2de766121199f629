"""The instruments of `transforms.audit`, one idea a file."""
