"""Sessions, their histories and the uses of tokens on disk. From the core to the file:

- `archive` tells the storage what changes in sessions, and restores them at the start.
- `store` queues changes, and writes them in batches from one task (write-behind).
- `write_queue` knows what is not on disk yet, and takes it from the journals in memory; `history_limits` says which
  histories are removed or cut when the disk space for all of them is used up.
- `writer` owns the open file, writes a batch in one transaction, and replaces a corrupt file.
- `database` is the SQLite file, `histories` its tables with histories, `spending` the one with costs, and `corruption`
  finds damage in them.
- `records` are the stored values, and `state_folder` checks who may change the folder.
"""
