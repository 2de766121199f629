"""Photographs of a printed card, simulated with numpy and OpenCV: independent of `transforms`."""
