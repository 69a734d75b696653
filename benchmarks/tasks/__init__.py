"""What is measured: a module each, with its name in `TASK` and `run(bench)`, which returns sections of the report."""
