"""Agents and their clients: hubs, attached clients, agent processes, and the services that hubs need."""
