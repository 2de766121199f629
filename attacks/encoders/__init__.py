"""Images to embeddings: the families of encoders, their preprocessing, and how they are run."""
