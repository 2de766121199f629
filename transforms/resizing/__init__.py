"""The resizers of the libraries, by name."""
