# Completion for fish, loaded when it is needed first. Install it as ~/.config/fish/completions/acp-gateway.fish
acp-gateway completion fish | source
