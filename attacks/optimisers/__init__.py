"""How a perturbation moves: PGD, SGD, Adam, APGD, Wiener, Square."""
