"""From settings to a trained federation, in memory or in a run directory."""
