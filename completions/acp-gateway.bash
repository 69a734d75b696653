# Completion for bash, loaded by bash-completion when it is needed first. Install it as
# ~/.local/share/bash-completion/completions/acp-gateway
eval "$(acp-gateway completion bash)"
