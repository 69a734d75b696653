"""Sessions as text for terminals, without I/O: updates folded into a transcript, and a transcript as styled lines."""
