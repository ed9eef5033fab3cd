"""Speed, measured as ratios within one run."""
