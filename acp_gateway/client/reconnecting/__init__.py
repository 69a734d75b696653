"""Replacing a connection: when to dial a second one (`suspicion`), and attempts beside each other (`attempts`)."""
