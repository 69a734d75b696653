"""Things that agents make on the machine, and the machine itself: files, ports, changes, load."""
