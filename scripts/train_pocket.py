"""Train or judge the pocket encoder; see docs/pocket-encoder.md."""

from pocket.training import main

if __name__ == "__main__":
    main()
