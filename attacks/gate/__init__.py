"""Requirements on an encoder, and whether a run meets them."""
