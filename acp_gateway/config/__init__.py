"""Configuration files, read into frozen structs with the line of every mistake."""
