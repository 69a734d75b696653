"""The command `service`: the gateway as a service of systemd or launchd."""
