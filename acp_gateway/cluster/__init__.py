"""Several gateways that know of each other by a directory in Redis or Valkey (`[cluster]`). Imported only with it.

    records        the records of nodes and sessions, as values and as JSON
    store          the operations on the directory, each of which is one step; an interface
    redis_store    the same in Redis or Valkey; scripts has the Lua of each operation
    seal           proves that a node of the cluster has written a value
    directory      the other nodes as this one knows them, and whether the directory can be reached; pure
    member         renews the record of this node, learns of the others, passes on changes
    lease          the time within which this node has looked at the directory; pure
    fencing        finds sessions that other nodes have adopted, and stops them here
    session_writer writes this node's sessions, behind their changes
    mirror_writer  mirrors the histories of its live sessions
    mirror_agent   answers like an agent whose sessions can only be read: the mirrored histories; pure
    mirrored_history  makes a journal of a mirrored history; pure
    token_sync     keeps the tokens of this gateway and those of the directory the same

The directory helps to find things and to keep two gateways from running one session. What a gateway serves, it serves
from its own state: when the directory is lost, nothing is decided from its absence.
"""
