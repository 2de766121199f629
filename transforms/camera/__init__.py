"""Stages of the camera, of files and of sizes. Blurs average values as they stand, repeat the edge, and are the
identity at 0; their lengths are in pixels of the images that the stage receives."""
