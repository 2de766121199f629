"""What may be changed: balls, sparse and spectral sets, masks, patches."""
