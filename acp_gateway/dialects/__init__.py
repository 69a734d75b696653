"""The services of a listener: Streamable HTTP, the page, chat widgets, metrics, a stream of file events, editors,
VS Code.

Each has a folder, which `config/services.py` names: `service` declares it, `serving` has its routes, the others are its
translator, which is pure, and its connection. Services do not import each other.
"""
