-- Avante: merge into the setup() call of your Neovim configuration
require("avante").setup({
  provider = "devbox",
  acp_providers = {
    ["devbox"] = {
      command = "/home/ann/.local/bin/acp-gateway",
      args = { "connect", "devbox" },
      -- Avante passes on nothing but PATH and these.
      env = { HOME = os.getenv("HOME"), XDG_CONFIG_HOME = os.getenv("XDG_CONFIG_HOME") },
    },
  },
})
