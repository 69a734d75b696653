"""JSON text by position: spans and values found without decoding the rest, and strict or piecewise checks of it."""
