"""What a person looks at: figures and one self-contained page."""
