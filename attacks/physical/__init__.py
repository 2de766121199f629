"""From a texture to paper, and from photographs of the paper back to numbers."""
