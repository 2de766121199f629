"""Pictures, galleries and scenes, and the files that ship with the package."""
