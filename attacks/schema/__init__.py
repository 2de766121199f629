"""What a configuration may say; loads without torch."""
