"""The page: its files, its sign-in, and the connections of browsers, which speak the session API at `/ws`."""
