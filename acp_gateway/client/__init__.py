"""Programs that run beside the editor: the shim, its link to the gateway, pairing, ssh."""
