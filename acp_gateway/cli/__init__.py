"""The command line: click commands, one module for each group. Nothing below reads arguments or prints."""
