"""Stages that move points. Neighbours fuse into one resample."""
