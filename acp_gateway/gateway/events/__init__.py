"""Records of what happened: the audit log, hooks, recordings."""
