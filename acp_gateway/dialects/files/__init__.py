"""The files of sessions over HTTP, for the page: `requests` reads what is asked for, `sending` sends it."""
