"""The machine, and the work of agents on it, as clients are told of them."""
