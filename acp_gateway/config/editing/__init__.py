"""Configuration files that the program writes or changes: TOML with its comments, and the settings of editors."""
