"""Training: loop, schedule, checkpoints, data sources, logging; `stacked` trains many members."""
