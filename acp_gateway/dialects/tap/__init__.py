"""The stream of file events of sessions: `files`, `heat` and `hello` translate, the others connect."""
