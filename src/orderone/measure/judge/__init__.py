"""Judge fitted exponents: what theory expects, the verdict on each fit, and likely causes."""
