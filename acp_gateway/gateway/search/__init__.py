"""Full-text search in histories on disk: `texts` (pure), the file (`index`), and the task (`service`).

The index is made from the histories, and can be removed and made again at any time.
"""
