"""Several gateways that know of each other by a directory in Redis or Valkey (`[cluster]`). Imported only with it.

    records    what the directory has about nodes and sessions, as values and as JSON
    store      the operations on the directory, each of which is one step; an interface

The directory helps to find things and to keep two gateways from running one session. What a gateway serves, it serves
from its own state: when the directory is lost, nothing is decided from its absence.
"""
