"""The command `prompt`, and the prompt that it follows."""
