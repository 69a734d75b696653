"""What is wrong, from both ends: checks with their remedies, of the gateway, of its nodes, and of the way to it."""
