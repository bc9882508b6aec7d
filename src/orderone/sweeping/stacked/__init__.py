"""Many models of one shape, trained in one program."""
