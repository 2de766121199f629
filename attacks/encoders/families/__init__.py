"""One file for each library that encoders come from. Each has `load(request)`, and imports its library only there."""
