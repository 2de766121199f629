"""Stages of the camera: blur, downscale, sensor, codec."""
