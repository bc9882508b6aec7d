"""`orderone predict`: print what theory predicts, without training. One file per prediction."""
