"""The command `token`: tokens made, listed and revoked."""
