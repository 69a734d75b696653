"""The messages of chat widgets at `/chat`: `requests` and `output` translate, `bridge` connects."""
