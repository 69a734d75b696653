"""Places on a machine: those that every fenced agent may use, and those that none may.

The tables name places of Linux and macOS; `~` is the home of the gateway's user. A place that does not exist is left
out when a fence is made.
"""

from typing import Final

SYSTEM: Final = (
    "/usr",
    "/bin",
    "/sbin",
    "/lib",
    "/lib32",
    "/lib64",
    "/libx32",
    "/etc",
    "/opt",
    "/sys",
    "/nix/store",
    "/snap",
    "/home/linuxbrew",
    "/System",
    "/Library",
    "/var/lib/ca-certificates",
)
"""Trees to read: programs, libraries, certificates, the configuration of the machine and its devices."""

RESOLVERS: Final = ("/run/systemd/resolve", "/run/nscd")
"""Trees to read with a network: they have sockets as well, at which others ask the network for names."""

DEVICES: Final = (
    "/dev/null",
    "/dev/zero",
    "/dev/full",
    "/dev/random",
    "/dev/urandom",
    "/dev/tty",
    "/dev/ptmx",
    "/dev/pts",
)
"""Devices that programs need. In bubblewrap, the terminals are the agent's own; with Landlock, those of its user."""

ACCELERATORS: Final = ("/dev/nvidia*", "/dev/dri", "/dev/kfd", "/dev/dxg", "/dev/accel", "/dev/davinci*")
"""Patterns of the devices of graphics processors and the like."""

SECRETS: Final = (
    # Of the machine.
    "/etc/shadow",
    "/etc/shadow-",
    "/etc/gshadow",
    "/etc/gshadow-",
    "/etc/sudoers",
    "/etc/sudoers.d",
    "/etc/ssh",
    "/etc/ssl/private",
    "/etc/pki/tls/private",
    "/etc/letsencrypt",
    "/etc/wireguard",
    "/etc/krb5.keytab",
    "/etc/NetworkManager/system-connections",
    "/etc/kubernetes",
    "/etc/rancher",
    "/etc/acp-gateway",
    # Keys and keyrings.
    "~/.ssh",
    "~/.gnupg",
    "~/.password-store",
    "~/.local/share/keyrings",
    "~/.local/share/kwalletd",
    "~/.pki",
    "~/.config/age",
    "~/.config/sops",
    "~/.config/1Password",
    "~/.config/Bitwarden",
    "~/Library/Keychains",
    # Logins of clouds and services.
    "~/.aws",
    "~/.azure",
    "~/.config/gcloud",
    "~/.oci",
    "~/.config/doctl",
    "~/.config/hcloud",
    "~/.kube",
    "~/.docker",
    "~/.config/containers",
    "~/.config/gh",
    "~/.config/glab-cli",
    "~/.config/rclone",
    "~/.config/acp-gateway",
    "~/.vault-token",
    "~/.terraform.d",
    "~/.netrc",
    "~/.git-credentials",
    "~/.config/git/credentials",
    "~/.pypirc",
    "~/.npmrc",
    "~/.cargo/credentials.toml",
    "~/.pgpass",
    "~/.my.cnf",
    # What a person has typed and read.
    "~/.bash_history",
    "~/.zsh_history",
    "~/.local/share/fish",
    "~/.python_history",
    "~/.mozilla",
    "~/.thunderbird",
    "~/.config/google-chrome",
    "~/.config/chromium",
    "~/.config/BraveSoftware",
    "~/Library/Application Support/Google/Chrome",
)
"""Places that no fenced agent reads, wherever they lie, whatever the configuration says."""

STARTED: Final = (
    "~/.profile",
    "~/.bash_profile",
    "~/.bash_login",
    "~/.bashrc",
    "~/.bash_logout",
    "~/.zshenv",
    "~/.zprofile",
    "~/.zshrc",
    "~/.zlogin",
    "~/.config/fish",
    "~/.config/environment.d",
    "~/.config/systemd",
    "~/.local/share/systemd",
    "~/.config/autostart",
    "~/Library/LaunchAgents",
    "/etc",
    "/var/spool/cron",
)
"""Places that are run outside of every fence: by ssh and shells at each login, by the service manager and by cron."""

TOOLS: Final = (
    "~/.local/bin",
    "~/.local/lib",
    "~/.local/share/uv",
    "~/.local/share/pipx",
    "~/.local/share/fnm",
    "~/.local/share/mise",
    "~/.local/share/pnpm",
    "~/.pyenv",
    "~/.nvm",
    "~/.volta",
    "~/.asdf",
    "~/.bun",
    "~/.deno",
    "~/.cargo/bin",
    "~/.rustup",
    "~/go/bin",
    "~/.npm-global",
    "~/.npm-packages",
    "~/.gitconfig",
    "~/.config/git",
)
"""Folders in a home that hold programs, and git's configuration, to read."""

RUNNERS: Final = {
    "npx": ("~/.npm/",),
    "pnpx": ("~/.cache/pnpm/", "~/.local/share/pnpm/store/"),
    "bunx": ("~/.bun/install/cache/",),
    "uvx": ("~/.cache/uv/", "~/.local/share/uv/python/"),
}
"""Folders that programs write which fetch an agent and run it, by its name. None of them is on a PATH."""
