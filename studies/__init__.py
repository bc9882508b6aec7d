"""Studies that answer one question each, with a protocol that was written before the results."""
