"""Copies of files between this machine and the sessions of gateways."""
