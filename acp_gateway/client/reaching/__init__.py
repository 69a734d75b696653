"""Ways to a gateway: several addresses, and doors in between."""
