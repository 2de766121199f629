"""A patch: texture, shape, placement, colours, and the card printed round it."""
