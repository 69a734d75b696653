-- CodeCompanion: merge into the setup() call of your Neovim configuration
require("codecompanion").setup({
  adapters = {
    acp = {
      ["devbox"] = function()
        return require("codecompanion.adapters").extend("opencode", {
          name = "devbox",
          formatted_name = "devbox",
          commands = {
            default = { "/home/ann/.local/bin/acp-gateway", "connect", "devbox" },
          },
          defaults = {
            timeout = 60000, -- milliseconds for a request; the default of 20 s is short for an agent that must start
          },
        })
      end,
    },
  },
  interactions = { chat = { adapter = "devbox" } },
})
