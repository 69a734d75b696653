"""HTTP of a listener: the table of routes, Streamable HTTP, the page with its sign-in, and metrics."""
