"""Rules that decide permission requests in place of a person: pure, and in doubt a person is asked."""
