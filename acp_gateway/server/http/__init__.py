"""HTTP of a listener: the table of routes, Streamable HTTP, the page with its sign-in, and metrics.

The server is our own, on h11: Hypercorn ends at one hostile request on Trio, and uvicorn needs asyncio.
"""
