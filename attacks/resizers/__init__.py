"""Whether a resizer lets a picture show one thing to people and another to the encoder, one idea a file."""
