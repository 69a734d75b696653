"""One session with its clients, the owners of all sessions, and how sessions are opened, listed and closed. Pure."""
