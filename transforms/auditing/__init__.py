"""The instruments of `transforms.auditing.audit`, one idea a file."""
