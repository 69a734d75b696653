"""The HTTP calls of an editor: `requests` and `output` translate, `bridge` and what it uses connect."""
