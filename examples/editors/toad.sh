# Toad: run this in the project's directory
toad acp '/home/ann/.local/bin/acp-gateway connect devbox' . --title devbox
