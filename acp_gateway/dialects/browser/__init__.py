"""The JSON-RPC of the page at `/ws`: `requests` and `output` translate, `bridge` and what it uses connect."""
