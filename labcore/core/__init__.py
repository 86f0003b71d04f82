"""Records that every other room shares: configurations, errors, the step record. Standard library only."""
