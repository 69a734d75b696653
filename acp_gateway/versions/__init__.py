"""Translates between the versions of the protocol, purely: each client and each agent has the version that it speaks.

`table` lists all methods, updates and members. `new_agent` translates for a client of version 1 whose agent speaks
version 2, `old_agent` for a client of version 2 whose agent speaks version 1; both are fed whole messages, and have a
function for each that does not pass as it is.
This package imports only `acp/` and `protocol/`.
"""
