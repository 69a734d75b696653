"""JSON text by position: spans and values found without decoding the rest, and strict or piecewise checks of it.

`whole_values` decodes all of a text, for threads and short texts.
"""
