"""Sessions as they are told to others: lists, changes, histories, and those of nodes."""
