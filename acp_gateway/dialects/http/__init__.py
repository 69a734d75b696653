"""ACP over Streamable HTTP: `streamable_http` answers requests, `link` is the client's end of a link."""
