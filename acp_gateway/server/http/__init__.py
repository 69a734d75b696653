"""HTTP of a listener: the table of routes, the endpoint and the start page, signing in.

The server is our own, on h11: Hypercorn ends at one hostile request on Trio, and uvicorn needs asyncio.
"""
