"""Train many models of one shape in one program, each with the losses of its stand-alone run."""
