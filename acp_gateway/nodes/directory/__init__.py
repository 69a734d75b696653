"""Several gateways that know of each other by a directory in Redis or Valkey (`[cluster]`). Imported only with it.

    records        the records of nodes, as values and as JSON, and the seal that proves that a node has written them
    store          the operations on the directory, one step each; an interface
    redis_store    the same in Redis or Valkey; scripts has the Lua of each operation
    directory      the other nodes as this one knows them, and whether the directory can be reached; pure
    member         renews the record of this node, learns of the others, passes on changes
    token_sync     keeps the tokens of this gateway and those of the directory the same

The directory has what no gateway knows by itself: which nodes there are, tokens and revocations. Sessions are not in
it: each node tells its own. When the directory is lost, nothing is decided from its absence.
"""
