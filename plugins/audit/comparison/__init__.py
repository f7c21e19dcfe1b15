"""From the counts of all tiers to a verdict for each topic and window, and its report."""
