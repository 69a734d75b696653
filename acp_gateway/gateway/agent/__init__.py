"""One agent process: started, hardened, stopped, and reaped when a killed gateway left it behind."""
