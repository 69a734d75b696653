"""HTTP over a byte stream: heads, plain requests, h11 for all others."""
