"""Tasks, one per module: `TASK` is the name, and `run(bench)` returns sections of the report."""
