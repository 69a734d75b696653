"""Costs of sessions: sums of what agents tell, and the limits on those of a day."""
