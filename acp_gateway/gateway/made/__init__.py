"""What clients are told of the machine, and of what agents have made on it."""
