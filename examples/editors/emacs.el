;; Emacs with agent-shell: put into your init file, then M-x remote-agent-devbox
(defun remote-agent-devbox ()
  "Start an agent on another machine through acp-gateway."
  (interactive)
  (require 'agent-shell)
  (agent-shell-start
   :config (agent-shell-make-agent-config
            :identifier 'remote-agent-devbox
            :mode-line-name "devbox"
            :buffer-name "devbox"
            :shell-prompt "devbox> "
            :shell-prompt-regexp (regexp-quote "devbox> ")
            :client-maker (lambda (buffer)
                            (acp-make-client
                             :command "/home/ann/.local/bin/acp-gateway"
                             :command-params '("connect" "devbox")
                             :context-buffer buffer)))))
