"""The Agent Host Protocol of VS Code: pure reducers and a translator from ACP, and the connection of one client."""
