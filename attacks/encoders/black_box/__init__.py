"""Encoders that can only be asked: pictures go in, answers come out, and there is no gradient."""
