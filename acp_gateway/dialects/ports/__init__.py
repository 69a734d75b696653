"""The ports on which the programs of agents listen, for clients elsewhere."""
