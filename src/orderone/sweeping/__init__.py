"""Many trainings, and what they say together."""
