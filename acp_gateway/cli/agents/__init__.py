"""The command `agents`: agents found, added, removed and updated."""
