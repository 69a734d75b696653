"""Work of agents on the machine, and the machine itself: files, ports, changes, load."""
